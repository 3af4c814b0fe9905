"""Strategies as users write them, which keep something of each client."""

from polytempo.methods import Strategy, Update


class Keeping(Strategy):
    """Never forgets."""

    def setup(self) -> None:
        self.samples: dict[int, int] = {}

    def updated(self, update: Update, now: float) -> None:
        self.samples[update.client] = update.samples
        self.model.mix(update.weights, 0.5)


class Forgetting(Keeping):
    """Forgets."""

    def forget(self, client: int) -> None:
        super().forget(client)
        self.samples.pop(client, None)


class Heir(Forgetting):
    """Forgets as the class that it is derived from."""
