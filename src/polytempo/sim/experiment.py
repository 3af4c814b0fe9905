"""An experiment: everything that decides a run, as validated data. The command line, experiment files and the Python
API all make one of these."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from polytempo.core.errors import UserError
from polytempo.core.given import Given
from polytempo.core.registry import check_imports, names_code, quoted
from polytempo.core.validation import validated
from polytempo.learn.goals import Goal, goal_by_name
from polytempo.sim.behaviour import Behaviour, parse_behaviour
from polytempo.sim.executors.cluster import AT, check_executor
from polytempo.sim.given import taken
from polytempo.strategies import Strategy, make_strategy, strategies
from polytempo.strategies.base.strategy import strategy_class
from polytempo.strategies.settings import StrategySettings
from polytempo.world.data import data_file
from polytempo.world.devices import device_file
from polytempo.world.drift import Drift
from polytempo.world.proxies import ProxySource, parse_proxies
from polytempo.world.tables import read_toml
from polytempo_client.imports import imported_file

LATER = ("device", "eval_clients", "goal", "personal_layers", "validation_share")
"""Settings that came later. Runs that leave them at their defaults do not name them, as before, and stay known."""
IMPORTABLE = ("strategy", "model", "goal", "loss", "metric", "data")
"""Settings that may be import paths."""


def _as_words(given: Any) -> Any:
    """A number is as good as its digits."""
    return str(given) if isinstance(given, int) else given


class Experiment(StrategySettings):
    """One run of one strategy."""

    data: str = Field("digits", description="name of a data set, a file, a folder or an import path")
    data_dir: Path | None = Field(None, description="directory of the data sets")
    clients: int | None = Field(None, ge=1, description="number of clients (default 20, or as many as the data names)")
    partition: str = Field("groups", description="who gets which samples")
    test_share: float = Field(0.2, gt=0, lt=1, description="share of each client's samples kept for its own test")
    validation_share: float = Field(
        0.0, ge=0, lt=1, description="share of each client's train samples kept for choosing settings, not trained on"
    )
    min_samples: int = Field(2, ge=2, description="samples that every client must have")
    drift: tuple[Drift, ...] = Field((), description="changes of clients' data")
    ask: str | None = Field(
        None, description="when a client trains the model that it has and asks for a newer one (default: at once)"
    )
    attack: str | None = Field(
        None, description="what some clients send in place of updates: scaled:SHARE:FACTOR or sign-flip:SHARE:FACTOR"
    )
    privacy: str | None = Field(
        None, description="CLIP:NOISE: clip updates to this length, and add noise of NOISE times this length"
    )
    upload: str = Field("", description="encoding of updates: fp16 or topk:SHARE (default: float32)")
    download: str = Field(
        "", description="encoding of models sent to clients: fp16 (default: float32; requires upload)"
    )
    proxies: Annotated[str | None, BeforeValidator(_as_words)] = Field(
        None, description="samples of the server: how many per cluster to set aside, default, or an .npz"
    )
    warm_up: int | None = Field(
        None, ge=0, description="epochs of the first model on all proxy sets (default 5 if there are any)"
    )
    devices: str = Field("slow:0.3x5", description="speed of the devices")
    model: str = Field("mlp", description="name of a model, or the import path of your own")
    goal: str = Field(
        "classification", description="what models are trained for: classification, regression, multi-label"
    )
    loss: str | None = Field(None, description="name of a loss, or import path (outputs, labels) -> number")
    metric: str | None = Field(
        None, description="name of a metric, or import path (outputs, labels) -> number per sample"
    )
    init: Path | None = Field(None, description="initial weights, a flat float32 .npy")
    updates: int | None = Field(None, ge=1, description="stop after this many updates (default 20 per client)")
    time: float | None = Field(None, gt=0, description="stop at this virtual time, in seconds")
    target: float | None = Field(None, description="target of the metric; ends a run without updates and time")
    stop_at_target: bool | None = Field(None, description="end at the target also where updates or time are given")
    patience: int | None = Field(None, ge=1, description="stop after this many evaluations without a better metric")
    eval_every: int | None = Field(None, ge=1, description="updates between evaluations (default: as many as clients)")
    eval_clients: int | None = Field(
        None, ge=1, description="evaluate so many clients, drawn once at random, in place of all"
    )
    engine: Literal["auto", "eager", "fused"] = Field("auto", description="how local training is computed")
    device: Literal["cpu", "cuda", "mps"] = Field("cpu", description="where torch computes; not cpu: the eager engine")
    executor: Annotated[str, AfterValidator(check_executor)] = Field(
        "threads", description="where training is computed: threads, ray or ray:ADDRESS; changes no result"
    )
    workers: int | None = Field(
        None, ge=1, description="threads or processes that compute (default: one per core); changes no result"
    )

    _behaviour: Behaviour = PrivateAttr()
    _objects: Mapping[str, Given] = PrivateAttr(default_factory=dict)
    _proxy_source: ProxySource | None = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Words are parsed here and nowhere else."""
        super().model_post_init(context)
        self._behaviour = parse_behaviour(self.ask, self.attack, self.privacy, self.upload, self.download)
        self._proxy_source = parse_proxies(self.proxies or "")

    def own(self, setting: str) -> Any:
        """The object that was given for a setting, ready to be used; None where the setting is a name."""
        given = self.objects().get(setting)
        return None if given is None else given.thing

    def objects(self) -> dict[str, Given]:
        """The objects that settings name, by setting. A setting that was changed afterwards has none."""
        return {setting: of for setting, of in self._objects.items() if getattr(self, setting) == of.name}

    @property
    def behaviour(self) -> Behaviour:
        """How clients behave."""
        return self._behaviour

    @property
    def proxy_source(self) -> ProxySource | None:
        """Where the server's proxy sets come from; None if the settings do not say."""
        return self._proxy_source

    @property
    def proxy_file(self) -> Path | None:
        """The file of the server's proxy sets, if they come from one."""
        return self._proxy_source if isinstance(self._proxy_source, Path) else None

    @model_validator(mode="after")
    def _target_fits(self) -> "Experiment":
        usual = self.goal == "classification" and self.metric is None
        if usual and self.target is not None and not 0 < self.target <= 1:
            raise ValueError("target is an accuracy: expected more than 0, at most 1")
        return self

    def aim(self) -> Goal:
        """What models are trained for."""
        goal: Goal | None = self.own("goal")
        return goal_by_name(self.goal) if goal is None else goal

    def strategy_class(self) -> type[Strategy]:
        own: type[Strategy] | None = self.own("strategy")
        return strategy_class(self.strategy) if own is None else own

    def bare(self) -> Strategy:
        return make_strategy(self.strategy, self.parameters, self.own("strategy"))

    def make(self) -> Strategy:
        if self.proxy_file is not None and not self.proxy_file.is_file():
            raise UserError(
                f"proxies is {self.proxies!r}. Expected a whole number of samples per cluster, default, or an .npz "
                "file that exists (docs/guides/client-driven.md)."
            )
        return super().make()

    def settings(self) -> dict[str, Any]:
        """All fields that decide the result, as plain JSON data."""
        unused = {name for name in LATER if getattr(self, name) == type(self).model_fields[name].default}
        return json.loads(self.model_dump_json(exclude={"executor", "workers", "data_dir", *unused}))

    def files(self) -> dict[str, str]:
        """The SHA-256 of every file that the settings name and that exists: devices, partition, initial weights, own
        data and own code."""
        kind, _, partition = self.partition.partition(":")
        named = [
            device_file(self.devices),
            Path(partition) if kind == "file" else None,
            self.init,
            self.proxy_file,
            data_file(self.data),
            *(imported_file(path or "") for path in (getattr(self, setting) for setting in IMPORTABLE)),
        ]
        return {str(path): _sha256(path) for path in named if path is not None and path.is_file()}


