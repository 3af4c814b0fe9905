"""One vector meets the rows of a matrix."""

import numpy as np
import pytest
import torch

from polytempo.core.model import rows
from polytempo.core.model.rows import Compare, meet_rows, sum_rows
from polytempo.testing import vector


@pytest.mark.parametrize("size", [1, 15, 1024, 5000])
@pytest.mark.parametrize("rows", [1, 8, 21])
def test_rows_are_compared_as_they_were_and_then_moved(rows, size):
    rng = torch.Generator().manual_seed(0)
    before, origin = torch.randn(rows, size, generator=rng), torch.randn(size, generator=rng)
    v, shares = torch.randn(size, generator=rng), np.linspace(0, 1, rows)
    exact, target, centre = before.double(), v.double(), origin.double()
    wanted = {
        Compare.NOTHING: torch.zeros(rows),
        Compare.PRODUCTS: (exact - centre) @ (target - centre),
        Compare.SQUARES: (exact - target).square().sum(1),
        Compare.ABSOLUTES: (exact - target).abs().sum(1),
    }
    for compare, values in wanted.items():
        matrix = before.clone()
        sums = meet_rows(matrix, v, compare, origin, shares)
        np.testing.assert_allclose(sums.values, values, rtol=1e-4, atol=1e-3)
        squares = (exact - centre).square().sum(1) if compare == Compare.PRODUCTS else torch.zeros(rows)
        np.testing.assert_allclose(sums.row_squares, squares, rtol=1e-4)
        moved = exact + torch.from_numpy(shares)[:, None] * (target - exact)
        np.testing.assert_allclose(matrix, moved, rtol=1e-4, atol=1e-5)
        assert torch.equal(matrix[0], before[0])  # its share is 0


@pytest.mark.parametrize("size", [3, 5000])
def test_rows_are_summed_by_their_weights(size):
    matrix = torch.randn(7, size, generator=torch.Generator().manual_seed(0))
    weights = np.array([0.5, 0, 0.25, 0, 0, 0, -1])
    np.testing.assert_allclose(sum_rows(weights, matrix), weights @ matrix.double().numpy(), rtol=1e-4, atol=1e-5)


def test_many_rows_give_the_same_bits_on_any_number_of_threads(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    matrix, v = torch.randn(30, 3000, generator=rng), torch.randn(3000, generator=rng)
    monkeypatch.setattr(rows.os, "sched_getaffinity", lambda _: {0, 1, 2})
    found = []
    for worth_threads in (1, 2**30):
        monkeypatch.setattr(rows, "WORTH_THREADS", worth_threads)
        moved = matrix.clone()
        sums = meet_rows(moved, v, Compare.PRODUCTS, matrix[3], np.linspace(0, 1, 30))
        found.append([sums.values, sums.row_squares, moved.numpy(), sum_rows(sums.values, matrix).numpy()])
    for alone, together in zip(*found, strict=True):
        np.testing.assert_array_equal(alone, together)


def test_vectors_and_shares_of_the_wrong_length_are_refused():
    matrix = torch.zeros(3, 2)
    for wrong in (
        lambda: meet_rows(matrix, vector(1), Compare.PRODUCTS),
        lambda: meet_rows(matrix, vector(1, 2), Compare.PRODUCTS, vector(1)),
        lambda: meet_rows(matrix, vector(1, 2), Compare.PRODUCTS, None, np.zeros(2)),
        lambda: sum_rows(np.zeros(2), matrix),
    ):
        with pytest.raises(ValueError, match="expected"):
            wrong()


def test_without_origin_products_are_those_of_the_rows():
    sums = meet_rows(torch.tensor([[1.0, 2.0], [0.0, 3.0]]), vector(2, 1), Compare.PRODUCTS)
    assert sums.values.tolist() == [4.0, 3.0]
    assert sums.row_squares.tolist() == [5.0, 9.0]
