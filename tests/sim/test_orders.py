"""Every event and order, each used by a small strategy in the simulator."""

import pytest
import torch

from polytempo.core.errors import StrategyError
from polytempo.core.orders import Candidates, Objective, Report, Send, SetTimer, Work
from polytempo.learn.questions import question
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies import Strategy
from polytempo.strategies.base.strategy import parameters
from polytempo.strategies.methods.fedasync import FedAsync
from polytempo.testing import simulator


class Recorder(Strategy):
    """Does nothing but remember the updates."""

    def setup(self):
        self.updates = []

    def updated(self, update, now):
        self.updates.append((update, now))

    def of(self, client):
        return [update for update, _ in self.updates if update.client == client]


def record(strategy_class):
    return parameters(strategy_class)()


def test_a_timer_fires_at_its_time_and_after_arrivals_of_the_same_time():
    @record
    class Alarm(Recorder):
        def setup(self):
            super().setup()
            self.fired_at = []

        def joined(self, client, now):
            super().joined(client, now)
            if client == 0:
                yield SetTimer(4.0, "first")
                yield SetTimer(2.5, "second")

        def fired(self, key, now):
            self.fired_at.append((key, now, len(self.updates)))

    sim = simulator(Alarm, clients=1, devices="homogeneous", stop=Stop(updates=2))
    object.__setattr__(sim.devices, "jitter", 0.0)  # 4 steps of exactly 1 s
    sim.run()
    assert Alarm.fired_at == [("second", 2.5, 0), ("first", 4.0, 1)]


def refreshing(rebase):
    @record
    class Refresher(Recorder):
        """Sends a fresh model to client 0 in the middle of its first training."""

        def joined(self, client, now):
            super().joined(client, now)
            if client == 0:
                yield SetTimer(2.0, "refresh")

        def fired(self, key, now):
            self.model.step(torch.ones_like(self.model.weights))
            yield Send(0, self.model.weights, self.model.version, rebase)

    return Refresher


def test_a_refresh_reaches_a_client_in_training_and_its_version_counts_from_there():
    strategy = refreshing(rebase=False)
    sim = simulator(strategy, clients=1, stop=Stop(updates=1))
    sim.run()
    (update,) = strategy.of(0)
    assert update.version == 1
    assert torch.equal(update.start, strategy.model.weights)
    assert update.steps == 4
    assert 0 < update.delta.norm() < 1
    assert [mark["kind"] for mark in sim.history.marks] == ["refresh"]


def test_a_rebased_refresh_keeps_the_progress_so_far():
    kept, lost = refreshing(rebase=True), refreshing(rebase=False)
    for strategy in (kept, lost):
        simulator(strategy, clients=1, stop=Stop(updates=1)).run()
    untouched = record(Recorder)
    simulator(untouched, clients=1, stop=Stop(updates=1)).run()
    # Constant shifts of a linear classifier's weights move no gradient of the first layer's softmax differences,
    # so with its progress kept the client ends where an undisturbed one ends, one step further off.
    full = untouched.of(0)[0].delta.norm()
    assert torch.isclose(kept.of(0)[0].delta.norm(), full, rtol=1e-3)
    assert lost.of(0)[0].delta.norm() < 0.9 * full


def test_report_now_hands_in_the_steps_done_so_far():
    @record
    class Hurry(Recorder):
        def joined(self, client, now):
            super().joined(client, now)
            if client == 0:
                yield SetTimer(2.2, "hurry")

        def fired(self, key, now):
            yield Report(0)

    sim = simulator(Hurry, clients=1, stop=Stop(updates=2))
    sim.run()
    (first, when), (second, _) = Hurry.updates
    assert (first.steps, when) == (2, 2.2)
    assert second.steps == 4


def test_a_client_may_pull_its_model_on_its_own(tmp_path):
    @record
    class Answering(Recorder):
        def setup(self):
            super().setup()
            self.pulls = []

        def pulled(self, client, now):
            self.pulls.append((client, now))
            yield Send(client, self.model_for(client), self.model.version)

    devices = tmp_path / "devices.toml"
    devices.write_text("pull_every = 3.0\n")
    sim = simulator(Answering, clients=2, devices=str(devices), stop=Stop(updates=4))
    before = sim.traffic.bytes_down
    sim.run()
    assert Answering.pulls[:4] == [(0, 3.0), (1, 3.0), (0, 6.0), (1, 6.0)]
    assert sim.traffic.bytes_down > before


def test_a_client_takes_the_candidate_that_fits_it_best():
    @record
    class Offering(Recorder):
        def order_for(self, client, now):
            bad = torch.full_like(self.model.weights, 50.0)
            bad[0] = -50.0
            return self.train(client, self.model, candidates=Candidates((bad, self.model.weights), (7, 3)))

    sim = simulator(Offering, clients=1, stop=Stop(updates=1))
    sim.run()
    (update,) = Offering.of(0)
    assert (update.chosen, update.version) == (1, 3)
    assert update.answers["losses"][0] > update.answers["losses"][1]
    assert sim.traffic.bytes_down >= 2 * 4 * len(update.weights)


