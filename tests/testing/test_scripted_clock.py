"""The scripted clock carries out every order, at the time that the speeds of its clients say."""

from typing import Any

import torch

from polytempo.methods import Orders, Report, Send, SetTimer, Strategy, Train, Update, Work, parameters
from polytempo.testing import ScriptedClock, begun, vector


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
