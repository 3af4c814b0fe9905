"""The report: one HTML file with everything in it, that opens offline and reads well on paper, desk and phone."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from polytempo.core.errors import DISK_ERRORS, PassingError, UserError
from polytempo.report.facts.runs import Runs
from polytempo.report.run import Run
from polytempo.report.sections import (
    alone,
    arrivals,
    clusters,
    collaboration,
    differences,
    drift,
    every_run,
    exchanges,
    figures,
    results,
    settings,
    timelines,
)
from polytempo.report.style import CSS
from polytempo_client.disk.files import write_bytes

SECTIONS = (
    settings.section,
    results.section,
    differences.section,
    alone.section,
    figures.section,
    exchanges.section,
    clusters.section,
    drift.section,
    collaboration.section,
    arrivals.section,
    timelines.section,
    every_run.section,
)


def write_report(runs: Sequence[Run], path: Path, title: str, graph_at: Sequence[float] = ()) -> Path:
    """Write the report on some runs to ``path`` and return it. The same runs always give the same bytes. ``graph_at``
    are the virtual times at which it shows who learns from whom."""
    path = Path(path)
    html = page(runs, title, graph_at)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, html.encode(), durable=False)
    except OSError as error:
        kind = PassingError if error.errno in DISK_ERRORS else UserError
        raise kind(f"Cannot write the report to {path}: {error.strerror}. Choose another path (--out).") from None
    return path


def page(runs: Sequence[Run], title: str, graph_at: Sequence[float] = ()) -> str:
    """The report as HTML text."""
    shown = Runs.of(runs, graph_at)
    sections = "".join(section(shown).html() for section in SECTIONS)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">{settings.lead(shown)}</p>
{sections}</main>
</body>
</html>
"""
