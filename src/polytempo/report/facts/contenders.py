"""Which runs belong together. Runs that differ in nothing but the seed are one contender; its figures are means over
them."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import PurePath
from typing import Any

import numpy as np

from polytempo.core.errors import UserError
from polytempo.core.given import described
from polytempo.report.run import Run
from polytempo.sim.directory import plain
from polytempo.strategies import is_reconstructed, make_strategy, strategies

ALONE = "standalone"
PRESET = "parameters.preset"
AGAIN = "standalone-again"
"""Standalone with other random numbers. It shows how large differences by chance are."""

# What may differ between two runs of one contender: it does not change what the contender is.
NOT_SETTINGS = {"strategy", "seed", "versions", "files", "resolved", "objects", "resume"}
# Which clients there are and what data they hold: better off than alone is a question within one such world.
WORLD = ("data", "clients", "partition", "test_share", "validation_share", "min_samples", "drift")
# How long clients train in it, and how: Standalone is what they have alone if it has the same.
TRAINING = (
    *("model", "loss", "optimizer", "lr", "momentum", "weight_decay", "batch_size", "epochs", "steps"),
    *("updates", "time"),
)

# Okabe and Ito's colours, safe for the colour-blind, without the yellow and black that vanish on paper or screen.
# Then the six that are farthest from all others, as most people and as those who lack red or green cones see them
# (CIELAB distances, Machado 2009), neither too light for paper nor too dark for a screen.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"),
    *("#873c1e", "#004bc3", "#d2b469", "#5a4b69", "#5a96ff", "#4b5a4b"),
)
FEW = 6  # contenders that colours alone tell apart; of more, each has a dash or a marker, too
ALONE_COLOUR = "#8a8f98"
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "<", "X", ">", "*", "p", "h")
ALONE_MARKER = "x"


@dataclass(frozen=True)
class Contender:
    """Runs that differ in nothing but the seed: a strategy with its settings, and the looks it keeps through all
    plots."""

    label: str
    name: str
    """The label in small letters, digits and hyphens, for files. No other contender of the page has it."""
    runs: tuple[Run, ...]
    colour: str
    dash: Any  # a matplotlib line style
    marker: str = ""
    """On its lines, where there are more than a few contenders."""

    def figures(self, name: str) -> np.ndarray:
        """A number of the result for every run, NaN where it is null."""
        return np.array([run.figure(name) for run in self.runs])

    def mean(self, name: str) -> float:
        """The mean over the runs that have the figure, NaN if none has."""
        return mean(self.figures(name))


def contenders_of(runs: Sequence[Run]) -> list[Contender]:
    """Group runs into contenders, in order of first appearance. Two contenders of one strategy are told apart by the
    settings in which they differ."""
    if not runs:
        raise UserError("there are no runs to report on: give at least one run directory")
    strange = next((run for run in runs if not isinstance(run, Run)), None)
    if strange is not None:
        raise UserError(f"runs holds {described(strange)}. Expected Run objects: Run.load(DIR) reads one.")
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[Run]] = {}
    for run in runs:
        groups.setdefault((str(run.strategy), tuple(settings(run).items())), []).append(run)
    names = file_names(runs)
    contenders: list[Contender] = []
    coloured = 0
    for (strategy, values), members in groups.items():
        same_strategy = [dict(other) for name, other in groups if name == strategy]
        label = by_name(_label(strategy, dict(values), same_strategy), names)
        if strategy in (ALONE, AGAIN):
            grey = sum(contender.colour == ALONE_COLOUR for contender in contenders)
            colour, dash, marker = ALONE_COLOUR, DASHES[grey % len(DASHES)], ALONE_MARKER
        else:
            colour, dash, marker = looks(coloured)
            coloured += 1
        name = _name(label, [contender.name for contender in contenders])
        marker = marker if len(groups) > FEW else ""
        contenders.append(Contender(label, name, tuple(members), colour, dash, marker))
    return contenders


def looks(number: int) -> tuple[str, str, str]:
    """Colour, dash and marker of the method with this number: all differ up to 12, not all are the same up to 24."""
    return COLOURS[number % len(COLOURS)], DASHES[number // FEW % len(DASHES)], MARKERS[number % len(MARKERS)]


def settings(run: Run) -> dict[str, str]:
    """The settings of a run as text, its strategy's parameters among them as ``parameters.NAME``, sorted by name. Of a
    parameter that was left open, what was used."""
    used = run.config.get("resolved") or {}
    flat = {key: value for key, value in run.config.items() if key not in NOT_SETTINGS and key != "parameters"}
    flat |= {
        f"parameters.{key}": used.get(key) if value is None else value
        for key, value in (run.config.get("parameters") or {}).items()
    }
    code = (run.config.get("objects") or {}).get("strategy")  # two classes of one name are two contenders
    flat |= {} if code is None else {"code": str(code["digest"])[:8]}
    return {key: as_text(flat[key]) for key in sorted(flat)}


def proxy_settings(contender: Contender) -> dict[str, str]:
    """How many samples the runs of a contender set aside for each cluster, and for how many epochs they warmed up on
    them; empty without proxy sets. Sizes that depend on the seed are all named."""
    used = [run.config.get("resolved") or {} for run in contender.runs]
    texts = {key: dict.fromkeys(as_text(one[key]) for one in used if key in one) for key in ("proxies", "warm_up")}
    return {key: " or ".join(found) for key, found in texts.items() if found}


def file_names(runs: Sequence[Run]) -> dict[str, str]:
    """The files that the runs' settings mention, by path, with the name that is enough to tell them apart; without
    those that share their name with a file in another place."""
    names = {path: PurePath(path).name for run in runs for path in run.config.get("files") or ()}
    places = Counter(names.values())
    return {path: name for path, name in names.items() if places[name] == 1}


def by_name(text: str, names: Mapping[str, str]) -> str:
    """A text in which files stand by their names, not by their paths."""
    for path in sorted(names, key=len, reverse=True):
        text = text.replace(path, names[path])
    return text


def as_text(value: Any) -> str:
    """A setting's value as a person would write it; an empty text for null. What is empty in a table is left out."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={text}" for key, inner in value.items() if (text := as_text(inner)))
    if isinstance(value, list | tuple):
        return ", ".join(map(as_text, value))
    return str(value)


