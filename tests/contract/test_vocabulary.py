"""One word per thing: the glossary is in order, and no word that it retires comes back as a public name."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from polytempo.cli import main as cli
from support import CLIENT, PACKAGE, ROOT, named_in_docs

GLOSSARY = (ROOT / "docs/glossary.md").read_text()
WORDS, RETIRED_WORDS = GLOSSARY.split("## Retired words")


@dataclass(frozen=True)
class Retired:
    """A word that is not to come back."""

    word: str
    kinds: tuple[str, ...] = ()
    """Only as this kind of name; empty: as any."""
    only_in: str = ""
    """Retired only in files whose path matches."""
    but_in: str = "nowhere at all"
    """Files whose path matches may use it."""
    but_for: tuple[str, ...] = ()
    """Names that may use it."""


RETIRED = [
    Retired("Method", ("class",)),
    Retired("Outcome", ("class",)),
    Retired("Task", ("class",), only_in=r"^learn/"),
    Retired("handed"),
    Retired("heard"),
    Retired("only_learns"),
    Retired("leading_nowhere"),
    Retired("own_delta"),
    Retired("own_weights"),
    Retired("place"),
    Retired("said"),
    Retired("well"),
    Retired("sent_away"),
    Retired("send_away"),
    Retired("taken_back"),
    Retired("take_back"),
    Retired("door"),
    Retired("doors"),
    Retired("gate"),
    Retired("conduct"),
    Retired("echo", but_in=r"echo|^strategies/parts/(refinement|assignment)"),
    Retired("multicast", but_in=r"pace|buffered_collaboration", but_for=("multicasts",)),
    Retired("branch_of(client)", ("signature",)),
]


@dataclass(frozen=True)
class Name:
    """A public name, and where it is."""

    kind: str
    text: str
    where: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.where}:{self.line}: {self.kind} {self.text}"


def words(text: str) -> str:
    """A name as lower-case words between underscores: ``LoginThrottle`` and ``--login-throttle`` become
    ``_login_throttle_``."""
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text)
    return f"_{re.sub(r'[^a-z0-9()]+', '_', separated.lower())}_"


def uses(name: Name, retired: Retired) -> bool:
    if retired.kinds and name.kind not in retired.kinds:
        return False
    if retired.only_in and not re.search(retired.only_in, name.where):
        return False
    if re.search(retired.but_in, name.where) or name.text in retired.but_for:
        return False
    if retired.kinds:
        return name.text == retired.word
    forms = (retired.word, f"{retired.word}s") if retired.word in ("echo", "multicast") else (retired.word,)
    return any(f"_{form}_" in words(name.text) for form in forms)


FILES = [path for root in (PACKAGE, CLIENT) for path in sorted(root.rglob("*.py")) if not path.stem.endswith("_pb2")]


def where_is(path: Path) -> str:
    """A file as the docs name it."""
    return str(path.relative_to(CLIENT.parent if CLIENT in path.parents else PACKAGE))


def public(text: str) -> bool:
    return not text.startswith("_")


def names_in(path: Path) -> Iterator[Name]:
    """Public names that a file defines: itself, classes, functions, attributes, keys of records, log events."""
    where = where_is(path)
    yield Name("module", path.parent.name if path.stem == "__init__" else path.stem, where)
    for node in ast.walk(ast.parse(path.read_text())):
        for kind, text in _names_of(node):
            if public(text):
                yield Name(kind, text, where, getattr(node, "lineno", 0))


def _names_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ClassDef):
        yield "class", node.name
        for part in node.body:
            targets = [part.target] if isinstance(part, ast.AnnAssign) else getattr(part, "targets", [])
            yield from (("field", target.id) for target in targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield "function", node.name
        asked = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
        yield "signature", f"{node.name}({asked[0] if asked else ''})"
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield "attribute", node.attr
    elif isinstance(node, ast.Dict):
        keys = (key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
        yield from (("key", key) for key in keys)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "log":
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield "log event", first.value
        yield from (("log field", keyword.arg) for keyword in node.keywords if keyword.arg)


def names_of_the_command_line() -> Iterator[Name]:
    for command in get_command(cli.app).commands.values():  # type: ignore[attr-defined]
        for one in getattr(command, "commands", {"": command}).values():
            yield Name("command", one.name, "cli")
            yield from (Name("option", option, f"cli {one.name}") for part in one.params for option in part.opts)


def names_of_the_protocol() -> Iterator[Name]:
    for path in CLIENT.rglob("*.proto"):
        where = where_is(path)
        for name in re.findall(r"^\s*(?:message|oneof|enum|rpc)\s+(\w+)|(\w+)\s*=\s*\d+;", path.read_text(), re.M):
            yield Name("protocol", "".join(name), where)


def all_names() -> list[Name]:
    in_code = [name for path in FILES for name in names_in(path)]
    return [*in_code, *names_of_the_command_line(), *names_of_the_protocol()]


NAMES = all_names()


@pytest.mark.parametrize("retired", RETIRED, ids=lambda retired: retired.word)
def test_a_retired_word_is_no_public_name(retired: Retired) -> None:
    found = [str(name) for name in NAMES if uses(name, retired)]
    assert not found, "\n".join([f"{retired.word!r} is retired (docs/glossary.md):", *found])


@pytest.mark.parametrize(
    ("name", "word", "found"),
    [
        (Name("class", "Gate", "serve/x.py"), "gate", True),
        (Name("function", "aggregate", "strategies/x.py"), "gate", False),
        (Name("attribute", "last_heard", "serve/x.py"), "heard", True),
        (Name("log event", "client sent away", "serve/x.py"), "sent_away", True),
        (Name("option", "--send-away", "cli serve"), "send_away", True),
        (Name("class", "Task", "learn/job.py"), "Task", True),
        (Name("class", "Task", "polytempo_client/protocol/tasks.py"), "Task", False),
        (Name("class", "EchoPredictor", "strategies/parts/echo_predictor.py"), "echo", False),
        (Name("function", "echoes", "sim/x.py"), "echo", False),
        (Name("function", "echo", "sim/x.py"), "echo", True),
        (Name("signature", "branch_of(client)", "x.py"), "branch_of(client)", True),
        (Name("signature", "branch_of(update)", "x.py"), "branch_of(client)", False),
        (Name("field", "multicasts", "sim/result.py"), "multicast", False),
        (Name("field", "multicast_size", "sim/result.py"), "multicast", True),
    ],
    ids=str,
)
def test_names_are_taken_apart_into_words(name: Name, word: str, found: bool) -> None:
    assert uses(name, next(retired for retired in RETIRED if retired.word == word)) == found


SHARED = {
    "Assignment": "an order with what decides its result, and a method's rule for clusters: the glossary has both",
    "Graph": "a strategy keeps it, and a report reads what a run recorded of it",
    "Network": "the clients' connections, and EchoPFL's neural network",
    "ProxySets": "strategies say what they need, and learn/ implements it",
    "Work": "a strategy orders it with a schedule of rates, and a client is told the rate",
}
"""Class names that are defined twice, and why."""


def test_one_class_name_is_one_thing() -> None:
    found: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and public(node.name):
                found.setdefault(node.name, []).append(where_is(path))
    assert len(found) > 200
    twice = {name: sorted(files) for name, files in found.items() if len(files) > 1}
    assert twice.keys() == SHARED.keys(), twice


def test_every_source_of_names_is_looked_at() -> None:
    kinds = {name.kind for name in NAMES}
    assert kinds >= {"module", "class", "function", "field", "attribute", "key", "log event", "option", "protocol"}


# The glossary.


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def test_the_glossary_is_in_alphabetical_order_and_says_where_each_thing_lives() -> None:
    entries = rows(WORDS)
    found = [word.lower() for word, _, _ in entries]
    assert len(found) > 100
    assert found == sorted(set(found))
    for word, meaning, where in entries:
        assert meaning.endswith("."), word
        for path in re.findall(r"`([^`]+)`", where):
            assert named_in_docs(path).exists(), f"{word}: {path}"


ELSEWHERE = {
    "cluster": "what the world sets aside of one",
    "download": "a file of a mirror",
    "part": "of a file of tensors",
    "round": "of one tier, FedAT's",
    "sample": "some rows of a client's data, for an asking policy",
}
"""Words whose class is not the thing that the glossary means: what the class is."""


def defined_in(where: str, kind: str) -> set[str]:
    """What the files that a cell of the glossary names define of this kind."""
    paths = [named_in_docs(path) for path in re.findall(r"`([^`]+)`", where)]
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    return {name.text for file in files for name in names_in(file) if name.kind == kind}


def test_what_the_glossary_names_is_defined_where_it_says() -> None:
    named = 0
    for word, meaning, where in rows(WORDS):
        for name in re.findall(r"`([A-Z]\w+)`", meaning):
            assert name in defined_in(where, "class"), f"{word}: {name} is not in {where}"
            named += 1
        for name in re.findall(r"`(\w+)\(\w*\)`", meaning):
            assert name in defined_in(where, "function"), f"{word}: {name}() is not in {where}"
            named += 1
    assert named >= 4


def test_a_class_that_bears_a_word_of_the_glossary_lives_where_the_row_says() -> None:
    everywhere = {name.text for name in NAMES if name.kind == "class"}
    checked = 0
    for word, _, where in rows(WORDS):
        name = "".join(part.capitalize() for part in re.split("[ -]", word))
        if name in everywhere and word not in ELSEWHERE:
            assert name in defined_in(where, "class"), f"{word}: {name} is not in {where}"
            checked += 1
    assert checked > 30


def test_the_glossary_names_every_retired_word() -> None:
    listed = re.findall(r"`([^`]+)`", RETIRED_WORDS)
    assert {retired.word for retired in RETIRED} <= set(listed)
    assert {word for word in listed if word != "learn"} <= {retired.word for retired in RETIRED}
