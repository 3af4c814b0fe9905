"""Objects in place of names: described by type and shape, known again by a digest."""

import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from polytempo.core.given import described, digest_of


class Net(nn.Module):
    def __init__(self, factor: int = 1) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(3, 2), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.factor


class Hidden(Net):
    def __init__(self, factor):
        super().__init__()
        self._factor = factor


def hidden(factor):
    net = ones()
    net.__class__ = Hidden
    net._factor = factor
    return net


def with_list(*numbers):
    return type("Own", (), {"numbers": list(numbers)})


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def power(exponent):
    return lambda x: x**exponent


def ones(factor=1):
    net = Net(factor)
    with torch.no_grad():
        net.linear.weight.fill_(1)
        net.linear.bias.fill_(1)
    return net


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (np.arange(6), np.arange(6), np.arange(6.0)),
        (np.arange(6), np.arange(6), np.arange(6).reshape(2, 3)),
        (np.arange(6)[::2], np.array([0, 2, 4]), np.array([0, 2, 5])),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), torch.ones(2)),
        ({"a": [1, None]}, {"a": [1, None]}, {"a": [1, 0]}),
        (power(2), power(2), power(3)),
        (partial(max, 1), partial(max, 1), partial(max, 2)),
        (ones(), ones().eval(), ones(2)),
        (np.array(["a", None], object), np.array(["a", None], object), np.array(["b", None], object)),
    ],
    ids=["type", "shape", "strides", "bfloat16", "plain", "closure", "partial", "module", "objects"],
)
def test_equal_objects_have_equal_digests_and_others_have_not(one, same, other):
    assert digest_of(one) == digest_of(same) != digest_of(other)


@pytest.mark.parametrize("made", [hidden, with_list, Slotted])
def test_whatever_an_object_keeps_counts(made):
    assert digest_of(made(1)) == digest_of(made(1)) != digest_of(made(9))


def test_the_code_of_a_class_counts():
    def classes(number):
        class Own:
            def answer(self):
                return number

            def fixed(self):
                return 1

        class Changed(Own):
            def fixed(self):
                return 2

        Changed.__qualname__ = Own.__qualname__
        return Own, Changed

    own, changed = classes(1)
    assert digest_of(own) == digest_of(classes(1)[0]) != digest_of(changed)


def test_an_object_that_holds_itself_has_a_digest():
    ring: list[object] = [1]
    ring.append(ring)
    assert digest_of(ring) == digest_of(ring)


def test_a_digest_is_the_same_in_another_process():
    code = "from polytempo.core.given import digest_of; print(digest_of((lambda x: x in {'a', 'b', 'c'}, {1, 2})))"
    made = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in "12"
    }
    assert len(made) == 1


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (np.zeros((3, 4), np.float32), "numpy ndarray of float32 with shape (3, 4)"),
        (torch.zeros(2, dtype=torch.int64), "torch Tensor of int64 with shape (2,)"),
        ((np.zeros(2), 3), "tuple of 2 (numpy ndarray of float64 with shape (2,), int)"),
        ({"a": [1]}, "dict of 1 (the first: list of 1 (int))"),
        (5, "int"),
        (Net, "class Net"),
        (power, "function power"),
    ],
)
def test_an_object_is_described_by_type_and_shape(thing, words):
    assert described(thing) == words