def differing(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys whose values are not the same in all rows, in order of first appearance."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if len({row.get(key, "") for row in rows}) > 1]


def without_what_presets_set(strategy: str, keys: Sequence[str], rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys that differ, without the parameters that differ because the presets do: each row has them from its own."""
    named = [row.get(PRESET) for row in rows]
    if strategy not in strategies or PRESET not in keys or None in named:
        return [*keys]
    usual = [_of_preset(strategy, str(preset)) for preset in named]
    return [key for key in keys if any(row.get(key) != of.get(key) for row, of in zip(rows, usual, strict=True))]


def _of_preset(strategy: str, preset: str) -> dict[str, str]:
    """The parameters of a registered method with this preset and nothing else, as text; none of a preset that only
    another version knows."""
    try:
        made = make_strategy(strategy, {"preset": preset})
    except UserError:
        return {}
    return {
        f"parameters.{name}": as_text(plain(value)) for name, value in made.parameters().items() if name != "preset"
    }


def plain_name(setting: str) -> str:
    """``parameters.buffer_size`` → ``buffer size``."""
    return setting.removeprefix("parameters.").replace("_", " ")


def has_target(contender: Contender) -> bool:
    """Whether the contender was asked to reach a target accuracy."""
    return any(run.config.get("target") is not None for run in contender.runs)


def mean(values: np.ndarray) -> float:
    """The mean of what is not NaN, NaN if nothing is left."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def _name(label: str, taken: Sequence[str]) -> str:
    name = re.sub("[^a-z0-9]+", "-", label.lower()).strip("-")
    return name if name not in taken else next(n for i in count(2) if (n := f"{name}-{i}") not in taken)


def _label(strategy: str, values: dict[str, str], same_strategy: list[dict[str, str]]) -> str:
    keys = without_what_presets_set(strategy, differing(same_strategy), same_strategy)
    notes = [f"{plain_name(key)} {values.get(key) or 'none'}" for key in keys]
    if is_reconstructed(strategy):
        notes.insert(0, "reconstructed")
    return f"{strategy} ({', '.join(notes)})" if notes else strategy
