"""What a client sees when it looks at its data: a sample of its rows, and what the model that it holds makes of them.
What it decides by that is in ``polytempo_client/asking``."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from polytempo.learn.scoring import Scorer
from polytempo_client.asking.policies import Watching, rows_seen


class Sample(NamedTuple):
    """Some rows of a client's data."""

    x: Tensor
    """All inputs; ``rows`` says which."""
    y: Tensor
    """The labels of these rows."""
    rows: np.ndarray


def sampled(x: Tensor, labels: Tensor, rows: np.ndarray, seed: int, client: int, count: int, look: int) -> Sample:
    """What the client sees at its look-th look while it holds its count-th model. ``x`` and ``labels`` are those of the
    whole data set."""
    seen = rows_seen(rows, seed, client, count, look)
    return Sample(x, labels[seen], seen)


def watching(scorer: Scorer, model: Tensor) -> Watching[Sample]:
    """What the model that the client holds makes of a sample."""
    return Watching(
        lambda sample: sample.y.numpy(),
        lambda sample: scorer.losses(model, *sample).double().numpy(),
        lambda sample: float(scorer.metric(model, *sample).mean()),
    )
