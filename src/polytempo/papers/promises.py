"""Does Concerto keep its promise? What it promises, world by world, from the records of its runs and its rivals'."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

from polytempo.papers.bench import Table
from polytempo.papers.measuring import Measured
from polytempo.papers.records import Figures

OURS, ALONE, AGAIN, PLAIN = "concerto", "standalone", "standalone-again", "fedasync"
ACCURACIES = {"accuracy_used": "used", "accuracy": "served", "accuracy_trained": "own"}
MARGIN = 0.003
"""Used accuracy may be this much below the best of alone and all rivals, ..."""
CHANCE = 0.02
"""... the share of clients that are worse off this much above what chance does, ..."""
MORE_BYTES = 1.05
"""... the download this many times FedAsync's, ..."""
HALF = 0.5
"""... and the time to Standalone's accuracy this share of Standalone's, where collaboration helps: where ..."""
HELPS = 0.01
"""... a method is this much better than alone."""
TITLES = ("world", "seeds", "concerto", "alone", "best rival", "margin", "better", "worse", "again", "MB", "time")


def promises(tables: Sequence[Table], figures: Mapping[str, Measured]) -> str:
    """A line of Markdown per world that Concerto has runs of. Every row is compared on the seeds that both have."""
    lines = ["| " + " | ".join((*TITLES, "missed")) + " |", "|---" * (len(TITLES) + 1) + "|"]
    lines += [_line(table.title, figures[table.name]) for table in tables if _is_there(figures[table.name])]
    notes = (
        "Accuracies in %. The best rival is the one that is closest to Concerto or furthest ahead, with its used, "
        "served or own models, on the reported seeds: a harder measure than one picked beforehand. It may have fewer "
        "seeds than Concerto; both are compared on the same ones. Methods with our rule (+ personal) are no rivals. "
        "Margin: Concerto's used accuracy less the better of "
        f"alone and the best rival; the goal is {-100 * MARGIN:.1f} or more. Better, worse: shares of clients in %; "
        f"the goal is not more worse than better, and at most {100 * CHANCE:.0f} points more than in standalone-again. "
        f"MB: download as a multiple of FedAsync's; the goal is {MORE_BYTES} or less. Time to Standalone's accuracy as "
        f"a multiple of Standalone's; the goal is {HALF} or less where a method is more than {100 * HELPS:.0f} point "
        "better than alone."
    )
    return "\n".join(["# What Concerto promises", "", notes, "", *lines]) + "\n"


def _is_there(rows: Measured) -> bool:
    return bool(_common(rows[OURS], rows[ALONE]))


class _Rival(NamedTuple):
    """A row's best accuracy, and which one it is. All is compared on the same seeds."""

    margin: float
    """By how much Concerto is better."""
    name: str
    accuracy: float
    gain: float
    """By how much it is better than Standalone."""


def _line(title: str, rows: Measured) -> str:
    ours = rows[OURS]
    used, alone = _mean(ours, "accuracy_used"), _mean(_common(rows[ALONE], ours), "accuracy_used")
    labels = [label for label in rows if label not in (OURS, ALONE, AGAIN) and "+" not in label]
    rivals = [_rival(label, rows) for label in labels if _common(_common(rows[label], ours), rows[ALONE])]
    everybody = [_rival(label, rows) for label in (OURS, ALONE)] + rivals
    margin = min(rival.margin for rival in everybody[1:])
    gain = max(rival.gain for rival in everybody)
    better, worse = _mean(ours, "better_off"), _mean(ours, "worse_off")
    again, plain = _common(rows[AGAIN], ours), _common(rows[PLAIN], ours)
    chance = _mean(again, "worse_off") if again else None
    bytes_down = _mean(_common(ours, plain), "bytes_down") / _mean(plain, "bytes_down") if plain else None
    time = _mean(ours, "time_to_alone") if _has(ours, "time_to_alone") else None
    missed = {
        "margin": margin < -MARGIN,
        "worse": worse > better or (chance is not None and worse > chance + CHANCE),
        "MB": bytes_down is not None and bytes_down > MORE_BYTES,
        "time": gain > HELPS and (time is None or time > HALF),
    }
    best = min(rivals, default=None)
    cells = (
        *(title, str(len(ours)), _percent(used), _percent(alone)),
        "–" if best is None else f"{best.name} {_percent(best.accuracy)}",
        *(f"{100 * margin:+.1f}", f"{100 * better:.0f}", f"{100 * worse:.0f}", _number(chance, 100, 0)),
        *(_number(bytes_down, 1, 2), _number(time, 1, 2)),
        ", ".join(goal for goal, is_missed in missed.items() if is_missed) or "–",
    )
    return "| " + " | ".join(cells) + " |"


def _rival(label: str, rows: Measured) -> _Rival:
    ours, alone = rows[OURS], rows[ALONE]
    theirs = _common(_common(rows[label], ours), alone)
    best, name = max((_mean(theirs, name), name) for name in ACCURACIES if _has(theirs, name))
    margin = _mean(_common(ours, theirs), "accuracy_used") - best
    gain = best - _mean(_common(alone, theirs), "accuracy_used")
    return _Rival(margin, f"{label} {ACCURACIES[name]}", best, gain)


def _common(of: Mapping[int, Figures], other: Mapping[int, Figures]) -> dict[int, Figures]:
    return {seed: figures for seed, figures in of.items() if seed in other}


def _has(of: Mapping[int, Figures], name: str) -> bool:
    return all(figures.get(name) is not None for figures in of.values())


def _mean(of: Mapping[int, Figures], name: str) -> float:
    return mean(value for figures in of.values() if (value := figures.get(name)) is not None)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _number(value: float | None, scale: float, digits: int) -> str:
    return "–" if value is None else f"{scale * value:.{digits}f}"
