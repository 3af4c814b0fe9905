"""How the clients of an experiment behave: when they ask, what they send instead of what they trained, and how it is
encoded."""

from dataclasses import dataclass

from polytempo.sim.compression import Compression
from polytempo.sim.uploads import Attack, Uploads, parse_attack
from polytempo_client.asking.policies import Asking, check_private, parse_asking
from polytempo_client.model.encodings import Encoding, parse_encodings
from polytempo_client.privacy import Privacy, parse_privacy


@dataclass(frozen=True)
class Behaviour:
    """The same for all clients, but for attackers."""

    asking: Asking | None = None
    attack: Attack | None = None
    privacy: Privacy | None = None
    encoding: Encoding | None = None
    """Of updates; None: float32."""
    halves: bool = False
    """Are models rounded to half precision on their way to clients?"""

    def uploads(self, clients: int, seed: int, travels: bool) -> Uploads:
        """What becomes of these clients' updates. Where models stay with their clients nothing is done to them."""
        if not travels:
            return Uploads(None, clients, seed)
        return Uploads(self.attack, clients, seed, self.privacy, Compression(self.encoding, self.halves))


def parse_behaviour(ask: str | None, attack: str | None, privacy: str | None, upload: str, download: str) -> Behaviour:
    """The settings of an experiment that are words. UserError says which is not understood."""
    asking = None if ask is None else parse_asking(ask)
    attacking = None if attack is None else parse_attack(attack)
    private = None if privacy is None else parse_privacy(privacy)
    if private is not None and private.noise:
        check_private(asking)
    return Behaviour(asking, attacking, private, *parse_encodings(upload, download))
