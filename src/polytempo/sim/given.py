"""Settings as Python objects. Each becomes a name, which stands in config.json, and an object beside it."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from polytempo.core.errors import UserError
from polytempo.core.given import Given, described, digest_of, given, title_of, type_name
from polytempo.learn.goals import as_goal, goal_by_name
from polytempo.learn.metrics import Metric, as_metric
from polytempo.learn.models import check_module
from polytempo.strategies.base.strategy import Strategy, as_strategy, known_name
from polytempo.strategies.base.wrapper import Wrapper
from polytempo.world.data.columns import Columns
from polytempo.world.data.objects import dataset_of
from polytempo.world.partitions import Partition
from polytempo.world.partitions.rows import from_function, from_rows

COLUMNS = ("label", "features", "vocabulary")
"""Words about data that are given as an object."""

MIN_SAMPLES = 2
"""Of a client where ``min_samples`` does not say: one to train on, one to test on."""

_OWN = "what the user says"
Settings = dict[str, Any]
Objects = dict[str, Given]


def taken(settings: Mapping[str, Any]) -> tuple[Settings, Objects]:
    """The settings with names in place of objects, and the objects by the setting that they were given for."""
    named = {name: os.fspath(of) if isinstance(of, os.PathLike) else of for name, of in settings.items()}
    objects: Objects = {}
    columns = {name: named.pop(name) for name in COLUMNS if name in named}
    if _is_object(named.get("goal")):
        goal = as_goal(named["goal"])
        objects["goal"] = given(goal, goal.name, type_name(goal), vars(goal))
        named["goal"] = objects["goal"].name
    if _is_object(named.get("data")):
        goal = objects["goal"].thing if "goal" in objects else goal_by_name(named.get("goal") or "classification")
        _take_data(named, objects, Columns(**columns, labels=goal.labels))
    elif columns:
        raise UserError(
            f"{next(iter(columns))} is about data that are given as an object, and data is {named.get('data')!r}. "
            "Expected a frame or another object as data."
        )
    for setting, take in _TAKERS.items():
        if _is_object(named.get(setting)):
            objects[setting] = take(named[setting])
            named[setting] = objects[setting].name
    if _is_object(named.get("strategy")):
        _take_strategy(named, objects)
    return named, objects


def _is_object(of: object) -> bool:
    return of is not None and not isinstance(of, str)


def _take_data(named: Settings, objects: Objects, columns: Columns) -> None:
    """Clients of a dict keep what is theirs, unless another partition is given."""
    data, least = named["data"], named.get("min_samples", MIN_SAMPLES)
    dataset, rows = dataset_of(data, columns, least if isinstance(least, int) else MIN_SAMPLES)
    content = (dataset.x, dataset.y, dataset.classes, dataset.train_size, dataset.users, dataset.vocabulary)
    clients = len(data) if isinstance(data, dict) and dataset.users is not None else None
    facts = {"x": _shape(dataset.x), "y": _shape(dataset.y), "clients": clients}
    size, known = "x".join(map(str, dataset.x.shape)), {name: fact for name, fact in facts.items() if fact is not None}
    title = "arrays" if isinstance(data, list | tuple) else type_name(data) if clients is None else f"{clients} clients"
    objects["data"] = given(dataset, f"{title} {size}", type_name(data), content, **known)
    named["data"] = objects["data"].name
    if dataset.users is not None and named.get("partition") is None:
        named["partition"] = "natural" if rows is None else rows


def _shape(array: np.ndarray) -> str:
    return f"{array.dtype} {tuple(array.shape)}"


def _model(model: Any) -> Given:
    """A module begins with the weights that it has; a factory is called with the run's seed."""
    if not isinstance(model, nn.Module) and not callable(model):
        raise _refused("model", model, "a name, an nn.Module, or a function or class that makes one")
    if isinstance(model, nn.Module):
        strange = {str(tensor.device) for tensor in model.parameters()} - {"cpu"}
        if strange:
            raise UserError(f"model is on {', '.join(sorted(strange))}. Expected an nn.Module on the CPU: model.cpu().")
        check_module(model, "model")
    return given(model, title_of(model), type_name(model), model)


def _function(setting: str, form: str) -> Callable[[Any], Given]:
    def take(function: Any) -> Given:
        if not callable(function):
            raise _refused(setting, function, f"an import path, or {form}")
        return given(function, title_of(function), type_name(function), function)

    return take


def _metric(metric: Any) -> Given:
    """A known metric is its name in config.json, too; a function is one of which more is better."""
    if not callable(metric) and not isinstance(metric, Metric):
        form = "a name or an import path, a Metric, or a function of (outputs, labels) that gives one number per sample"
        raise _refused("metric", metric, form)
    made = as_metric(metric)
    return given(made, made.name, type_name(metric), vars(made))


def _partition(partition: Any) -> Given:
    """A function of labels, clients and a generator, or a list of rows."""
    if callable(partition):
        title = title_of(partition)
        thing = Partition(title, _OWN, str, lambda request, _: from_function(request, partition), any_labels=True)
    elif isinstance(partition, Sequence) and len(partition):
        title, rows = f"rows of {len(partition)} clients", list(partition)
        count = len(rows)
        thing = Partition(title, _OWN, str, lambda request, _: from_rows(request, rows), lambda *_: count, True)
    else:
        raise _refused(
            "partition",
            partition,
            "a name, a list with an array of row numbers for each client (or a pair of them: train and test), or a "
            "function of (labels, clients, random generator) that returns such a list",
        )
    return given(thing, title, type_name(partition), partition)


def _devices(seconds: Any) -> Given:
    array = np.asarray(seconds) if isinstance(seconds, Sequence | np.ndarray | Tensor) else np.empty(0)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iuf":
        raise _refused("devices", seconds, "a name, a file, or a list with the seconds per step of each client")
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise UserError(f"devices is {described(seconds)} with seconds per step that are not above 0 and finite.")
    return given(array.astype(np.float64), f"seconds of {len(array)} clients", type_name(seconds), array)


_TAKERS: Mapping[str, Callable[[Any], Given]] = {
    "model": _model,
    "loss": _function("loss", "a function of (outputs, labels) that gives one number"),
    "metric": _metric,
    "partition": _partition,
    "devices": _devices,
}


def _take_strategy(named: Settings, objects: Objects) -> None:
    """A registered class is its name. Of an instance, class and parameters are taken: it is not changed by a run."""
    strategy = named["strategy"]
    if isinstance(strategy, Strategy):
        if isinstance(strategy, Wrapper):
            raise UserError(
                f"strategy is a {type_name(strategy)} around another. Expected the inner strategy; the settings clip, "
                "robust, samples_cap and personal put wrappers around it."
            )
        if named.get("parameters"):
            raise UserError("strategy is an instance, which has its parameters. Expected no parameters beside it.")
        named["parameters"] = strategy.parameters()
        strategy = type(strategy)
    if not isinstance(strategy, type) or not issubclass(strategy, Strategy):
        raise _refused("strategy", strategy, "a name, or a class derived from Strategy or an instance of one")
    known = known_name(strategy)
    if known is None:
        own = as_strategy(strategy, strategy.__name__)
        code = digest_of(strategy)
        objects["strategy"] = Given(own, strategy.__name__, {"type": type_name(strategy), "digest": code})
    named["strategy"] = known or strategy.__name__


def _refused(setting: str, of: object, expected: str) -> UserError:
    return UserError(f"{setting} is {described(of)}. Expected {expected}.")
