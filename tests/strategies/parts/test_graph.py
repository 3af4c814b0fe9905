"""Rows of the collaboration graph: likeness, and the projection onto the simplex."""

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polytempo.core.model.rows import Compare, Sums, meet_rows
from polytempo.strategies.methods.pfedgraph import unlikeness
from polytempo.strategies.parts.graph import project_simplex
from polytempo.testing import vector

finite = st.floats(-3, 3, allow_subnormal=False)
vectors = st.integers(1, 8).flatmap(lambda n: arrays(float, n, elements=finite))


@given(vectors)
@settings(max_examples=60)
def test_the_projection_is_what_a_qp_solver_finds(v):
    w = cvxpy.Variable(len(v))
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(w) - 2 * v @ w), [w >= 0, cvxpy.sum(w) == 1]).solve()
    np.testing.assert_allclose(project_simplex(v), w.value, atol=1e-5)


@given(vectors, finite)
def test_the_projection_lies_on_the_simplex_and_does_not_see_a_constant_shift(v, shift):
    w = project_simplex(v)
    assert (w >= 0).all()
    assert w.sum() == pytest.approx(1)
    np.testing.assert_allclose(project_simplex(v + shift), w, atol=1e-9)
    np.testing.assert_allclose(project_simplex(w), w, atol=1e-9)


def sums_of(compare, models, place):
    return meet_rows(torch.from_numpy(models).float(), torch.from_numpy(models[place]).float(), compare)


models = arrays(float, (4, 5), elements=st.floats(-2, 2, width=16).map(lambda x: round(x, 2)))


@given(models, st.sampled_from([0.5, 2.0, 4.0]))
def test_cosines_do_not_see_lengths_and_the_other_metrics_no_common_scale(m, scale):
    longer = m.copy()
    longer[2] *= scale
    cosine = unlikeness("cosine", 0, sums_of(Compare.PRODUCTS, m, 0))
    np.testing.assert_allclose(unlikeness("cosine", 0, sums_of(Compare.PRODUCTS, longer, 0)), cosine, atol=1e-5)
    assert cosine[0] == -1
    assert (np.abs(cosine) <= 1 + 1e-6).all()
    for metric, compare in (("inner", Compare.PRODUCTS), ("l1", Compare.ABSOLUTES), ("l2", Compare.SQUARES)):
        found = unlikeness(metric, 0, sums_of(compare, m, 0))
        np.testing.assert_allclose(unlikeness(metric, 0, sums_of(compare, m * scale, 0)), found, atol=1e-4)


@given(models, arrays(float, 5, elements=st.integers(-3, 3).map(float)))
def test_distances_do_not_see_a_common_shift(m, shift):
    m = np.round(m)
    for metric, compare in (("l1", Compare.ABSOLUTES), ("l2", Compare.SQUARES)):
        here, there = (unlikeness(metric, 1, sums_of(compare, models, 1)) for models in (m, m + shift))
        np.testing.assert_allclose(there, here, atol=1e-5)
        assert here[1] == 0


def test_a_zero_vector_is_neither_like_nor_unlike():
    sums = meet_rows(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), vector(1, 0), Compare.PRODUCTS)
    assert unlikeness("cosine", 0, sums).tolist() == [-1.0, 0.0]


def test_the_inner_product_is_divided_by_its_mean_over_the_row():
    found = unlikeness("inner", 0, Sums(np.array([5.0, 1.0, -3.0]), np.zeros(3)))
    assert found.tolist() == pytest.approx([-5 / 3, -1 / 3, 1.0])
