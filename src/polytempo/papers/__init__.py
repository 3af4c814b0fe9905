"""What papers show, as experiments: our figures beside theirs."""

from polytempo.papers import casa as _casa  # noqa: F401  registers its benchmarks
from polytempo.papers import cdfl as _cdfl  # noqa: F401
from polytempo.papers import compression as _compression  # noqa: F401
from polytempo.papers import concerto as _concerto  # noqa: F401
from polytempo.papers import echopfl as _echopfl  # noqa: F401
from polytempo.papers import echopfl_drift as _echopfl_drift  # noqa: F401
from polytempo.papers import echopfl_promise as _echopfl_promise  # noqa: F401
from polytempo.papers import fedcompass as _fedcompass  # noqa: F401
from polytempo.papers import natural as _natural  # noqa: F401
from polytempo.papers import pace as _pace  # noqa: F401
from polytempo.papers import robust as _robust  # noqa: F401
from polytempo.papers.bench import Bench, Case, Column, Table, benches, part_of, quick_form
from polytempo.papers.tables import run_bench

__all__ = ["Bench", "Case", "Column", "Table", "benches", "part_of", "quick_form", "run_bench"]
