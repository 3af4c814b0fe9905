"""Clients that ask when they want: each holds the order that brought its model until its policy makes it train."""

from torch import Tensor, from_numpy

from polytempo.learn.asking import Asking, Sample, reason, sampled, wait
from polytempo.learn.scoring import Scorer
from polytempo.sim.training import Training
from polytempo.world.federation import Federation


class Asks:
    """The policy of all clients, in their world."""

    def __init__(self, asking: Asking, federation: Federation, scorer: Scorer, x: Tensor, seed: int) -> None:
        self._asking, self._federation, self._scorer, self._x, self._seed = asking, federation, scorer, x, seed

    def wait(self, training: Training, trained_on: int) -> float:
        """Seconds until the client asks, or looks at its data the next time; who watches and never trained asks at
        once."""
        at_once = self._asking.watches and trained_on < 0
        return 0.0 if at_once else wait(self._asking, self._seed, training.client, training.flight.count)

    def reason(self, training: Training, trained_on: int, generation: int) -> str | None:
        """Why the client asks now, if it does: ``trained_on`` is the generation of the data that it last trained on,
        -1 if it never has."""
        before = None if trained_on < 0 else self._sample(training, trained_on, 0)
        now = self._sample(training, generation, training.looks)
        return reason(self._asking, self._scorer, training.flight.model, before, now, training.looks)

    def _sample(self, training: Training, generation: int, look: int) -> Sample:
        client = training.client
        data = self._federation.client(client, generation)
        return sampled(self._x, from_numpy(data.y), data.train, self._seed, client, training.flight.count, look)
