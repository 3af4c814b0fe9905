"""The models that a run leaves, one for each client: served, own and used. In memory, or in files of its directory.

models.safetensors          what each client is served at the end
own_models.safetensors      each client's own model right after its last training
used_models.safetensors     what each client works with, where a rule makes that of its own and the served one, or
                            where it has private layers, without which served models are"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from polytempo.core.errors import UserError
from polytempo.core.model.state_dicts import named_models
from polytempo.learn.models import Inputs, first_model, models
from polytempo.sim.directory import MODELS
from polytempo.sim.experiment import Experiment
from polytempo.sim.simulator import Simulator
from polytempo.strategies.base.served import served_models
from polytempo_client.imports import unknown

Build = Callable[[], nn.Module]
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class KeptModels:
    """The models of a run, and the module that they fit in, where it can be built."""

    held: Mapping[str, Tensors] = field(default_factory=dict)
    """By kind, under the names that the files have for them; empty where they lie in the directory."""
    directory: Path | None = None
    build: Build | None = None

    used_is_served: bool = True
    """Clients work with what they are served."""

    def clients(self, which: str) -> dict[int, int]:
        """Each client that has such a model -> the number of the model."""
        whose = self._take(which, {"clients", "client_model"}.__contains__)
        return dict(zip(whose["clients"].tolist(), whose["client_model"].tolist(), strict=True))

    def tensors(self, which: str, number: int) -> dict[str, Tensor]:
        """The tensors of the model with this number, by name."""
        begin = f"{number}."
        found = self._take(which, lambda name: name.startswith(begin))
        return {name.removeprefix(begin): tensor.clone() for name, tensor in found.items()}

    def _take(self, which: str, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
        if which not in MODELS:
            raise UserError(unknown("kind of model", which, MODELS))
        which = "served" if which == "used" and self.used_is_served else which
        if which in self.held:
            return {name: tensor for name, tensor in self.held[which].items() if wanted(name)}
        if self.directory is None or not (path := self.directory / MODELS[which]).exists():
            raise UserError(
                f"The run did not keep the {which} models. Expected a run of this version whose clients' "
                "models take at most 512 MiB together."
            )
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys() if wanted(name)}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path} cannot be read ({error}): was it cut short? Run it again") from None


def kept_models(simulator: Simulator) -> dict[str, dict[str, Tensor]]:
    """What a finished simulation keeps, by kind."""
    clients, evaluator = range(len(simulator.federation)), simulator.evaluator
    kept = {"served": served_models(simulator.strategy, clients)}
    for which, held in (("own", evaluator.own if evaluator.has_room else None), ("used", simulator.used_models)):
        if held is not None:
            views = {client: simulator.learner.layers.model.views(held[client]) for client in sorted(held)}
            kept[which] = named_models(views, {client: client for client in views})
    return kept


def inputs_row(inputs: Inputs) -> dict[str, Any]:
    """What a model was built for, as config.json holds it."""
    return {"shape": list(inputs.shape), "classes": inputs.classes, "vocabulary": inputs.vocabulary}


def builder(experiment: Experiment, inputs: Inputs) -> Build:
    """What builds the module of a run that was just made."""
    return partial(first_model, experiment.model, inputs, experiment.seed, experiment.own("model"))


def builder_by_name(config: Mapping[str, Any]) -> Build | None:
    """What builds the module of a run that was read from its directory; None for a run of an older version, and for a
    model that is code: a directory that was only read must not say what to import."""
    inputs, model = (config.get("resolved") or {}).get("inputs"), str(config.get("model"))
    if inputs is None or model not in models:
        return None
    built_for = Inputs(tuple(inputs["shape"]), inputs["classes"], inputs["vocabulary"])
    return partial(first_model, model, built_for, int(config.get("seed") or 0))
