"""When a client with a training loop of its own asks: it holds a task until its policy has a reason to train."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from polytempo_client.asking.policies import Watching, check_private, parse_asking, reason, rows_seen, wait
from polytempo_client.asking.waiting import wait_for_reason
from polytempo_client.errors import UserError
from polytempo_client.logs import log
from polytempo_client.protocol.tasks import Task, Tensors

Data = Callable[[], tuple[np.ndarray, np.ndarray]]
"""() -> the client's inputs and labels as they are now, a row of each per sample."""
RowScore = Callable[[Tensors, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(tensors, x, y) -> for each of these rows the model's loss, and whether it is right (0 or 1)."""


class _Rows(NamedTuple):
    x: np.ndarray
    y: np.ndarray


class AskWhen:
    """For ``Client.run(ask=...)``. ``policy`` as on the command line: ``think:60``, ``every:60``, ``labels:60``,
    ``loss:60``, ``accuracy:60``. The last three look at ``data``, and the last two at what ``score`` says of it."""

    def __init__(self, policy: str, data: Data | None = None, score: RowScore | None = None) -> None:
        self._asking, self._data, self._score = parse_asking(policy), data, score
        self._trained_on: _Rows | None = None
        if self._asking.watches and data is None:
            raise UserError(
                f"Asking by {policy!r} looks at the client's data: give data=, a function that returns x, y."
            )
        if self._asking.kind in ("loss", "accuracy") and score is None:
            raise UserError(f"Asking by {policy!r} needs score=, a function of (tensors, x, y): losses, and 0 or 1.")

    def check_private(self) -> None:
        """UserError where the moment of an update would tell something about the data."""
        check_private(self._asking)

    def wait(self, task: Task, client: int, seed: int, hold: Callable[[Task, float], bool]) -> None:
        """Hold the task until there is a reason, no longer than the server lets it."""
        key = seed, client, task.count

        def look(looks: int) -> str | None:
            return reason(self._asking, self._watching(task), self._trained_on, self._rows(key, looks), looks)

        at_once = self._asking.watches and self._trained_on is None
        why = wait_for_reason(look, lambda: hold(task, wait(self._asking, *key)), at_once)
        if why is not None:
            log("asks", task=task.number, why=why)
        if self._asking.watches:
            self._trained_on = self._rows(key, 0)

    def _rows(self, key: tuple[int, int, int], look: int) -> _Rows:
        if self._data is None:
            return _Rows(np.zeros(0), np.zeros(0))
        x, y = map(np.asarray, self._data())
        if len(x) != len(y):
            raise UserError(f"data() needs a row of x for each label in y: x has {len(x)} rows, y {len(y)}.")
        rows = rows_seen(np.arange(len(y)), *key, look)
        return _Rows(x[rows], y[rows])

    def _watching(self, task: Task) -> Watching[_Rows]:
        """What the model that is held makes of some rows."""

        def scored(rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
            assert self._score is not None
            losses, right = (np.asarray(found, np.float64) for found in self._score(task.held, *rows))
            if losses.shape != (len(rows.y),) or right.shape != (len(rows.y),):
                shapes = f"{losses.shape} and {right.shape}"
                raise UserError(
                    f"score(tensors, x, y) has to return two numbers per row of {len(rows.y)}: got {shapes}."
                )
            return losses, right

        return Watching(lambda rows: rows.y, lambda rows: scored(rows)[0], lambda rows: float(scored(rows)[1].mean()))
