"""Which model an update started from, and what a flight remembers."""

import torch

from polytempo.core import flight as flights
from polytempo.core.flight import Flight, base_of
from polytempo.core.orders import Candidates, Send, Train, Work

ORDERED, FIRST, SECOND, FRESH = (torch.full((4,), float(i)) for i in range(4))
OFFERED = Candidates((FIRST, SECOND), (5, 6))


def order(candidates: Candidates | None = None) -> Train:
    return Train(0, ORDERED, 3, Work(), candidates=candidates)


def test_an_update_starts_from_the_model_of_its_order():
    assert base_of(order(), None) == (ORDERED, 3)


def test_a_client_that_chooses_starts_from_its_candidate():
    assert base_of(order(OFFERED), 1) == (SECOND, 6)
    assert base_of(order(OFFERED), None) is None


def test_candidates_that_are_only_mixed_do_not_change_the_start():
    assert base_of(order(Candidates((FIRST, SECOND), (5, 6), "mixture")), None) == (ORDERED, 3)


def test_a_refresh_is_the_start_whatever_was_chosen_before():
    assert base_of(order(OFFERED), 1, Send(0, FRESH, 9)) == (FRESH, 9)


def test_a_flight_finds_a_model_by_its_number():
    flight = Flight(10, order(), 0, 0.0)
    flight.refresh(12, Send(0, FRESH, 9))
    assert flight.base(10, None) == (ORDERED, 3)
    assert flight.base(12, None) == (FRESH, 9)
    assert flight.base(11, None) is None
    assert (flight.latest, flight.model) == (12, FRESH)


def test_a_flight_forgets_the_oldest_refreshes_and_says_which(monkeypatch):
    monkeypatch.setattr(flights, "MOST_SENDS", 16)
    flight = Flight(1, order(), 0, 0.0)
    for number in range(2, 20):
        flight.refresh(number, Send(0, FRESH, number))
        flight.forget_oldest()
    assert [number for number, _ in flight.sends] == list(range(4, 20))
    assert flight.forgotten == 3
