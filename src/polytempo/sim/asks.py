"""Clients that ask when they want: each holds the order that brought its model until its policy makes it train."""

from torch import from_numpy

from polytempo.learn.asking import Sample, sampled, watching
from polytempo.sim.training import Training
from polytempo.sim.world import World
from polytempo_client.asking.policies import Asking, reason, wait


class Asks:
    """The policy of all clients, in their world."""

    def __init__(self, asking: Asking, world: World) -> None:
        self._asking, self._world = asking, world

    def wait(self, training: Training, trained_on: int) -> float:
        """Seconds until the client asks, or looks at its data the next time; who watches and never trained asks at
        once."""
        at_once = self._asking.watches and trained_on < 0
        return 0.0 if at_once else wait(self._asking, self._world.seed, training.client, training.flight.count)

    def reason(self, training: Training, trained_on: int, generation: int) -> str | None:
        """Why the client asks now, if it does: ``trained_on`` is the generation of the data that it last trained on,
        -1 if it never has."""
        before = None if trained_on < 0 else self._sample(training, trained_on, 0)
        now = self._sample(training, generation, training.looks)
        seen = watching(self._world.learner.scorer, training.flight.model)
        return reason(self._asking, seen, before, now, training.looks)

    def _sample(self, training: Training, generation: int, look: int) -> Sample:
        client = training.client
        data = self._world.federation.client(client, generation)
        return sampled(
            self._world.x, from_numpy(data.y), data.train, self._world.seed, client, training.flight.count, look
        )
