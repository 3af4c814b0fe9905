"""Every state that a power cut may leave of a recorded life is one that the service comes back from, with all that was
acknowledged. The suite looks at some states, ``make crash-states`` at thousands."""

import hashlib
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from polytempo.core.errors import UserError
from polytempo.serve.journal import opening
from polytempo.serve.process.backup import restore
from support import file_record
from support.crash_states import Disk, Tree, write_tree
from support.file_record import EXHAUSTIVE, Operation, Recorded, compiler_or_skip, record
from support.lives import BACKUP, LIVES, MARKS, RESTORED, SERVICE, STRATEGY, settings
from support.serving import restarted

SAMPLED = 100
"""Moments of each life that the suite looks at, in one state each."""
RANDOM_STATES = 8
"""Of each moment, where all are looked at; beside those that are not random."""


@dataclass
class Promised:
    """What has been promised up to a moment."""

    service: set[str] = field(default_factory=set)
    """Digests, of which the service has one."""
    copies: dict[str, str] = field(default_factory=dict)
    """Digest of the backup, and of the service made from it."""

    def take(self, kind: str, digest: str) -> None:
        if kind == "is":
            self.service = {digest}
        elif kind == "may":
            self.service = self.service | {digest}
        elif kind in ("backup", "restored"):
            self.copies = self.copies | {kind: digest}


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, where there is such a thing: thousands of services are begun in it."""
    within = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=within if os.access(within, os.W_OK) else None) as directory:
        yield Path(directory)


@pytest.mark.parametrize(("everything", "ends"), [(False, pytest.skip.Exception), (True, pytest.fail.Exception)])
def test_without_a_compiler_the_suite_says_so_and_a_search_of_all_states_fails(
    monkeypatch: pytest.MonkeyPatch, everything: bool, ends: type[BaseException]
) -> None:
    monkeypatch.setattr(file_record, "EXHAUSTIVE", everything)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ends, match="NO POWER CUT WAS TRIED"):
        compiler_or_skip()


def test_the_service_comes_back_with_all_that_was_acknowledged_whatever_a_power_cut_leaves(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = record(memory, "-m", "support.lives")
    assert recorded.exit_code == 0
    versions = opening.code_versions(settings(recorded.root / "plain"))
    monkeypatch.setattr(opening, "code_versions", lambda _: versions)  # which reads the whole package each time
    looked_at, bad = Counter[str](), list[str]()
    for name in LIVES:
        root = recorded.root / name
        for number, tree, promised in states(name, operations_of(recorded, name), root):
            looked_at[name] += 1
            with tempfile.TemporaryDirectory(dir=memory) as found:
                write_tree(tree, Path(found))
                wrong = broken_promise(Path(found), promised, root)
            bad += [] if wrong is None else [f"{name}, operation {number}: {wrong}"]
    print(f"\n{sum(looked_at.values())} states ({dict(looked_at)}), {len(bad)} bad:", *bad[:20], sep="\n")
    assert bad == []
    assert min(looked_at.values()) > SAMPLED / 4


def digest_of_backup(found: Path) -> str:
    return restore(found / BACKUP, found / "again", allowed=[STRATEGY], unsigned=True).digest


def operations_of(recorded: Recorded, name: str) -> list[Operation]:
    """Those of one life, which begins when its directory is made."""
    paths = {str(recorded.root / each).encode() for each in LIVES}
    begin = [i for i, each in enumerate(recorded.operations) if each.kind == "m" and each.payload in paths]
    own = next(i for i in begin if recorded.operations[i].payload == str(recorded.root / name).encode())
    operations = recorded.operations[own + 1 : min((i for i in begin if i > own), default=None)]
    check_complete(operations, recorded.root / name)
    return operations


def check_complete(operations: list[Operation], root: Path) -> None:
    """What was done in a way that the recorder does not see would be missing in the files."""
    disk, _ = [*moments(operations, root)][-1]
    for path, content in disk.left(lambda change: True).items():
        assert content is None or (root / path).read_bytes() == content, f"{path} was changed unseen"


def moments(operations: list[Operation], root: Path) -> Iterator[tuple[Disk, Promised]]:
    """The disk after each operation of a life, and what had been promised by then."""
    digests = [json.loads(each.payload)[1] for each in operations if each.payload.startswith(b'["is"')]
    disk, promised = Disk(root), Promised({digests[0]})
    for operation in operations:
        written = disk.take(operation)
        if written is not None and written[0] == MARKS:
            kind, digest = json.loads(written[1])
            promised.take(kind, digest)
            if kind == "process":
                disk.end_process()
        yield disk, promised


def states(name: str, operations: list[Operation], root: Path) -> Iterator[tuple[int, Tree, Promised]]:
    """Different ones, each with the number of the last operation before it."""
    rng, known = random.Random(name), set[tuple[str, ...]]()
    changing = [number for number, operation in enumerate(operations) if operation.kind != "c"]
    chosen = set(changing if EXHAUSTIVE else rng.sample(changing, SAMPLED))
    for number, (disk, promised) in enumerate(moments(operations, root)):
        found = [*disk.states(rng, RANDOM_STATES if EXHAUSTIVE else 1)] if number in chosen else []
        for tree in found if EXHAUSTIVE or not found else [rng.choice(found)]:
            tree.pop(MARKS, None)
            key = digest_of(tree), *sorted(promised.service), *promised.copies
            if key not in known:
                known.add(key)
                yield number, tree, promised


def digest_of(tree: Tree) -> str:
    sha = hashlib.sha256()
    for path, content in sorted(tree.items()):
        sha.update(f"{path} {-1 if content is None else len(content)} ".encode() + (content or b""))
    return sha.hexdigest()


def broken_promise(found: Path, promised: Promised, root: Path) -> str | None:
    """What is wrong with the files that a power cut left."""
    copies = promised.copies
    try:
        if restarted(found / SERVICE, settings(root)) not in promised.service:
            return "the service has a state that it never had, or lost what was acknowledged"
        if "restored" in copies and restarted(found / RESTORED, settings(root)) != copies["restored"]:
            return "the restored service has another state"
        if "backup" in copies and digest_of_backup(found) != copies["backup"]:
            return "the backup has another state"
    except UserError as error:
        return str(error).replace(str(found), "DIR")
    return None
