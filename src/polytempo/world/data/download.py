"""Downloads from a mirror that the user names. Every file is checked against a checksum before it takes its name."""

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from polytempo.core.disk.files import write_whole
from polytempo.core.errors import UserError
from polytempo.world.data.sources import Download, Source, datasets, default_data_dir, expanded, files_wanted

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes so far and the bytes in all (None: the mirror does not say)."""

CHUNK = 1 << 20
TIMEOUT = 30.0
"""Seconds without a byte."""


def get_dataset(
    name: str, data_dir: Path | None = None, mirror: str | None = None, progress: Progress | None = None
) -> Path:
    """Download the files of a known data set from ``mirror`` (or ``$POLYTEMPO_MIRROR``) into the data directory, and
    return that. A file is expected at ``MIRROR/<path of the Download>``."""
    source = datasets[name]
    data_dir = expanded(data_dir or default_data_dir())
    if not source.downloads:
        raise UserError(f"Data set {name!r} needs no download: {source.summary}.")
    address = _address(name, source, data_dir, mirror or os.environ.get("POLYTEMPO_MIRROR"))
    for download in source.downloads:
        _get(download, address, data_dir, progress or _silent)
    return data_dir


def _address(name: str, source: Source, data_dir: Path, mirror: str | None) -> str:
    if not mirror:
        wanted = "\n".join(f"  MIRROR/{download.path}" for download in source.downloads)
        raise UserError(
            "No mirror is set, and there is none by default. Set one with --mirror URL or POLYTEMPO_MIRROR; "
            f"for {name!r} it must offer\n{wanted}\nOr put these files in place by hand:\n"
            + files_wanted(source, data_dir)
        )
    if urllib.parse.urlsplit(mirror).scheme not in ("http", "https"):
        raise UserError(f"Mirror {mirror!r} is no web address. Expected http://... or https://...")
    return mirror.rstrip("/")


def _get(download: Download, mirror: str, data_dir: Path, progress: Progress) -> None:
    url = f"{mirror}/{urllib.parse.quote(download.path)}"
    algorithm, expected = ("md5", download.md5) if download.md5 else ("sha256", _listed_sha256(url, download))
    target = data_dir / (download.path if download.unpack_to is None else PurePosixPath(download.path).name)

    def fetch(part: Path) -> None:
        actual = _fetch(url, part, algorithm, lambda done, total: progress(target.name, done, total))
        if actual != expected:
            raise UserError(
                f"{url} has the wrong checksum: {algorithm} {actual}, expected {expected}. Nothing was kept. "
                "Try again or use another mirror; a copy that you trust can be put in place by hand."
            )

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if download.unpack_to is None:
            write_whole(target, fetch)
        else:
            with _part_of(target) as archive:
                fetch(archive)
                _unpack(archive, data_dir / download.unpack_to)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error}. Free space or choose another --data-dir.") from error


@contextmanager
def _part_of(target: Path) -> Iterator[Path]:
    """A file beside the target that is gone afterwards."""
    part = target.with_name(target.name + ".part")
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _fetch(url: str, part: Path, algorithm: str, progress: Callable[[int, int | None], None]) -> str:
    """Write the body to the file and return its checksum."""
    checksum, done = hashlib.new(algorithm, usedforsecurity=False), 0
    with _opened(url) as response, part.open("wb") as file:
        length = response.headers["Content-Length"]
        total = int(length) if length else None
        progress(0, total)
        while chunk := _read(response, url):
            file.write(chunk)
            checksum.update(chunk)
            done += len(chunk)
            progress(done, total)
    if total is not None and done != total:
        raise UserError(f"{url} broke off after {done:,} of {total:,} bytes. Nothing was kept; try again.")
    return checksum.hexdigest()


def _opened(url: str) -> http.client.HTTPResponse:
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(url, timeout=TIMEOUT)
        return response
    except urllib.error.HTTPError as error:
        raise UserError(f"The mirror has no {url} (it answers {error.code} {error.reason}). Check --mirror.") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UserError(f"{url} cannot be reached: {getattr(error, 'reason', error)}. Check --mirror.") from error


def _read(response: http.client.HTTPResponse, url: str) -> bytes:
    try:
        return response.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"{url} broke off: {error}. Nothing was kept; try again.") from error


def _listed_sha256(url: str, download: Download) -> str:
    """The checksum in the mirror's ``SHA256SUMS`` next to the file: lines of checksum and file name."""
    sums_url, name = url.rpartition("/")[0] + "/SHA256SUMS", PurePosixPath(download.path).name
    with _opened(sums_url) as response:
        lines = _read(response, sums_url).decode("utf-8", "replace").splitlines()
    for line in lines:
        checksum, _, listed = line.partition(" ")
        if listed.lstrip(" *") == name:
            return checksum.lower()
    raise UserError(
        f"{sums_url} does not list {name!r}. This set has no published checksum, so the mirror must list it: "
        "run `sha256sum * > SHA256SUMS` in that folder of the mirror."
    )


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip. Every name is checked before the first file is written; links and devices are refused."""
    opened: zipfile.ZipFile | tarfile.TarFile
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                _write_all([(i.filename, i) for i in opened.infolist() if not i.is_dir()], opened.open, folder)
        else:
            with tarfile.open(archive) as opened:
                members = [(m.name, m) for m in opened.getmembers() if not m.isdir()]
                for name, member in members:
                    if not member.isfile():
                        raise UserError(f"The archive holds {name!r}, which is not a plain file. Nothing was unpacked.")
                _write_all(members, opened.extractfile, folder)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"{archive.stem} is no tar or zip archive that can be read: {error}.") from error


def _write_all(members: list[tuple[str, Any]], open_member: Callable[[Any], Any], folder: Path) -> None:
    for name, _ in members:
        path = PurePosixPath(name)
        inside = (folder / path).resolve().is_relative_to(folder.resolve())
        if not inside or ".." in path.parts or "\\" in name:
            raise UserError(f"The archive holds {name!r}, which would land outside {folder}. Nothing was unpacked.")
    for name, member in members:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_member(member) as source:
            write_whole(target, partial(_copy, source), durable=False)


def _copy(source: IO[bytes], target: Path) -> None:
    with target.open("wb") as file:
        shutil.copyfileobj(source, file, CHUNK)


def _silent(name: str, done: int, total: int | None) -> None:
    pass
