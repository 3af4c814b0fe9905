"""What a page is about: the one argument of every section."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polytempo.report.facts.contenders import Contender, contenders_of
from polytempo.report.run import Run

MOST = 6  # contenders that get clusters, graphs, arrival groups and a timeline of their own


@dataclass(frozen=True)
class Runs:
    """Some runs, the contenders that they form, and what the reader asked to see. A question that only one section
    answers, such as the times of ``graph_at``, is a field here: all sections have one form."""

    all: tuple[Run, ...]
    contenders: tuple[Contender, ...]
    graph_at: tuple[float, ...] = ()
    """Virtual times at which to show who learns from whom; empty: the beginning, the middle and the end."""

    @classmethod
    def of(cls, runs: Sequence[Run], graph_at: Sequence[float] = ()) -> "Runs":
        return cls(tuple(runs), tuple(contenders_of(runs)), tuple(graph_at))

    def named(self, name: str, contender: Contender) -> str:
        """The name of a figure of one contender: where there are several, the contender is part of it."""
        return name if len(self.contenders) == 1 else f"{name}-{contender.name}"

    def first_with(self, has: Callable[[Run], object]) -> list[tuple[Contender, Run]]:
        """The first contenders of which a run has something, each with its first such run."""
        found = ((contender, next(filter(has, contender.runs), None)) for contender in self.contenders)
        return [(contender, run) for contender, run in found if run is not None][:MOST]
