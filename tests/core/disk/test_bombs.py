"""Files that claim to be more than they are, that never end, or that would run code: each is a sentence, quickly, and
without the memory that it asks for."""

import gzip
import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytempo.core.disk import reading
from polytempo.core.errors import UserError
from polytempo.learn.flat import read_vector
from polytempo.report.run import Run
from polytempo.serve.access.roster import Roster
from polytempo.serve.journal.settings import make_settings
from polytempo.serve.server.operations import read_operations
from polytempo.serve.server.status import read_status
from polytempo.sim.directory import CHECKPOINT, prepare
from polytempo.sim.experiment import read_experiment
from polytempo.world.data import load_dataset
from polytempo.world.data.cifar import read_batch
from polytempo.world.data.idx import read_idx
from polytempo.world.partitions.given import file_clients
from polytempo.world.proxies import read_proxies
from polytempo_client.keeping.kept_task import read_kept
from polytempo_client.session.credentials import read_pem, read_token
from polytempo_client.updates.ledger import read_updates

Read = Callable[[Path], Any]
SOME = 32 << 20
"""Bytes: what a reader may take for a file that it refuses."""


@pytest.fixture(autouse=True)
def _in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine seems to have little, and the test may take no more."""
    monkeypatch.setattr(reading, "memory_limit", lambda: 1 << 20)
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < SOME


def npy_header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": descr, "fortran_order": False, "shape": shape})
    return made.getvalue()


def npz(path: Path, names: tuple[str, ...], content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(f"{name}.npy", content)


NPZ_READERS: list[tuple[Read, tuple[str, ...]]] = [
    (lambda path: load_dataset(str(path)), ("x", "y")),
    (read_proxies, ("x", "y", "cluster")),
    (file_clients, ("train_idx", "train_off", "test_idx", "test_off")),
]
CONTENTS = {
    "a zip bomb": npy_header((8 << 20,), "|u1") + bytes(8 << 20),
    "ten to the fifteen elements": npy_header((10**15,)),
    "elements of no size": npy_header((10**15,), "|S0"),
    "objects": npy_header((1,), "|O") + pickle.dumps([1]),
    "negative sizes": npy_header((-(10**9), -(10**9))),
    "an endless header": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{",
    "a nested header": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"-" * 8999 + b"\n",
    "nothing": b"",
}


@pytest.mark.parametrize(("read", "names"), NPZ_READERS, ids=["data", "proxies", "partition"])
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_bomb_in_an_npz_is_refused(tmp_path: Path, read: Read, names: tuple[str, ...], content: bytes) -> None:
    path = tmp_path / "bomb.npz"
    npz(path, names, content)
    with pytest.raises(UserError, match=r"bomb\.npz"):
        read(path)


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_bomb_as_initial_weights_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bomb.npy").write_bytes(content)
    with pytest.raises(UserError, match=r"bomb\.npy"):
        read_vector(tmp_path / "bomb.npy", 8)


def first_model(path: Path) -> object:
    return make_settings(strategy="fedasync", init=path).first_model()


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SAFETENSORS = {
    "an endless header": struct.pack("<Q", 2**63) + b"{}",
    "more than the file": safetensors({"w": tensor([10**15], 0, 4 * 10**15)}),
    "overlaps": safetensors({"w": tensor([2], 0, 8), "b": tensor([2], 4, 12)}, bytes(12)),
    "many dimensions": safetensors({"w": tensor([1] * 100_000, 0, 4)}, bytes(4)),
    "an overflow": safetensors({"w": tensor([2**62, 2**62, 0, 4], 0, 4)}, bytes(4)),
    "a name twice": safetensors(
        b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        bytes(8),
    ),
    "a nested header": safetensors(b'{"w":' * 50_000 + b"1" + b"}" * 50_000),
    "not a number": safetensors({"w": tensor([1], 0, 4)}, b"\x00\x00\xc0\x7f"),
    "an unknown type": safetensors({"w": tensor([1], 0, 4, "X99")}, bytes(4)),
    "nothing": b"",
}


@pytest.mark.parametrize("content", SAFETENSORS.values(), ids=SAFETENSORS)
def test_a_bomb_as_first_model_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bomb.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"bomb\.safetensors"):
        first_model(tmp_path / "bomb.safetensors")


@pytest.mark.parametrize("content", [*SAFETENSORS.values(), safetensors({"state": tensor([3], 0, 3, "U8")}, b"[[[")])
def test_a_bomb_as_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"versions": {}}))
    (tmp_path / CHECKPOINT).write_bytes(content)
    with pytest.raises(UserError, match="cannot be"):
        prepare(tmp_path, {"versions": {}})


def test_a_checkpoint_of_endless_nesting_is_refused(tmp_path: Path) -> None:
    nested = b'{"tuple":[' * 50_000 + b"]}" * 50_000
    (tmp_path / "config.json").write_text(json.dumps({"versions": {}}))
    whole = safetensors({"state": tensor([len(nested)], 0, len(nested), "U8")}, nested)
    (tmp_path / CHECKPOINT).write_bytes(whole)
    with pytest.raises(UserError, match="cannot be read"):
        prepare(tmp_path, {"versions": {}})


NESTED = b"[" * 200_000


def write_run(directory: Path) -> Path:
    """The least that counts as a run."""
    directory.mkdir()
    for name, content in {
        "config.json": "{}",
        "result.json": "{}",
        "evaluations.jsonl": "",
        "updates.jsonl": "",
    }.items():
        (directory / name).write_text(content)
    return directory


TOML = {
    "nested": b"a = " + NESTED,
    "an endless number": b"seed = " + b"9" * 10_000,
    "a number of 400 digits": b"norm_bound = " + b"9" * 400 + b"\ntime = " + b"9" * 400,
    "bytes that are no text": b"\xff\xfe",
    "too much": b"#" * (17 << 20),
}


@pytest.mark.parametrize("content", TOML.values(), ids=TOML)
@pytest.mark.parametrize("read", [read_operations, lambda path: read_experiment(path, {}, {"strategy": "fedasync"})])
def test_a_bomb_in_toml_is_refused(tmp_path: Path, read: Read, content: bytes) -> None:
    path = tmp_path / "bomb.toml"
    path.write_bytes(content)
    with pytest.raises(UserError):
        read(path)


@pytest.mark.parametrize("content", [NESTED, b"{}", b"[]", b"null", b'{"written": "x"}', b"9" * 10_000, b"\xff"])
@pytest.mark.parametrize("name", ["status.json", "ledger.json", "access.json", "config.json", "result.json"])
def test_json_that_is_something_else_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    directory = write_run(tmp_path / "run") if name in ("config.json", "result.json") else tmp_path
    (directory / name).write_bytes(content)
    read: dict[str, Callable[[], Any]] = {
        "status.json": lambda: read_status(directory),
        "ledger.json": lambda: read_updates(directory / name),
        "access.json": lambda: Roster.read(directory / name),
    }
    if content.startswith(b"{") and name in ("access.json", "config.json", "result.json")[content != b"{}" :]:
        return  # nobody, and nothing that is known
    with pytest.raises(UserError):
        read.get(name, lambda: Run.load(directory))()


def test_rows_of_a_run_that_are_none_are_refused(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    for row in (NESTED, b"[]", b"1"):
        (directory / "updates.jsonl").write_bytes(row)
        with pytest.raises(UserError, match=r"updates\.jsonl"):
            Run.load(directory)


# Pickles.


class Forged:
    """An array of objects whose addresses are the attacker's to choose."""

    def __reduce__(self) -> Any:
        return np.ndarray, ((1,), "O", b"AAAAAAAA")


