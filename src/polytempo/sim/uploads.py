"""What becomes of a client's update on its way to the server: what it trained is not always what it sends."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.flight import Flight
from polytempo.core.model.vectors import tensor_of
from polytempo.learn.learner import is_finite
from polytempo.sim.compression import Compression
from polytempo_client.privacy import Privacy, epsilon, privatised
from polytempo_client.streams import stream


@dataclass(frozen=True)
class Attack:
    """A share of the clients multiply their delta by a factor, a negative one to undo what others learn. They need not
    train for it, and may be faster than they would be otherwise."""

    share: float
    factor: float
    faster: float = 1.0

    def attackers(self, clients: int, seed: int) -> list[int]:
        """Who they are, by number: at least one."""
        count = max(round(self.share * clients), 1)
        return sorted(stream(seed, "attackers").permutation(clients)[:count].tolist())


def parse_attack(text: str) -> Attack:
    """``scaled:0.2`` (ten times too far), ``scaled:0.2:50``, ``sign-flip:0.2``, ``sign-flip:0.2:3``, or with a speed
    behind, ``sign-flip:0.2:3:10``, of clients that are ten times as fast as they would be."""
    kind, *rest = text.split(":")
    signs, factors = {"scaled": 1, "sign-flip": -1}, {"scaled": 10.0, "sign-flip": 1.0}
    try:
        if kind not in signs or not 1 <= len(rest) <= 3:
            raise ValueError
        share, factor, faster = (*map(float, rest), *(factors[kind], 1.0)[len(rest) - 1 :])
        if not (0 < share < 1 and 0 < factor < 1e6 and 1 <= faster <= 1e3):
            raise ValueError
        return Attack(share, signs[kind] * factor, faster)
    except ValueError:
        raise UserError(
            f"Attack {text!r} is not understood. Expected scaled:SHARE:FACTOR or sign-flip:SHARE:FACTOR, with a share "
            "of the clients between 0 and 1 and a positive factor (default 10 and 1), and behind it, if you like, how "
            "many times as fast as otherwise the attackers are (1 to 1000)."
        ) from None


class Uploads:
    """All clients' uploads."""

    def __init__(
        self,
        attack: Attack | None = None,
        clients: int = 0,
        seed: int = 0,
        privacy: Privacy | None = None,
        compression: Compression | None = None,
    ) -> None:
        self.attack, self.privacy, self._seed = attack, privacy, seed
        self.attackers = [] if attack is None else attack.attackers(clients, seed)
        self.compression = compression or Compression()

    def deliver(self, update: Update, flight: Flight, trained: Tensor | None) -> Update | None:
        """What the server gets of what a client trained; ``trained`` are the coordinates that the order let move (None:
        all). None if it holds NaN or Inf: it is refused, and no error is fed back for it."""
        sent = self.sent(update, flight.count, trained)
        return self.compression.deliver(sent, flight, trained) if is_finite(sent.weights) else None

    def sent(self, update: Update, count: int, trained: Tensor | None = None) -> Update:
        """What a client sends, before it is encoded; ``count`` is how many orders it carried out before."""
        if self.privacy is not None:
            update = self._privatised(self.privacy, update, count, trained)
        if self.attack is None or update.client not in self.attackers:
            return update
        return replace(update, weights=torch.add(update.start, update.delta, alpha=self.attack.factor))

    def epsilon(self, updates: int) -> float | None:
        """What so many updates of one client reveal; None where they hide nothing."""
        if self.privacy is None or not self.privacy.noise:
            return None
        return epsilon(updates, self.privacy.noise, self.privacy.delta)

    def _privatised(self, privacy: Privacy, update: Update, count: int, trained: Tensor | None) -> Update:
        if update.answers:
            raise UserError(
                f"This method asks clients about their data, {', '.join(map(repr, update.answers))}, and the answers "
                "would leave them without noise. With privacy, take a method that asks nothing, such as fedasync."
            )
        normals = stream(self._seed, "privacy noise", update.client, count).standard_normal
        mask = None if trained is None else trained.numpy()
        shown = privatised(update.start.numpy(), update.weights.numpy(), privacy, normals, mask)
        return replace(update, weights=tensor_of(shown))
