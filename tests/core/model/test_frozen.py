"""Which parts of a model are frozen, and their fingerprint."""

import pytest
import torch
from torch import nn

from polytempo.core.errors import UserError
from polytempo.core.model.frozen import copy_of, fingerprint_of, frozen_tensors, set_training
from polytempo.core.model.vectors import schema_of, travelling


def half_frozen() -> nn.Sequential:
    """A frozen layer with batch norm and dropout in front of a head that trains."""
    encoder = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).requires_grad_(False)
    return nn.Sequential(encoder, nn.BatchNorm1d(3, affine=False), nn.Dropout(0.5), nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_only_what_is_trained_is_in_the_schema() -> None:
    schema = schema_of(half_frozen())
    assert schema.names == ("3.weight", "3.bias", "4.weight", "4.bias", "4.running_mean", "4.running_var")
    assert (schema.parameter_count, schema.size) == (12, 16)
    assert len(schema.frozen) == 64


def test_everything_travels_of_a_model_whose_parameters_all_train() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False))
    assert schema_of(module).names == ("0.weight", "0.bias", "1.running_mean", "1.running_var")
    assert schema_of(module).frozen == ""
    assert frozen_tensors(module) == {}


def test_frozen_parts_are_in_eval_mode_and_dropout_is_as_what_is_around_it() -> None:
    module = set_training(half_frozen())
    training = {name for name, part in module.named_modules() if part.training}
    assert training == {"", "2", "3", "4"}


def test_a_frozen_layer_with_a_trained_one_inside_trains() -> None:
    layer = nn.Linear(3, 3).requires_grad_(False)
    layer.register_buffer("scale", torch.ones(1))
    layer.add_module("adapter", nn.Linear(3, 3))
    names = tuple(travelling(layer))
    assert names == ("adapter.weight", "adapter.bias", "scale")
    assert set(frozen_tensors(layer)) == {"weight", "bias"}


@pytest.mark.parametrize("name", ["0.0.weight", "0.1.running_mean", "0.1.num_batches_tracked", "1.running_var"])
def test_the_fingerprint_is_of_every_frozen_number(name: str) -> None:
    module = half_frozen()
    before = schema_of(module).frozen
    tensor = frozen_tensors(module)[name].data
    original = tensor.clone()
    tensor.view(-1)[0] += 1
    assert schema_of(module).frozen != before
    tensor.copy_(original)
    module[3].weight.data += 1
    assert schema_of(module).frozen == before


def test_the_fingerprint_is_of_names_types_and_shapes_but_not_of_the_order() -> None:
    a, b = torch.zeros(2, 3), torch.ones(())
    found = fingerprint_of({"a": a, "b": b})
    assert fingerprint_of({"b": b, "a": a}) == found
    others = [{"a": a.bfloat16(), "b": b}, {"a": a.view(3, 2), "b": b}, {"c": a, "b": b}, {"a": a}]
    assert len({found, *map(fingerprint_of, others)}) == 5


def test_a_copy_shares_frozen_tensors_alone() -> None:
    module = half_frozen()
    copied = copy_of(module)
    shared = {name for name, t in copied.state_dict().items() if t.data_ptr() == module.state_dict()[name].data_ptr()}
    assert shared == set(frozen_tensors(module))


def test_a_model_of_which_nothing_trains_is_refused() -> None:
    with pytest.raises(UserError, match="requires_grad=True"):
        schema_of(nn.Linear(2, 2).requires_grad_(False))