def make_experiment(**settings: Any) -> Experiment:
    """An experiment from keyword arguments, names or objects; a wrong name or value is an error in plain words."""
    named, objects = taken(settings)
    for key in named.keys() - Experiment.model_fields.keys():
        if key in _parameters_of(named.get("strategy")):
            raise UserError(
                f"{key} is a parameter of {named['strategy']}, and no setting. "
                f"Give parameters={{{key!r}: {named[key]!r}}}."
            )
    return _made(named, objects)


def changed(base: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """The experiment with other settings. It shares the objects of those that stay."""
    named, objects = taken({**{name: getattr(base, name) for name in base.model_fields_set}, **settings})
    return _made(named, {**base.objects(), **objects})


def _made(named: Mapping[str, Any], objects: Mapping[str, Given]) -> Experiment:
    experiment = validated(Experiment, named, "Experiment")
    experiment._objects = objects
    return experiment


def read_experiment(
    path: Path, parameters: Mapping[str, Any], settings: Mapping[str, Any], allowed: Collection[str] = ()
) -> Experiment:
    """An experiment file: TOML whose keys are the fields of Experiment, with [parameters] and [[drift]] tables. What is
    given beside it wins. A file of devices is named as seen from the experiment file, or from the working directory.
    Code that only the file names is refused unless it is among the ``allowed`` import paths: the file may be a
    stranger's."""
    given = read_toml(path)
    _check_imports(path, {**given, **settings}, allowed, list(map(str, settings.values())))
    _check_cluster(path, given, settings)
    if "strategy" not in given:
        raise UserError(f'{path} names no strategy. Expected a line such as strategy = "fedasync".')
    devices = given.get("devices")
    if isinstance(devices, str) and device_file(devices) is not None and (path.parent / devices).is_file():
        given["devices"] = str(path.parent / devices)
    own = given.get("parameters", {})
    if not isinstance(own, dict):
        raise UserError(f"{path}: parameters is {own!r}. Expected a table: [parameters], then a line for each.")
    for key in set(given) - set(Experiment.model_fields):
        if key in _parameters_of(given["strategy"]):
            raise UserError(f"{path}: {key} is a parameter of {given['strategy']}. Move it below a line [parameters].")
    for one, other in (("epochs", "steps"), ("steps", "epochs")):
        if one in settings:
            given.pop(other, None)
    return make_experiment(**{**given, **settings, "parameters": {**own, **parameters}})


def _parameters_of(strategy: Any) -> list[str]:
    """The names of a registered strategy's parameters."""
    return [field.name for field in fields(strategies[strategy])] if strategy in strategies else []  # type: ignore[arg-type]


def _check_imports(path: Path, given: Mapping[str, Any], allowed: Collection[str], vouched: Collection[str]) -> None:
    """``vouched``: what the user has given as options."""
    named = {field: str(given[field]) for field in IMPORTABLE if ":" in str(given.get(field, ""))}
    if data_file(named.get("data", "")) is not None:
        del named["data"]
    check_imports(str(path), {field: code for field, code in named.items() if not names_code(code, vouched)}, allowed)


def _check_cluster(path: Path, given: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Who runs a cluster may run code here."""
    named = str(given.get("executor", ""))
    if named.startswith(AT) and "executor" not in settings:
        raise UserError(
            f"{path} names a Ray cluster, {named}. Whoever runs it can run code with your rights: if you trust it, "
            f"repeat it on the command line: --executor {quoted(named)}"
        )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
