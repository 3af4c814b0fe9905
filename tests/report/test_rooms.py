"""Facts know nothing of drawing, drawing nothing of sections, and every section has the same form."""

import ast
import importlib
from pathlib import Path
from typing import get_type_hints

import pytest

import polytempo.report
from polytempo.report.facts.runs import Runs
from polytempo.report.page import SECTIONS
from polytempo.report.sections.markup import Section

ROOT = Path(polytempo.report.__file__).parent
HIDDEN = {
    "facts": ("matplotlib", "polytempo.report.drawing", "polytempo.report.sections", "polytempo.report.table"),
    "drawing": ("polytempo.report.sections", "polytempo.report.table"),
}
FILES = [path for room in HIDDEN for path in (ROOT / room).glob("*.py")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_room_imports_nothing_from_the_rooms_above_it(path: Path) -> None:
    tree = ast.walk(ast.parse(path.read_text()))
    names = [node.module or "" for node in tree if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if name.startswith(HIDDEN[path.parent.name])]


def test_every_section_is_a_function_from_runs_to_a_section_and_on_the_page() -> None:
    names = {path.stem for path in (ROOT / "sections").glob("*.py")} - {"__init__", "markup"}
    sections = [importlib.import_module(f"polytempo.report.sections.{name}").section for name in sorted(names)]
    assert all(get_type_hints(section) == {"runs": Runs, "return": Section} for section in sections)
    assert set(sections) == set(SECTIONS)
