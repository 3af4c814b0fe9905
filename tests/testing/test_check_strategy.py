"""``check_strategy`` accepts a strategy that keeps the contract, and says which rule another one breaks."""

import random
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from polytempo.methods import Orders, SetTimer, Strategy, Update
from polytempo.strategies import strategies
from polytempo.testing import ContractError, check_strategy


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


class Hasty(Mixing):
    def ready(self, client: int, now: float) -> Orders:
        yield SetTimer(now, "at once")
        yield from super().ready(client, now) or ()


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
    (Hasty, r"event \d+ is .* in the service and .* in the simulator.*set timers later than now"),
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


def test_an_error_of_the_strategy_itself_is_told_with_where_it_came_up() -> None:
    class Faulty(Mixing):
        def updated(self, update: Update, now: float) -> Orders:
            raise ZeroDivisionError("mine")

    with pytest.raises(ContractError, match="Faulty, in the world 'slow': it raised ZeroDivisionError: mine") as raised:
        check_strategy(Faulty)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_an_object_in_place_of_a_class_is_an_error_that_says_so() -> None:
    with pytest.raises(TypeError, match="takes a class"):
        check_strategy(Mixing())  # type: ignore[arg-type]


def test_it_needs_no_test_framework() -> None:
    loaded = "import sys, polytempo.testing; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert {"pytest", "hypothesis"}.isdisjoint(modules)
