"""Concerto: soloists and an orchestra. Everybody keeps a model of its own and uses the mixture of it and a shared model
that suits its data (the personal rule, ``parts/personal.py`` and ``polytempo_client/personal/rule.py``). The server has
one line of models for all and, where clients pull apart clearly, a branch for each group (docs/methods/concerto.md)."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field
from torch import Tensor

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Candidates, Orders, Train
from polytempo.core.splits import Split
from polytempo.strategies.base.strategy import Strategy, strategy
from polytempo.strategies.parts.cosines import nearest
from polytempo.strategies.parts.directions import Directions
from polytempo.strategies.parts.levels import ErrorLevels
from polytempo_client.personal.told import TUTTI, Personal

ALL = 0
"""The number of everybody's line."""
REHEARSALS = 3
"""A client's first tasks with everybody's line, and with a new branch, start from it alone. A new line serves badly. If
all went on from their own models, which are better, they would not improve it."""


@strategy("concerto")
class Concerto(Strategy):
    """One line of models for all, branches for groups of clients, and clients that decide how much of it they take."""

    needs_personal = True

    rho: float = Field(3.0, gt=0, description="steps of a line, in full ones, while all who train from it hand in once")
    gap: float = Field(0.4, gt=0, le=1, description="eigengap from which on clients fall apart clearly")
    smallest: int = Field(3, ge=2, description="clients that a branch has at least when it begins")
    coverage: float = Field(0.9, gt=0, le=1, description="share of the clients heard of before the line may branch")
    jump: float = Field(0.25, gt=0, le=1, description="rise of a client's error from which on its data have changed")

    def setup(self) -> None:
        self.lines: dict[int, Branch] = {ALL: self.model}
        self.home: dict[int, int] = {}
        """Client -> its branch, once there are branches."""
        self.training: dict[int, int] = {}
        """Client in training -> the line that it was sent."""
        self.lost: dict[int, bool] = {}
        """Clients whose data have changed: they choose a branch anew."""
        self.levels = ErrorLevels(self.jump)
        self.directions = Directions()
        """Until the line branches: the clients' pulls on it."""
        self.pulls: dict[int, Tensor] = {}
        """Branch -> the common pull of its first members."""
        self.rehearsals: dict[int, int] = {}
        """Client -> tasks in which it still starts from its line alone, once it has done one."""
        self.since_compared = 0
        """Updates since the clients' pulls were last compared."""
        self.split: list[Split] = []

    # Events.

    def left(self, client: int, now: float) -> Orders:
        self.training.pop(client, None)
        return super().left(client, now)

    def forget(self, client: int) -> None:
        self.home.pop(client, None)
        self.lost.pop(client, None)
        self.rehearsals.pop(client, None)
        self.levels.forget(client)
        self.directions.forget(client)
        super().forget(client)

    def updated(self, update: Update, now: float) -> Orders:
        line = self._place(update)
        tau = self.tau(update)
        for number in dict.fromkeys((ALL, line if update.client in self.home else ALL)):
            self.lines[number].step(update.delta, self._share(number, tau))
        self._end_training(update, now)
        return None

    def observed(self, update: Update, now: float) -> Orders:
        """What robust mixing holds back moves no line, but says where its client belongs."""
        self._place(update)
        self._end_training(update, now)
        return None

    def order_for(self, client: int, now: float) -> Train:
        line = self.home.get(client, ALL)
        self.training[client] = line
        if client in self.lost:
            branches = [branch for number, branch in self.lines.items() if number != ALL]
            models, versions = zip(*((branch.weights, branch.version) for branch in branches), strict=True)
            return self.train(client, self.model, candidates=Candidates(models, versions))
        order = self.train(client, self.lines[line])
        rehearses = self.rehearsals.get(client, REHEARSALS) > 0
        return replace(order, personal=Personal(parameters={TUTTI: 1.0})) if rehearses else order

    # Questions.

    def model_for(self, client: int) -> Tensor:
        return self.lines[self.home.get(client, ALL)].weights

    def cluster_of(self, client: int) -> int:
        return self.home.get(client, ALL)

    def branch_of(self, update: Update) -> int:
        return self._line_of(update)

    def tau(self, update: Update) -> int:
        return max(self.lines[self._line_of(update)].version - update.version, 0)

    def splits(self) -> Sequence[Split]:
        return self.split

    # What an update says.

    def _line_of(self, update: Update) -> int:
        """The line that the client trained from."""
        return self.training.get(update.client, ALL) if update.chosen is None else ALL + 1 + update.chosen

    def _place(self, update: Update) -> int:
        """Where the client belongs from now on. Returns the line that it trained from."""
        client, line = update.client, self._line_of(update)
        if update.chosen is not None:
            self.home[client] = line
            self.lost.pop(client, None)
        if update.jury is not None and self.levels.has_jumped(client, update.jury) and line != ALL:
            self.home.pop(client, None)
            self.levels.forget(client)
            self.lost[client] = True
        if self.pulls and client not in self.home and client not in self.lost:
            self.home[client] = nearest(update.own.delta, self.pulls, otherwise=ALL + 1)
            self.rehearsals[client] = REHEARSALS
        return line

    def _share(self, number: int, tau: int) -> float:
        """``min(1, rho/m) (1 + tau/m)^-1/2``, m the clients that train from this line; from everybody's, all do."""
        lines = self.training.values()
        m = max(len(lines) if number == ALL else sum(line == number for line in lines), 1)
        return float(min(1.0, self.rho / m) * (1 + tau / m) ** -0.5)

    # Branching.

    def _end_training(self, update: Update, now: float) -> None:
        line = self.training.pop(update.client, None)
        if line == self.home.get(update.client, ALL):
            self.rehearsals[update.client] = max(self.rehearsals.get(update.client, REHEARSALS) - 1, 0)
        if self.pulls:
            return
        self.directions.take(update.client, update.own.delta)
        self.since_compared += 1
        members = list(self.participation.members)
        known = [client for client in members if client in self.directions.of]
        if self.since_compared >= len(members) and len(known) >= max(self.coverage * len(members), 2 * self.smallest):
            self.since_compared = 0
            self._branch(known, now)

    def _branch(self, clients: list[int], now: float) -> None:
        """Begin a branch for each group of clients, if they fall apart clearly: from everybody's model as it is."""
        found = self.directions.grouping(clients)
        if len(found.members) < 2 or found.eigengap < self.gap or min(map(len, found.members)) < self.smallest:
            return
        numbers = range(ALL + 1, ALL + 1 + len(found.members))
        for number, members in zip(numbers, found.members, strict=True):
            self.lines[number] = Branch(self.model.weights, self.model.version)
            self.home.update(dict.fromkeys(members, number))
            self.pulls[number] = self.directions.common(members)
            self.rehearsals.update(dict.fromkeys(members, REHEARSALS))
        why = {"eigengap": found.eigengap}
        self.split.append(Split(now, ALL, tuple(numbers), tuple(map(tuple, found.members)), why))
        self.directions = Directions()
