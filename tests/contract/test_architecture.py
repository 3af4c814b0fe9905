"""The walks of the architecture page lead through files and past functions that exist, to none of them twice."""

import ast
import re

import pytest

from support import ROOT, named_in_docs

TEXT = (ROOT / "docs/architecture.md").read_text()
WALKS = re.findall(r"## A walk: .*?(?=\n## )", TEXT, re.DOTALL)
HOPS = [re.findall(r"^\| `([\w/]+\.py)` \| (.*) \|$", walk, re.MULTILINE) for walk in WALKS]


def test_there_are_two_walks_of_some_length():
    assert [len(hops) > 15 for hops in HOPS] == [True, True]


@pytest.mark.parametrize("hops", HOPS, ids=["run", "push"])
def test_a_walk_visits_no_file_twice(hops):
    files = [file for file, _ in hops]
    assert len(files) == len(set(files))


@pytest.mark.parametrize(
    ("file", "what"), [hop for hops in HOPS for hop in hops], ids=lambda text: text.split(".py")[0]
)
def test_a_hop_names_what_the_file_has(file, what):
    tree = ast.parse(named_in_docs(file).read_text())
    known = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    named = re.findall(r"`(\w+)`", what.split(";")[0])
    assert [name for name in named if name not in known] == []


@pytest.mark.parametrize(
    "name", re.findall(r"^\| `((?:core|sim|serve|learn|polytempo_client)\.[\w.]+)` \|", TEXT, re.MULTILINE)
)
def test_every_type_in_the_table_exists(name):
    module, _, cls = name.rpartition(".")
    assert f"class {cls}" in named_in_docs(f"{module.replace('.', '/')}.py").read_text()