def laughs() -> list[Any]:
    """A list of ten lists, each of ten, and so on: ten billion numbers in a few bytes."""
    made: list[Any] = [0] * 10
    for _ in range(9):
        made = [made] * 10
    return made


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("labels", [Forged(), laughs(), [Forged()], {"a": 1}, ["x"], [10**30]])
def test_a_forged_pickle_is_refused_and_touches_no_memory(tmp_path: Path, labels: object, protocol: int) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": labels}, protocol))
    with pytest.raises(UserError, match="data_batch_1"):
        read_batch(path, "labels", 10)


def test_a_pickle_that_claims_terabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    for claims in (b"\x80\x04\x8e" + struct.pack("<Q", 2**50), b"\x80\x02G", b"\x80\x02]" + b"(" * 100_000):
        path.write_bytes(claims)
        with pytest.raises(UserError, match="data_batch_1"):
            read_batch(path, "labels", 10)


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    for size in (1 << 19, 2**32 - 1):
        path.write_bytes(gzip.compress(bytes([0, 0, 8, 1]) + struct.pack(">I", size) + bytes(40 << 20), 1))
        tracemalloc.reset_peak()  # what it took to make it
        with pytest.raises(UserError, match=r"images\.gz"):
            read_idx(tmp_path / "images", 1)


# What is large, and says so.


def test_an_array_that_lies_on_disk_as_it_is_may_be_of_any_size(tmp_path: Path) -> None:
    large = np.arange(2 << 20, dtype=np.uint8)
    np.save(tmp_path / "large.npy", large)
    np.savez(tmp_path / "large.npz", x=large)
    (tmp_path / "large").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", len(large)) + large.tobytes())
    assert np.array_equal(reading.read_npy(tmp_path / "large.npy"), large)
    assert np.array_equal(reading.read_npz(tmp_path / "large.npz", ("x",))["x"], large)
    assert np.array_equal(read_idx(tmp_path / "large", 1), large)


def test_a_file_of_holes_may_not(tmp_path: Path) -> None:
    with (tmp_path / "holes.npy").open("wb") as file:
        file.write(npy_header((1 << 40,), "|u1"))
        file.truncate(file.tell() + (1 << 40))
    with pytest.raises(ValueError, match="bytes of memory"):
        reading.read_npy(tmp_path / "holes.npy")


# What is no file.


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("plant", [os.mkfifo, endless, Path.mkdir], ids=["pipe", "endless", "folder"])
@pytest.mark.parametrize(
    "read",
    [
        lambda path: load_dataset(str(path.rename(path.with_suffix(".npz")))) if not path.is_dir() else read_pem(path),
        lambda path: load_dataset(str(path.rename(path.with_suffix(".csv")))) if not path.is_dir() else read_pem(path),
        read_proxies,
        file_clients,
        lambda path: read_vector(path, 8),
        lambda path: make_settings(
            strategy="fedasync", init=path.rename(path.with_suffix(".safetensors"))
        ).first_model(),
        read_operations,
        lambda path: read_batch(path, "labels", 10),
        lambda path: read_idx(path, 1),
        read_token,
        read_pem,
        Roster.read,
        read_updates,
        lambda path: read_status(path.rename(path.with_name("status.json")).parent),
    ],
)
def test_a_pipe_a_device_or_a_folder_keeps_nobody_waiting(
    tmp_path: Path, plant: Callable[[Path], None], read: Read
) -> None:
    path = tmp_path / "planted"
    plant(path)
    with pytest.raises(UserError):
        read(path)


@pytest.mark.parametrize("plant", [os.mkfifo, endless], ids=["pipe", "endless"])
def test_a_kept_task_that_is_no_file_is_left_alone(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    plant(tmp_path / "task")
    assert read_kept(tmp_path / "task") is None
