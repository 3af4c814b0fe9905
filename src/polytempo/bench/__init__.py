"""Published tables as experiments: our figures beside the paper's."""

from polytempo.bench.bench import Bench, Case, benches, run_bench
from polytempo.bench.baselines import baselines as _baselines  # noqa: F401  registers itself

__all__ = ["Bench", "Case", "benches", "run_bench"]
