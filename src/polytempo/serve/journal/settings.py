"""What decides a service, as validated data."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.model.vectors import flatten, schema_of
from polytempo.core.validation import OR_NONE, validated
from polytempo.learn.flat import initial_vector, read_vector
from polytempo.learn.models import Inputs, first_model
from polytempo.learn.private_layers import PrivateLayers
from polytempo.strategies.base.strategy import strategy_class
from polytempo.strategies.settings import CLIP, SAMPLES_CAP, StrategySettings
from polytempo.world.data import load_dataset
from polytempo_client.disk.reading import open_plain
from polytempo_client.model.schema import Schema

CHANGEABLE = {"data_dir", "init", "proxies"}
"""Settings that name files of the operator's: no journal holds them."""
MAY_NAME_CODE = {"strategy", "model", "data"}
"""Settings that may be import paths."""
MOST_DIMENSIONS = 64
"""Of a tensor. Clients' arrays have no more."""


class ServiceSettings(StrategySettings):
    """A method as a service. The first model is that of ``model`` for data like ``data``, or what ``init`` holds. The
    clients of a service are strangers: defences that cost honest ones little are on by default."""

    clip: Annotated[float | None, OR_NONE] = Field(3.0, gt=0, description=CLIP)
    samples_cap: Annotated[float | None, OR_NONE] = Field(3.0, ge=1, description=SAMPLES_CAP)
    model: str = Field("mlp", description="name of a model, or the import path of your own")
    data: str = Field("digits", description="data like the clients': decides the model's inputs and classes")
    data_dir: Path | None = Field(None, description="where data sets lie")
    init: Path | None = Field(None, description="first model: named tensors (.safetensors), or a flat float32 .npy")
    proxies: Path | None = Field(
        None, description="samples of the server's own for each cluster: an .npz with x, y, cluster"
    )
    warm_up: int | None = Field(
        None, ge=0, description="epochs on all proxy sets that the first model is trained (default 5 if there are any)"
    )

    def lasting(self) -> dict[str, Any]:
        """Those that cannot change while the service lives, as plain JSON data."""
        lasting: dict[str, Any] = json.loads(self.model_dump_json(exclude=CHANGEABLE))
        return lasting

    def import_paths(self) -> dict[str, str]:
        """Which of them name code that is imported to make the service."""
        named = {setting: str(getattr(self, setting)) for setting in sorted(MAY_NAME_CODE)}
        return {setting: path for setting, path in named.items() if ":" in path}

    def inputs(self) -> Inputs:
        """What the model is built for."""
        dataset = load_dataset(self.data, self.data_dir)
        return Inputs(dataset.x.shape[1:], dataset.classes, dataset.vocabulary)

    def private_layers(self) -> tuple[str, ...]:
        """The layers that stay at the clients."""
        return self.personal_layers or strategy_class(self.strategy).personal_layers

    def first_model(self) -> tuple[Schema, Tensor]:
        """Names and shapes, and the weights, of what travels, before they are warmed."""
        schema, weights = self._whole_model()
        layers = PrivateLayers(schema, self.private_layers(), weights)
        return layers.shared, layers.shared_of(weights)

    def _whole_model(self) -> tuple[Schema, Tensor]:
        named = self.init is not None and self.init.suffix == ".safetensors"
        # A model of the user's own may have frozen parts, of which a file of what travels knows nothing. No file says
        # which layer is the head.
        needs_model = self.proxies is not None or ":" in self.model or bool(self.private_layers())
        if self.init is not None and named and not needs_model:
            return _read_tensors(self.init)
        module = first_model(self.model, self.inputs(), self.seed)
        schema = schema_of(module)
        if self.init is None:
            return schema, initial_vector(module)
        return schema, self._named_weights(self.init, schema) if named else read_vector(self.init, schema.size)

    def _named_weights(self, path: Path, schema: Schema) -> Tensor:
        """The tensors of a file in the order of the model's."""
        found, weights = _read_tensors(path)
        if dict(zip(found.names, found.shapes, strict=True)) != dict(zip(schema.names, schema.shapes, strict=True)):
            raise UserError(
                f"The tensors of {path} are not those of the model {self.model} for data like {self.data}. With "
                "--proxies, private layers or a --model of your own, the server makes the model: give --model and "
                "--data that fit the file."
            )
        return flatten(schema, found.views(weights))


def make_settings(**given: Any) -> ServiceSettings:
    """Settings from keyword arguments; a wrong name or value is an error in plain words."""
    return validated(ServiceSettings, given, "Service")


def _read_tensors(path: Path) -> tuple[Schema, Tensor]:
    try:
        open_plain(path).close()
        tensors = {name: tensor for name, tensor in load_file(path).items() if tensor.is_floating_point()}
    except (OSError, SafetensorError, RuntimeError, LookupError, ValueError, TypeError) as error:
        raise UserError(f"Initial model {path} cannot be read as safetensors: {error}.") from None
    if not tensors:
        raise UserError(f"Initial model {path} holds no float tensors.")
    if any(tensor.dim() > MOST_DIMENSIONS for tensor in tensors.values()):
        raise UserError(f"Initial model {path} holds a tensor of more than {MOST_DIMENSIONS} dimensions.")
    # A file does not say which of its tensors are buffers; all count as parameters.
    shapes = tuple(tuple(tensor.shape) for tensor in tensors.values())
    schema = Schema(tuple(tensors), shapes, sum(tensor.numel() for tensor in tensors.values()))
    vector = flatten(schema, tensors)
    if not vector.isfinite().all():
        raise UserError(f"Initial model {path} holds NaN or Inf.")
    return schema, vector
