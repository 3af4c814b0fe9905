"""Does Concerto keep its promise? What it promises, world by world, from the records of its runs and its rivals'."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from polytempo.papers.records import Figures, Measured

OURS, ALONE, AGAIN, PLAIN = "concerto", "standalone", "standalone-again", "fedasync"
ACCURACIES = {"accuracy_used": "used", "accuracy": "served", "accuracy_trained": "own"}
MARGIN = 0.003
"""Used accuracy may be this much below the better of alone and the best rival, ..."""
CHANCE = 0.02
"""... the share of clients that are worse off this much above what chance does, ..."""
MORE_BYTES = 1.05
"""... the download this many times FedAsync's, ..."""
HALF = 0.5
"""... and the time to Standalone's accuracy this share of Standalone's, where collaboration helps: where ..."""
HELPS = 0.01
"""... Concerto or the best rival is this much better than alone."""
TITLES = ("world", "seeds", "concerto", "alone", "best rival", "margin", "better", "worse", "again", "MB", "time")
NOTES = (
    "Accuracies in %. The best rival is the method with the best used, served or own models on the choosing seed, "
    "which is none of those shown. Methods with our rule (+ personal) are no rivals. Margin: Concerto's used accuracy "
    f"less the better of alone and the best rival; the goal is {-100 * MARGIN:.1f} or more. Better, worse: shares of "
    f"clients in %; the goal is not more worse than better, and at most {100 * CHANCE:.0f} points more than in "
    f"standalone-again. MB: download as a multiple of FedAsync's; the goal is {MORE_BYTES} or less. Time to "
    f"Standalone's accuracy as a multiple of Standalone's; the goal is {HALF} or less where Concerto or the best rival "
    f"is more than {100 * HELPS:.0f} point better than alone."
)


class WorldFigures(NamedTuple):
    """What was measured in one table."""

    title: str
    reported: Measured
    choosing: Measured
    """On the choosing seed."""


class Rival(NamedTuple):
    """The method that Concerto is compared with, and which of its accuracies."""

    label: str
    accuracy: str


def promises(worlds: Sequence[WorldFigures]) -> str:
    """A line of Markdown per world that Concerto has runs of. All is compared on the seeds that all have."""
    lines = ["| " + " | ".join((*TITLES, "missed")) + " |", "|---" * (len(TITLES) + 1) + "|"]
    lines += [_line(world) for world in worlds if _seeds(world.reported, OURS, ALONE)]
    return "\n".join(["# What Concerto promises", "", NOTES, "", *lines]) + "\n"


def best_rival(choosing: Measured) -> Rival | None:
    """Of those that have run on the choosing seed."""
    found = [
        (mean(values), Rival(label, name))
        for label, runs in choosing.items()
        for name in ACCURACIES
        if (values := _values(runs, name, list(runs)))
    ]
    return max(found)[1] if found else None


def _line(world: WorldFigures) -> str:
    rows, best = world.reported, best_rival(world.choosing)
    seeds = (best is not None and _seeds(rows, OURS, ALONE, best.label)) or _seeds(rows, OURS, ALONE)
    used, alone = (mean(_values(rows[label], "accuracy_used", seeds)) for label in (OURS, ALONE))
    theirs = _mean(_values(rows[best.label], best.accuracy, seeds)) if best is not None else None
    most = max(alone, theirs or 0.0)
    margin = used - most if theirs is not None else None
    better, worse = (mean(_values(rows[OURS], name, seeds)) for name in ("better_off", "worse_off"))
    again, plain = ([seed for seed in seeds if seed in rows[label]] for label in (AGAIN, PLAIN))
    chance = _mean(_values(rows[AGAIN], "worse_off", again))
    beyond = mean(_values(rows[OURS], "worse_off", again)) - chance if chance is not None else 0.0
    bytes_down = _ratio(rows[OURS], rows[PLAIN], "bytes_down", plain)
    times = _values(rows[OURS], "time_to_alone", seeds)
    time = mean(times) if len(times) == len(seeds) else None
    missed = {
        "margin": margin is not None and margin < -MARGIN,
        "worse": worse > better or beyond > CHANCE,
        "MB": bytes_down is not None and bytes_down > MORE_BYTES,
        "time": max(used, most) - alone > HELPS and (time is None or time > HALF),
    }
    cells = (
        *(world.title, str(len(seeds)), _percent(used), _percent(alone), _named(best, theirs, world.choosing)),
        *("–" if margin is None else f"{100 * margin:+.1f}", f"{100 * better:.0f}", f"{100 * worse:.0f}"),
        *(_number(chance, 100, 0), _number(bytes_down, 1, 2), _number(time, 1, 2)),
        ", ".join(goal for goal, is_missed in missed.items() if is_missed) or "–",
    )
    return "| " + " | ".join(cells) + " |"


def _named(best: Rival | None, accuracy: float | None, choosing: Measured) -> str:
    """The best rival with its accuracy, and of how many it is the best where others have not run."""
    if best is None:
        return "–"
    run = sum(bool(runs) for runs in choosing.values())
    of = "" if run == len(choosing) else f" (of {run} of {len(choosing)})"
    return f"{best.label} {ACCURACIES[best.accuracy]} {'–' if accuracy is None else _percent(accuracy)}{of}"


def _seeds(rows: Measured, *labels: str) -> list[int]:
    """That all of these rows have."""
    first, *others = (rows.get(label, {}) for label in labels)
    return [seed for seed in first if all(seed in other for other in others)]


def _values(runs: Mapping[int, Figures], name: str, seeds: Sequence[int]) -> list[float]:
    return [value for seed in seeds if seed in runs and (value := runs[seed].get(name)) is not None]


def _ratio(ours: Mapping[int, Figures], plain: Mapping[int, Figures], name: str, seeds: Sequence[int]) -> float | None:
    return mean(_values(ours, name, seeds)) / mean(_values(plain, name, seeds)) if seeds else None


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _number(value: float | None, scale: float, digits: int) -> str:
    return "–" if value is None else f"{scale * value:.{digits}f}"
