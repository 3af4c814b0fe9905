"""The save/load contract."""

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polytempo.core.branch import Branch
from polytempo.core.state import digest, load, pack, save, unpack
from polytempo.core.stateful import stateful


class Point(NamedTuple):
    x: int
    y: int


class Whole(int):
    pass


keys = st.one_of(st.integers(), st.text(), st.booleans(), st.tuples(st.integers(), st.text()))
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(keys, inner), st.tuples(inner, inner), st.lists(inner).map(deque)
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_data_comes_back_as_it_was(value):
    back = unpack(*pack(value))
    assert back == value
    assert digest(back) == digest(value)


@given(plain, plain)
def test_equal_digests_mean_equal_data(one, other):
    assert (digest(one) == digest(other)) == (repr(one) == repr(other))


def test_tensors_and_objects_that_are_shared_stay_shared(tmp_path):
    branch, vector = Branch(torch.ones(3)), torch.arange(4.0)
    save({"a": branch, "b": [branch, vector], "c": vector}, tmp_path / "state")
    back = load(tmp_path / "state")
    assert back["a"] is back["b"][0]
    assert back["c"] is back["b"][1]
    assert torch.equal(back["a"].weights, torch.ones(3))


def test_arrays_of_every_used_type_come_back(tmp_path):
    arrays = [np.arange(3, dtype=t) for t in (np.uint8, np.int64, np.float32, np.float64)]
    save(arrays, tmp_path / "state")
    for one, other in zip(arrays, load(tmp_path / "state"), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_a_changed_bit_changes_the_digest():
    one, other = torch.zeros(3), torch.zeros(3)
    other[1] = 1e-45
    assert digest(one) != digest(other)


def test_whether_equal_tensors_are_shared_is_not_part_of_the_digest():
    tensor, branch = torch.ones(3), Branch(torch.ones(2))
    assert digest([tensor, tensor]) == digest([tensor, tensor.clone()])
    assert digest([branch, branch]) == digest([branch, Branch(torch.ones(2))])


def test_shape_and_type_are_part_of_the_digest():
    tensors = [torch.zeros(2, 3), torch.zeros(6), torch.zeros(3, dtype=torch.float64)]
    assert len({digest(tensor) for tensor in tensors}) == 3
    assert digest([torch.zeros(2), torch.zeros(4)]) != digest([torch.zeros(4), torch.zeros(2)])


@pytest.mark.parametrize("value", [defaultdict(int), Point(1, 2), Whole(1)])
def test_a_subclass_that_would_come_back_as_something_else_is_refused(value):
    with pytest.raises(TypeError, match=type(value).__name__):
        pack([value])


def test_numpy_scalars_become_plain_numbers():
    back = unpack(*pack([np.float32(0.5), np.int64(3), np.bool_(True)]))
    assert [type(value) for value in back] == [float, int, bool]


def test_a_set_is_refused_because_its_order_would_be_lost():
    with pytest.raises(TypeError, match="dict"):
        pack({1, 2})


def test_an_unknown_class_is_refused_by_name():
    class Odd:
        pass

    with pytest.raises(TypeError, match="Odd"):
        pack([Odd()])


def test_a_stateful_dataclass_is_saved_by_its_fields():
    @stateful
    @dataclass
    class Pair:
        left: int
        right: list[int]

    assert unpack(*pack(Pair(1, [2]))) == Pair(1, [2])


def test_what_is_loaded_lies_where_torch_would_put_it(tmp_path):
    save([torch.ones(size) for size in range(1, 40)], tmp_path / "state")
    assert all(tensor.data_ptr() % 64 == 0 for tensor in load(tmp_path / "state"))


def test_empty_arrays_come_back(tmp_path):
    save({"none": np.zeros(0), "nothing": torch.zeros(0, 3)}, tmp_path / "state")
    loaded = load(tmp_path / "state")
    assert loaded["none"].dtype == np.float64
    assert loaded["nothing"].shape == (0, 3)
    assert digest(loaded) == digest({"none": np.zeros(0), "nothing": torch.zeros(0, 3)})
