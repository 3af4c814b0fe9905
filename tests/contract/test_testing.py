"""``polytempo.testing`` accepts a strategy that keeps the contract, and says which rule another one breaks."""

import random
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field

from polytempo.methods import Orders, Report, Send, SetTimer, Strategy, Train, Update, Work, parameters
from polytempo.strategies import strategies
from polytempo.testing import ContractError, ScriptedClock, begun, check_strategy, vector


class Mixing(Strategy):
    share: float = Field(0.5, gt=0, le=1)

    def updated(self, update: Update, now: float) -> Orders:
        self.model.mix(update.weights, self.share)


class Sets(Mixing):
    def setup(self) -> None:
        self.known: Any = {}

    def updated(self, update: Update, now: float) -> Orders:
        self.known = {*self.known, update.client}


class Clock(Mixing):
    def updated(self, update: Update, now: float) -> Orders:
        self.last = time.perf_counter()


numbers = count()


class Global(Mixing):
    def updated(self, update: Update, now: float) -> Orders:
        self.model.mix(update.weights, 1 / (1 + next(numbers)))


class Dice(Mixing):
    def ready(self, client: int, now: float) -> Orders:
        random.random()
        return super().ready(client, now)


class File(Mixing):
    def ready(self, client: int, now: float) -> Orders:
        Path(__file__).read_text()
        return super().ready(client, now)


class Overwriting(Mixing):
    def updated(self, update: Update, now: float) -> Orders:
        self.model.weights.add_(0.1)


class Spoiling(Mixing):
    def updated(self, update: Update, now: float) -> Orders:
        update.weights.mul_(0.5)


class Forgetful(Mixing):
    def setup(self) -> None:
        self.seen = 0

    def updated(self, update: Update, now: float) -> Orders:
        self.seen += 1
        self.model.mix(update.weights, 1 / self.seen)

    def save_state(self) -> dict[str, Any]:
        return {name: value for name, value in super().save_state().items() if name != "seen"}


class Pushy(Mixing):
    def updated(self, update: Update, now: float) -> Orders:
        yield self.train(update.client, self.model)


BROKEN = [
    (Sets, r"state 'known' of Sets cannot be saved: set"),
    (Clock, r"told the same events again, it ends in another state. What differs: last"),
    (Global, r"told the same events again, .* orders something else. It depends on more"),
    (Dice, r"ready\(\d\) at .* draws from a global random generator"),
    (File, r"ready\(\d\) at .* calls open. A strategy opens no files"),
    (Overwriting, r"a vector that was handed out by ready\(\d\) at .* was changed in place"),
    (Spoiling, r"the update of .*\(\d\) at .* was changed in place"),
    (Forgetful, r"saved and loaded: is everything in save_state"),
    (Pushy, r"has not said ready"),
]


def test_a_strategy_that_keeps_the_contract_passes_with_and_without_parameters() -> None:
    before = list(strategies)
    check_strategy(Mixing)
    check_strategy(Mixing, share=0.1)
    assert list(strategies) == before


def test_a_class_made_inside_a_function_passes_too() -> None:
    class Local(Mixing):
        pass

    check_strategy(Local)


@pytest.mark.parametrize(("broken", "message"), BROKEN, ids=[broken.__name__ for broken, _ in BROKEN])
def test_a_strategy_that_breaks_the_contract_is_told_which_rule(broken: type[Strategy], message: str) -> None:
    with pytest.raises(ContractError, match=message) as raised:
        check_strategy(broken)
    assert f"{broken.__name__}, in the world" in str(raised.value)


def test_an_error_of_the_strategy_itself_stays_what_it_is() -> None:
    class Faulty(Mixing):
        def updated(self, update: Update, now: float) -> Orders:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        check_strategy(Faulty)
    assert "in the world 'slow'" in raised.value.__notes__[0]


# The scripted clock.


@parameters
class Steps(Strategy):
    """Four steps each; keeps its updates."""

    def setup(self) -> None:
        self.updates: list[Update] = []

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.model, steps=4)

    def updated(self, update: Update, now: float) -> Orders:
        self.updates.append(update)


def clock_of(cls: type[Steps], *seconds: float, **given: Any) -> tuple[ScriptedClock, Any]:
    made = begun(cls(), vector(0.0), len(seconds))
    return ScriptedClock(made, seconds, **given), made


def test_updates_arrive_when_the_steps_are_done() -> None:
    clock, _ = clock_of(Steps, 1.0, 2.5)
    clock.run(until=10.0)
    assert [(arrived.client, arrived.at) for arrived in clock.arrived] == [(0, 4.0), (0, 8.0), (1, 10.0)]


def test_a_report_brings_in_the_steps_done_so_far() -> None:
    class Asking(Steps):
        def ready(self, client: int, now: float) -> Orders:
            yield from super().ready(client, now) or ()
            yield SetTimer(5.0, "report")

        def fired(self, key: str, now: float) -> Orders:
            yield Report(0)

    clock, made = clock_of(Asking, 2.0)
    clock.run(updates=1)
    assert (clock.now, made.updates[0].steps) == (5.0, 2)


def test_a_refresh_is_what_the_update_starts_from() -> None:
    class Sending(Steps):
        def pulled(self, client: int, now: float) -> Orders:
            self.model.step(vector(1.0))
            yield Send(client, self.model.weights, self.model.version)

    clock, made = clock_of(Sending, 1.0)
    clock.pull(0, 2.0)
    clock.run(updates=1)
    assert [send.version for send in clock.sent] == [1]
    assert (made.updates[0].version, made.updates[0].start.item()) == (1, 1.0)


def test_epochs_are_counted_in_steps_over_the_samples() -> None:
    class Epochs(Steps):
        def order_for(self, client: int, now: float) -> Train:
            return Train(client, self.model.weights, self.model.version, Work(epochs=2, batch_size=10))

    clock, _ = clock_of(Epochs, 1.0, samples=[25])
    assert [ordered.steps for ordered in clock.ordered] == [6]


def test_a_silent_client_hands_in_when_told_to() -> None:
    clock, made = clock_of(Steps, 1.0, trained=lambda client, steps, start: start + steps)
    clock.silence(0)
    clock.run(until=100.0)
    assert clock.arrived == []
    clock.hand_in(0, 101.0)
    assert torch.equal(made.updates[0].weights, vector(4.0))
