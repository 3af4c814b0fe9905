"""A model's outputs for many rows, in one compiled call that holds no GIL."""

from collections.abc import Callable
from typing import Any

from polytempo.core.compiled import compiled
from polytempo.learn.fused.compiling import SETTINGS, sources
from polytempo.learn.fused.moving import move
from polytempo.learn.fused.passes import Workspace, forward, pack_all


def _compiled(files: str) -> Callable[..., Any]:
    def write_outputs(stages, workspace, w, x, tokens, rows, batch, outputs):
        """Fill ``outputs``, classes side by side, in batches; False if a word is none of the model's."""
        assert len(files) > 0
        m = Workspace(*workspace)
        pack_all(stages, w, m.packed)
        last = stages[len(stages) - 1]
        for first in range(0, len(rows), batch):
            batch_rows = rows[first : first + batch]
            if not forward(stages, w, m, x, tokens, batch_rows):
                return False
            for b in range(len(batch_rows)):
                begin = last.target + b * last.target_pitch
                move(outputs, (first + b) * last.filters, 1, m.frames, begin, 1, last.filters)
        return True

    return compiled(**SETTINGS)(write_outputs)


write_outputs = _compiled(sources())
