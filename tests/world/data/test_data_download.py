"""Downloads from a mirror on this machine: whole and checked, or nothing."""

import functools
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from polytempo.core.errors import UserError
from polytempo.world.data import datasets, load_dataset
from polytempo.world.data.download import get_dataset
from polytempo.world.data.sources import Download
from support.data_files import write_ag_news, write_cifar10, write_harbox, write_mnist, write_uci_har


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if "/broken/" not in self.path:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"only this")
        return None

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A mirror's address and its folder."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("POLYTEMPO_MIRROR", raising=False)
    folder = tmp_path / "mirror"
    folder.mkdir()
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def publish(path: Path, content: bytes) -> None:
    """Put a file on the mirror and list it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    (path.parent / "SHA256SUMS").write_text(f"{hashlib.sha256(content).hexdigest()}  {path.name}\n")


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(folder: Path, link: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, folder.name)
        if link:
            member = tarfile.TarInfo("link")
            member.type, member.linkname = tarfile.SYMTYPE, link
            archive.addfile(member)
    return buffer.getvalue()


def with_downloads(monkeypatch: pytest.MonkeyPatch, name: str, *downloads: Download) -> None:
    monkeypatch.setitem(datasets._things, name, replace(datasets[name], downloads=downloads))


def test_files_with_the_published_checksum_are_kept_and_can_be_loaded(
    tmp_path: Path, mirror: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = mirror
    write_mnist(folder / "mnist")
    paths = [download.path for download in datasets["mnist"].downloads]
    sums = [hashlib.md5((folder / path).read_bytes()).hexdigest() for path in paths]
    with_downloads(monkeypatch, "mnist", *map(Download, paths, sums))
    seen: list[tuple[str, int, int | None]] = []
    get_dataset("mnist", tmp_path / "data", url, lambda *progress: seen.append(progress))
    assert files_in(tmp_path / "data") == sorted(paths)
    assert len(load_dataset("mnist", tmp_path / "data")) == 10
    size = (folder / paths[0]).stat().st_size
    assert seen[:2] == [("train-images-idx3-ubyte.gz", 0, size), ("train-images-idx3-ubyte.gz", size, size)]


def test_a_wrong_checksum_leaves_nothing_and_shows_both(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    url, folder = mirror
    write_mnist(folder / "mnist")
    actual = hashlib.md5((folder / "mnist/train-images-idx3-ubyte.gz").read_bytes()).hexdigest()
    with pytest.raises(UserError, match=f"wrong checksum: md5 {actual}, expected f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        get_dataset("mnist", tmp_path / "data", url)
    assert files_in(tmp_path / "data") == []


def test_a_wrong_checksum_leaves_the_old_file(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    url, folder = mirror
    write_ag_news(folder / "ag_news", "train.csv", [(1, "not the", "original")])
    write_ag_news(tmp_path / "ag_news", "train.csv", [(1, "the", "old")])
    with pytest.raises(UserError, match="wrong checksum"):
        get_dataset("ag-news", tmp_path, url)
    assert "old" in (tmp_path / "ag_news/train.csv").read_text()


def test_a_file_that_the_mirror_lacks_is_named(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    with pytest.raises(UserError, match=r"no http://.*/mnist/train-images-idx3-ubyte\.gz \(it answers 404"):
        get_dataset("mnist", tmp_path / "data", mirror[0])
    assert files_in(tmp_path / "data") == []


def test_a_download_that_breaks_off_leaves_nothing(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    with pytest.raises(UserError, match="broke off"):
        get_dataset("mnist", tmp_path / "data", mirror[0] + "/broken")
    assert files_in(tmp_path / "data") == []


def test_an_interrupted_download_leaves_nothing(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    write_mnist(mirror[1] / "mnist")

    def interrupt(*progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get_dataset("mnist", tmp_path / "data", mirror[0], interrupt)
    assert files_in(tmp_path / "data") == []


def test_a_set_without_a_published_checksum_uses_the_mirrors_list(
    tmp_path: Path, mirror: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = mirror
    write_uci_har(tmp_path / "UCI HAR Dataset")
    files = files_in(tmp_path / "UCI HAR Dataset")
    content = zipped({f"UCI HAR Dataset/{file}": (tmp_path / "UCI HAR Dataset" / file).read_bytes() for file in files})
    publish(folder / "uci-har/UCI HAR Dataset.zip", content)
    monkeypatch.setenv("POLYTEMPO_MIRROR", url)
    get_dataset("uci-har", tmp_path / "data")
    assert files_in(tmp_path / "data") == [f"UCI HAR Dataset/{file}" for file in files]
    assert len(load_dataset("uci-har", tmp_path / "data")) == 4
    (folder / "uci-har/SHA256SUMS").write_text("0" * 64 + "  other.zip\n")
    with pytest.raises(UserError, match=r"does not list 'UCI HAR Dataset\.zip'"):
        get_dataset("uci-har", tmp_path / "data")


def test_a_tar_archive_is_unpacked_and_removed(
    tmp_path: Path, mirror: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = mirror
    write_cifar10(tmp_path / "cifar-10-batches-py")
    publish(folder / "cifar10/cifar-10-python.tar.gz", tarred(tmp_path / "cifar-10-batches-py"))
    with_downloads(monkeypatch, "cifar10", replace(datasets["cifar10"].downloads[0], md5=None))
    get_dataset("cifar10", tmp_path / "data", url)
    assert files_in(tmp_path / "data") == sorted(datasets["cifar10"].files)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-batches-py"]
    assert len(load_dataset("cifar10", tmp_path / "data")) == 12


@pytest.mark.parametrize("name", ["../outside.txt", "/outside.txt", "harbox/../../outside.txt", "..\\outside.txt"])
def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path, mirror: tuple[str, Path], name: str) -> None:
    url, folder = mirror
    publish(folder / "harbox/harbox.zip", zipped({"harbox/u/good_train.txt": b"1", name: b"bad"}))
    with pytest.raises(UserError, match="would land outside"):
        get_dataset("harbox", tmp_path / "data", url)
    assert files_in(tmp_path / "data") == []


def test_an_archive_with_a_link_or_without_sense_is_refused(tmp_path: Path, mirror: tuple[str, Path]) -> None:
    url, folder = mirror
    write_harbox(tmp_path / "harbox")
    publish(folder / "harbox/harbox.zip", tarred(tmp_path / "harbox", link="/etc"))
    with pytest.raises(UserError, match="not a plain file"):
        get_dataset("harbox", tmp_path / "data", url)
    publish(folder / "harbox/harbox.zip", b"nonsense")
    with pytest.raises(UserError, match=r"harbox\.zip is no tar or zip archive"):
        get_dataset("harbox", tmp_path / "data", url)
    assert files_in(tmp_path / "data") == []


def test_without_a_mirror_the_error_says_how_to_set_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYTEMPO_MIRROR", raising=False)
    with pytest.raises(UserError) as error:
        get_dataset("mnist", tmp_path)
    for part in ("--mirror", "POLYTEMPO_MIRROR", "MIRROR/mnist/t10k", f"{tmp_path}/mnist/t10k-labels-idx1-ubyte.gz"):
        assert part in str(error.value)
    with pytest.raises(UserError, match="is no web address"):
        get_dataset("mnist", tmp_path, "/some/folder")
    with pytest.raises(UserError, match="needs no download"):
        get_dataset("digits", tmp_path)


def test_a_mirror_that_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:1/mnist/.* cannot be reached"):
        get_dataset("mnist", tmp_path, "http://127.0.0.1:1")
