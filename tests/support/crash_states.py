"""What a power cut may leave of recorded file operations.

The model promises less than file systems do:

- A sync of a file makes its content safe, not its name. A sync of a directory makes its names safe, not what lies in
  the files, and not its own name.
- Of what is not safe anything may be there: each write or none, in any order, and of a write any blocks of 512 bytes.
  Changes of one name reach the disk in order, and a rename is one change.
- After a sync that failed, what it should have made safe may be missing for ever: later syncs do not bring it. Only
  what is written again is safe with the next sync.

A process that is killed leaves everything: the system has it."""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from support.file_record import Operation

BLOCK = 512
REBUILT = ("-shm",)
"""Ends of names of files that are rebuilt whatever is in them, and never read by another process."""


@dataclass(eq=False)
class Write:
    at: int
    content: bytes
    state: "State" = "pending"

    def apply(self, content: bytearray) -> None:
        content.extend(bytes(max(0, self.at - len(content))))
        content[self.at : self.at + len(self.content)] = self.content

    def torn(self, rng: random.Random) -> list["Write"]:
        """Some of its blocks."""
        edges = [self.at, *range(self.at // BLOCK * BLOCK + BLOCK, self.at + len(self.content), BLOCK)]
        blocks = [
            replace(self, at=edge, content=self.content[edge - self.at :][: BLOCK - edge % BLOCK]) for edge in edges
        ]
        return [block for block in blocks if rng.random() < 0.5]


@dataclass(eq=False)
class Resize:
    size: int
    grows_only: bool = False
    state: "State" = "pending"

    def apply(self, content: bytearray) -> None:
        if not self.grows_only:
            del content[self.size :]
        content.extend(bytes(max(0, self.size - len(content))))


@dataclass(eq=False)
class File:
    safe: bytearray = field(default_factory=bytearray)
    changes: list[Write | Resize] = field(default_factory=list)

    def fold(self) -> None:
        while self.changes and self.changes[0].state == "safe":
            self.changes.pop(0).apply(self.safe)


@dataclass(eq=False)
class Rename:
    """Of a new file too, which had no name, and of one that goes, which has none afterwards."""

    old: str | None
    new: str | None
    node: "Node | None"
    state: "State" = "pending"

    @property
    def names(self) -> set[str | None]:
        return {self.old, self.new} - {None}

    def apply(self, names: "dict[str, Node]") -> None:
        if self.old is not None:
            names.pop(self.old, None)
        if self.new is not None and self.node is not None:
            names[self.new] = self.node


@dataclass(eq=False)
class Directory:
    safe: "dict[str, Node]" = field(default_factory=dict)
    changes: list[Rename] = field(default_factory=list)
    now: "dict[str, Node]" = field(default_factory=dict)

    def change(self, old: str | None, new: str | None, node: "Node | None") -> None:
        self.changes.append(Rename(old, new, node))
        self.changes[-1].apply(self.now)

    def fold(self) -> None:
        while self.changes and self.changes[0].state == "safe":
            self.changes.pop(0).apply(self.safe)


State = Literal["pending", "safe", "doubtful"]
Node: TypeAlias = File | Directory
Change: TypeAlias = Write | Resize | Rename
Survives: TypeAlias = Callable[[Change], bool | list[Write]]
"""Is a change there that is not safe? Of a write perhaps only some blocks."""
Tree = dict[str, bytes | None]
"""Content by path; None for directories."""


class Disk:
    """The files below ``root``, as recorded operations leave them."""

    def __init__(self, root: Path) -> None:
        self._root, self._top = str(root), Directory()
        self._opened: dict[int, tuple[str, Node]] = {}

    def take(self, operation: Operation) -> tuple[str, bytes] | None:
        """The next operation. If it is a write: to which path, and what."""
        kind, file, number, payload = operation
        if file not in self._opened and not payload.startswith(self._root.encode()):
            return None
        if kind == "o":
            path = payload.decode()
            self._opened[file] = path, self._open(path, number)
        elif kind == "c":
            self._opened.pop(file, None)
        elif kind in "wta":
            path, node = self._opened[file]
            assert isinstance(node, File)
            node.changes.append(Write(number, payload) if kind == "w" else Resize(number, grows_only=kind == "a"))
            return (path.removeprefix(self._root + "/"), payload) if kind == "w" else None
        elif kind in "sf":
            _, node = self._opened[file]
            for change in node.changes:
                if change.state == "pending":
                    change.state = "safe" if kind == "s" else "doubtful"
            node.fold()
        else:
            self._rename(kind, [path.decode() for path in payload.split(b"\0")])
        return None

    def end_process(self) -> None:
        """Its files are closed."""
        self._opened.clear()

    def _open(self, path: str, flags: int) -> Node:
        if path == self._root:
            return self._top
        parent, name = self._parent(path)
        node = parent.now.get(name)
        if node is None:
            node = File()
            parent.change(None, name, node)
        elif flags & os.O_TRUNC and isinstance(node, File):
            node.changes.append(Resize(0))
        return node

    def _rename(self, kind: str, paths: list[str]) -> None:
        parent, name = self._parent(paths[0])
        if kind == "m":
            parent.change(None, name, Directory())
        elif kind == "u":
            parent.change(name, None, None)
        else:
            other, new = self._parent(paths[1])
            assert other is parent, "a rename into another directory is not modelled"
            parent.change(name, new, parent.now[name])

    def _parent(self, path: str) -> tuple[Directory, str]:
        *above, name = path.removeprefix(self._root + "/").split("/")
        node: Node = self._top
        for part in above:
            assert isinstance(node, Directory)
            node = node.now[part]
        assert isinstance(node, Directory)
        return node, name

    def left(self, survives: Survives) -> Tree:
        """The files after a power cut."""
        return dict(_left(self._top, survives, ""))

    def states(self, rng: random.Random, random_states: int) -> Iterator[Tree]:
        """Nothing that is not safe, everything, only names, only contents, all but one change and only one change;
        and random ones of changes, some of them torn."""
        yield self.left(lambda change: False)
        yield self.left(lambda change: True)
        yield self.left(lambda change: isinstance(change, Rename))
        yield self.left(lambda change: not isinstance(change, Rename))
        unsafe = [change for change in _changes(self._top) if change.state != "safe"]
        for one in rng.sample(unsafe, min(len(unsafe), random_states)):
            yield self.left(lambda change, one=one: change is not one)  # type: ignore[misc]
            yield self.left(lambda change, one=one: change is one)  # type: ignore[misc]
        for _ in range(random_states):
            share, tears = rng.choice((0.2, 0.5, 0.8)), rng.choice((0.0, 0.5))
            yield self.left(lambda change, share=share, tears=tears: _by_chance(change, rng, share, tears))  # type: ignore[misc]


def _by_chance(change: Change, rng: random.Random, share: float, tears: float) -> bool | list[Write]:
    if isinstance(change, Write) and rng.random() < tears:
        return change.torn(rng)
    return rng.random() < share


def _left(node: Node, survives: Survives, path: str) -> Iterator[tuple[str, bytes | None]]:
    if isinstance(node, File):
        content = bytearray(node.safe)
        for change in node.changes:
            there = change.state == "safe" or survives(change)
            for part in there if isinstance(there, list) else [change] * there:
                part.apply(content)
        yield path, bytes(content)
        return
    names, missing = dict(node.safe), set[str | None]()
    for renamed in node.changes:
        if renamed.state == "safe" or (survives(renamed) and not renamed.names & missing):
            renamed.apply(names)
        else:
            missing |= renamed.names
    if path:
        yield path, None
    for name, below in names.items():
        if not name.endswith(REBUILT):
            yield from _left(below, survives, f"{path}/{name}" if path else name)


def _changes(node: Node) -> Iterator[Change]:
    yield from node.changes
    if isinstance(node, Directory):
        for below in node.now.values():
            yield from _changes(below)


def write_tree(tree: Tree, to: Path) -> None:
    for name, content in tree.items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)
