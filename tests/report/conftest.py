"""For the tests of reports."""

import pytest

from polytempo.report.run import Run
from support.synthetic_runs import SHAPES, synthetic_run


@pytest.fixture(scope="session")
def several() -> list[Run]:
    """Four methods with three seeds each."""
    return [synthetic_run(strategy, seed) for strategy in SHAPES for seed in range(3)]
