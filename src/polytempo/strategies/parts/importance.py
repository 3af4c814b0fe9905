"""How much of all data is a client's: ``p_i = n_i / n``."""

from polytempo.core.stateful import Attributes, stateful


@stateful
class Importance(Attributes):
    """The members' samples, as far as they have handed in and said how many they have. Until everybody has, the others
    are taken to have as many as those have on average."""

    def __init__(self) -> None:
        self.samples: dict[int, int] = {}
        self.total = 0

    def note(self, client: int, samples: int) -> None:
        self.total += samples - self.samples.get(client, 0)
        self.samples[client] = samples

    def forget(self, client: int) -> None:
        self.total -= self.samples.pop(client, 0)

    def of(self, client: int, members: int) -> float:
        """p_i of a client that has handed in, among this many members."""
        return self.samples[client] * len(self.samples) / (self.total * members)
