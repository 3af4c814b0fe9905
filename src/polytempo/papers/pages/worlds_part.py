"""What Concerto's benchmarks say of methods, world by world: who is best, and who is ahead of Concerto."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from polytempo.papers.bench import benches
from polytempo.papers.claims.verdicts import FEWEST_SEEDS, Results, half_interval
from polytempo.papers.figures import ALONE
from polytempo.papers.markdown import table_head, table_line

BENCHES = ("natural", "concerto")
FIGURE = "accuracy_used"
CONCERTO = "concerto"
ONE_MODEL = ("fedavg", "fedasync", "fedbuff")
NO_METHODS = (ALONE, "standalone-again", CONCERTO, *ONE_MODEL)


class Score(NamedTuple):
    """A row of a table over seeds, in percent."""

    label: str
    values: Mapping[int, float]

    @property
    def mean(self) -> float:
        return 100 * fmean(self.values.values())

    @property
    def words(self) -> str:
        few = len(self.values) < FEWEST_SEEDS
        return f"{self.mean:.1f}{f' ({len(self.values)})' if few else ''}"


def worlds_part(results: Results) -> str:
    """The best of each kind of method in every world, and who is ahead of Concerto by intervals over seeds."""
    lines = table_head(
        ["world", "alone", "best with one model", "best other method", "Concerto", "Concerto less the best"]
    )
    ahead: list[str] = []
    for name in BENCHES:
        for table in benches[name].tables:
            scores = _scores(results, name, table.name)
            if CONCERTO not in scores:
                continue
            lines.append(table_line([f"{table.title} (`{name}`, `{table.name}`)", *_cells(scores)]))
            ahead += [f"- {table.title}: {words}" for words in _ahead_of_concerto(scores)]
    lost = ["", "Ahead of Concerto, by intervals over seeds:", "", *ahead] if ahead else []
    none = [] if ahead else ["", "No row is ahead of Concerto by its interval over seeds in any world."]
    return "\n".join([*lines, *lost, *none])


def _scores(results: Results, bench: str, table: str) -> dict[str, Score]:
    found = next(one for one in benches[bench].tables if one.name == table)
    known = {
        label: {seed: of[FIGURE] for seed, of in runs.items() if of.get(FIGURE) is not None}
        for label, runs in results.measured(bench, found).items()
    }
    return {label: Score(label, values) for label, values in known.items() if values}  # type: ignore[arg-type]


def _cells(scores: Mapping[str, Score]) -> list[str]:
    one_model = [scores[label] for label in ONE_MODEL if label in scores]
    others = [score for label, score in scores.items() if label not in NO_METHODS]
    best = _best([*one_model, *others])
    return [
        scores[ALONE].words if ALONE in scores else "–",
        _named(_best(one_model)),
        _named(_best(others)),
        scores[CONCERTO].words,
        "–" if best is None else _difference(scores[CONCERTO], best),
    ]


def _best(scores: Sequence[Score]) -> Score | None:
    return max(scores, key=lambda score: score.mean, default=None)


def _named(score: Score | None) -> str:
    return "–" if score is None else f"{score.words} {score.label}"


def _gains(one: Score, other: Score) -> list[float]:
    """Seed by seed, in points."""
    return [100 * (one.values[seed] - other.values[seed]) for seed in sorted(one.values.keys() & other.values.keys())]


def _difference(one: Score, other: Score) -> str:
    gains = _gains(one, other)
    if len(gains) < FEWEST_SEEDS:
        return f"{one.mean - other.mean:+.2f}"
    mean, half = fmean(gains), half_interval(gains)
    return f"{mean:+.2f} [{mean - half:+.2f} to {mean + half:+.2f}]"


def _ahead_of_concerto(scores: Mapping[str, Score]) -> list[str]:
    concerto = scores[CONCERTO]
    found = []
    for label, score in scores.items():
        gains = _gains(score, concerto)
        if label != CONCERTO and len(gains) >= FEWEST_SEEDS and fmean(gains) - half_interval(gains) > 0:
            found.append(f"`{label}` {_difference(score, concerto)} points")
    return found