def test_a_client_stays_near_the_mixture_of_candidates():
    @record
    class Mixing(Recorder):
        def order_for(self, client, now):
            offered = Candidates((self.model.weights + 1, self.model.weights - 1), (0, 0), use="mixture")
            return self.train(client, self.model, objective=Objective(proximal=0.1), candidates=offered)

    simulator(Mixing, clients=1, stop=Stop(updates=1)).run()
    (update,) = Mixing.of(0)
    assert sum(update.answers["shares"]) == pytest.approx(1)
    assert update.chosen is None


def test_answers_to_questions_ride_with_the_update():
    @question("test-rows")
    def rows(asked):
        return len(asked.rows)

    @record
    class Curious(Recorder):
        def order_for(self, client, now):
            return self.train(client, self.model, questions=("test-rows", "loss-statistics"))

    simulator(Curious, clients=1, stop=Stop(updates=1)).run()
    (update,) = Curious.of(0)
    assert update.answers["test-rows"] == update.samples
    statistics = update.answers["loss-statistics"]
    assert statistics["mean_square"] >= statistics["mean"] ** 2


def test_a_mask_trains_uploads_and_takes_only_its_share():
    @record
    class Sparse(Recorder):
        def order_for(self, client, now):
            mask = torch.zeros(len(self.model.weights), dtype=torch.bool)
            mask[:5] = True
            return self.train(client, self.model, mask=mask)

    sim = simulator(Sparse, clients=1, stop=Stop(updates=1))
    sim.run()
    (update,) = Sparse.of(0)
    assert update.delta[5:].abs().max() == 0
    assert update.delta[:5].abs().min() > 0
    assert sim.traffic.bytes_up == 5 * 4
    assert sim.now == pytest.approx(4 * 5 / 15, rel=0.3)


def test_a_mask_that_lets_nothing_move_is_an_error_that_says_so():
    @record
    class Frozen(Strategy):
        def order_for(self, client, now):
            return self.train(client, self.model, mask=torch.zeros(len(self.model.weights), dtype=torch.bool))

    with pytest.raises(StrategyError, match="nothing move"):
        simulator(Frozen, clients=1).run()


def test_only_the_trainable_layers_move():
    @record
    class Head(Recorder):
        def order_for(self, client, now):
            return self.train(client, self.model, trainable=("0.bias",))

    sim = simulator(Head, clients=1, stop=Stop(updates=1))
    sim.run()
    (update,) = Head.of(0)
    assert update.delta[:12].abs().max() == 0
    assert update.delta[12:].abs().min() > 0
    assert sim.traffic.bytes_up == 3 * 4


def test_an_object_of_the_world_is_handed_to_the_strategy():
    @record
    class Judge(Recorder):
        def setup(self):
            super().setup()
            self.verdicts = []

        def updated(self, update, now):
            super().updated(update, now)
            self.verdicts.append(self.setting.objects["judge"](update.weights))

    sim = simulator(Judge, clients=1, stop=Stop(updates=2), objects={"judge": lambda weights: float(weights.norm())})
    sim.run()
    assert [update.weights.norm().item() for update, _ in Judge.updates] == pytest.approx(Judge.verdicts)


def test_a_strategy_may_set_the_number_of_steps():
    @record
    class Assigning(Recorder):
        def order_for(self, client, now):
            return self.train(client, self.model, steps=1 + client)

    simulator(Assigning, clients=3, stop=Stop(updates=3), work=Work(epochs=1, batch_size=4)).run()
    assert [update.steps for update, _ in Assigning.updates] == [1 + update.client for update, _ in Assigning.updates]


def test_ordering_a_client_that_is_not_ready_is_an_error_that_says_so():
    @record
    class Pushy(Strategy):
        def ready(self, client, now):
            yield self.train(client, self.model)
            yield self.train(client, self.model)

    with pytest.raises(StrategyError, match="has not said ready"):
        simulator(Pushy, clients=1).run()


@pytest.mark.parametrize("at", [float("nan"), float("inf")])
def test_a_timer_without_a_time_is_an_error_that_says_so(at):
    @record
    class Never(Strategy):
        def ready(self, client, now):
            yield SetTimer(at, "never")

    with pytest.raises(StrategyError, match="never"):
        simulator(Never, clients=1).run()


@pytest.mark.parametrize("stop", [Stop(updates=5), Stop(time=50.0)])
def test_a_run_in_which_nothing_happens_any_more_is_an_error_that_says_so(stop):
    @record
    class Lazy(Strategy):
        def ready(self, client, now):
            return None

    with pytest.raises(StrategyError, match="nothing happens any more"):
        simulator(Lazy, clients=1, stop=stop).run()


def test_a_refresh_that_crosses_an_upload_does_no_harm():
    @record
    class Late(FedAsync):
        def updated(self, update, now):
            super().updated(update, now)
            yield Send(update.client, self.model.weights, self.model.version)

    sim = simulator(Late, clients=2, stop=Stop(updates=6))
    sim.run()
    assert sim.updates == 6
    assert not [mark for mark in sim.history.marks if mark["kind"] == "refresh"]
