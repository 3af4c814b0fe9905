"""Training ahead: joined in the order asked for, bounded, and errors come out where they belong."""

import threading

import pytest

from polytempo.sim.lookahead import Lookahead, in_parts


@pytest.fixture
def pool():
    pool = Lookahead(workers=2, ahead=4)
    yield pool
    pool.close()


def test_results_come_back_by_key_in_any_order(pool):
    for key in range(20):
        pool.submit(key, float(key), lambda key=key: key * key)
    assert [pool.fetch(key) for key in reversed(range(20))] == [key * key for key in reversed(range(20))]


def test_no_more_than_the_bound_is_computed_ahead(pool):
    begun = []
    for key in range(50):
        pool.submit(key, float(key), lambda key=key: begun.append(key))
    pool.fetch(0)
    pool.fetch(1)
    assert max(begun) <= 1 + 4


def test_the_earliest_arrival_is_computed_first():
    pool = Lookahead(workers=1, ahead=1)
    gate, order = threading.Event(), []
    pool.submit("gate", 0.0, gate.wait)
    for key in (3, 1, 2):
        pool.submit(key, float(key), lambda key=key: order.append(key))
    gate.set()
    for key in ("gate", 1, 2, 3):
        pool.fetch(key)
    pool.close()
    assert order == [1, 2, 3]


def test_a_cancelled_job_leaves_room_for_others(pool):
    for key in range(10):
        pool.submit(key, float(key), lambda: None)
    for key in range(9):
        pool.cancel(key)
    pool.submit("next", 100.0, lambda: "done")
    assert pool.fetch(9) is None
    assert pool.fetch("next") == "done"


def test_an_error_in_a_job_is_raised_where_it_is_fetched(pool):
    pool.submit("bad", 0.0, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pool.fetch("bad")
    assert pool.evaluate([lambda: 1, lambda: 2]) == [1, 2]


def test_items_are_dealt_out_evenly():
    assert in_parts(range(5), 2) == [[0, 2, 4], [1, 3]]
    assert in_parts([], 3) == []
