"""Clients under the rule ``jury``, and what their juries say."""

from dataclasses import replace

import numpy as np

from polytempo_client.personal.jury import Rows
from polytempo_client.personal.rule import ENOUGH_SOLO_TASKS, SOLO_TASKS, Beginning, ClientMemory, remembered
from polytempo_client.personal.told import JuryScores


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


ANY = ClientMemory(floats(1), floats(1))
SOLOIST = replace(ANY, numbers={SOLO_TASKS: ENOUGH_SOLO_TASKS})


def scores(rows: int, errors: tuple[float, ...], briers: tuple[float, ...], changed: bool = False) -> JuryScores:
    return JuryScores(rows, errors, briers, changed)


NO_JURY = scores(0, (0,) * 4, (0,) * 4)


def after_training(
    memory: ClientMemory | None, trained: float, known: list[int], changed: bool = False
) -> ClientMemory:
    """What a client keeps of a task that was no rehearsal."""
    rows = Rows(np.zeros(0, np.int64), np.zeros(0, np.int64), np.array(known), changed)
    return remembered(Beginning(memory=memory), floats(trained), rows, _nobody_asks)


def _nobody_asks(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    raise AssertionError("The jury has nothing to say here.")
