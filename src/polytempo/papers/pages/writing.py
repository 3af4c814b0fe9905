"""Which parts stand on which page, and writing them."""

from pathlib import Path

from polytempo.core.errors import UserError
from polytempo.papers.claims.claims import known_claims
from polytempo.papers.claims.ledger import ledger
from polytempo.papers.claims.verdicts import Results
from polytempo.papers.pages.ahead import ahead_part
from polytempo.papers.pages.claims_part import PICTURE, claims_part, overview_part
from polytempo.papers.pages.parts import with_parts, without_superseded
from polytempo.papers.pages.picture import ledger_picture
from polytempo.papers.pages.tables_part import Drawings, is_measured, tables_part


def made_pages(directory: Path) -> dict[Path, str]:
    """All pages below a directory as they should be, and the drawings that they show."""
    results = Results()
    drawings: Drawings = {PICTURE: ledger_picture(ledger(results=results))}

    def make(name: str) -> str:
        kind, _, paper = name.partition(" ")
        if kind == "ledger":
            return overview_part(ledger(results=results))
        if kind == "claims":
            return claims_part(ledger(paper, results))
        if kind == "ahead":
            return ahead_part(next(one for one in known_claims().papers if one.name == paper), results)
        if kind == "tables":
            return tables_part(paper, results, drawings)
        raise UserError(f"There is no part {name!r} of a page. Expected ledger, or claims, ahead or tables of a paper.")

    pages = {}
    for path in sorted(directory.glob("*.md")):
        page = without_superseded(path.read_text(), lambda bench, table: is_measured(bench, table, results))
        pages[path] = with_parts(page, make)
    return pages | {directory / name: drawn for name, drawn in drawings.items()}


def write_pages(directory: Path) -> list[Path]:
    """Write what is not as it should be; the files that changed. Drawings that no page shows any more are deleted."""
    pages = made_pages(directory)
    changed = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    for path in changed:
        path.parent.mkdir(exist_ok=True)
        path.write_text(pages[path])
    for path in left_over(directory, pages):
        path.unlink()
    return changed


def left_over(directory: Path, pages: dict[Path, str]) -> list[Path]:
    """Drawings that no page shows."""
    return [path for path in sorted(directory.glob("figures/*.svg")) if path not in pages]
