"""Published tables as experiments: our figures beside the paper's."""

from polytempo.bench.baselines import baselines as _baselines  # noqa: F401  registers itself
from polytempo.bench.bench import Bench, Case, benches, run_bench

__all__ = ["Bench", "Case", "benches", "run_bench"]
