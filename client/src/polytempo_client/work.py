"""How a client is to train."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Amount:
    """How much to train. Either ``steps`` or ``epochs`` counts; steps win when both are set."""

    steps: int | None = None
    epochs: int | None = 1
    batch_size: int = 10

    def steps_for(self, samples: int) -> int:
        """Local steps on a data set of that size; an epoch's last batch may be partial."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * -(-samples // self.batch_size)


@dataclass(frozen=True, slots=True)
class Work(Amount):
    """How much and how to train, as a task says it."""

    optimizer: str = "sgd"
    """``sgd`` or ``adam``."""
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    stream: int = 0
    """Which random numbers; 0: the usual ones."""
