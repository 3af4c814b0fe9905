"""Have a client's data changed? The error of the model that it is sent, on rows of its own, says so."""

from polytempo.core.stateful import Attributes, stateful
from polytempo_client.personal.told import JuryScores

MEMORY = 0.7
"""Share of the old level in the new one."""


@stateful
class ErrorLevels(Attributes):
    """Each client's usual error with the model that it is sent: half the Brier score on the rows of its jury."""

    def __init__(self, jump: float) -> None:
        self.jump = jump
        """By how much an error must exceed the usual one, beside what few rows make likely."""
        self.levels: dict[int, float] = {}

    def has_jumped(self, client: int, jury: JuryScores) -> bool:
        """``E > L_i + jump + m^-1/2``: the client's data have changed. Otherwise ``L_i <- .7 L_i + .3 E``."""
        error = jury.briers[-1] / jury.rows
        usual = self.levels.get(client)
        if usual is not None and error > usual + self.jump + jury.rows**-0.5:
            return True
        self.levels[client] = error if usual is None else MEMORY * usual + (1 - MEMORY) * error
        return False

    def forget(self, client: int) -> None:
        self.levels.pop(client, None)
