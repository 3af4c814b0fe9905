"""What papers show, as experiments: our figures beside theirs."""

from polytempo.bench import casa as _casa  # noqa: F401  registers its benchmarks
from polytempo.bench import cdfl as _cdfl  # noqa: F401
from polytempo.bench import compression as _compression  # noqa: F401
from polytempo.bench import echopfl as _echopfl  # noqa: F401
from polytempo.bench import echopfl_drift as _echopfl_drift  # noqa: F401
from polytempo.bench import fedcompass as _fedcompass  # noqa: F401
from polytempo.bench import pace as _pace  # noqa: F401
from polytempo.bench import robust as _robust  # noqa: F401
from polytempo.bench.bench import Bench, Case, Figure, Table, benches, part_of, quick_form
from polytempo.bench.results import run_bench

__all__ = ["Bench", "Case", "Figure", "Table", "benches", "part_of", "quick_form", "run_bench"]
