"""The simulator: determinism, stops, participation, clients that come and go, data that drift."""

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.core.orders import Work
from polytempo.core.schedules import Schedule, parse_rate, rate_at
from polytempo.core.state import digest
from polytempo.learn.flat import initial_vector
from polytempo.learn.scoring import Scorer
from polytempo.sim.executors.threads import Threads
from polytempo.sim.records import evaluation
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.records.measures import score_clients
from polytempo.strategies import make_strategy, strategies
from polytempo.strategies.base.participation import Quota
from polytempo.strategies.methods.fedasync import FedAsync
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo.strategies.methods.standalone import Standalone
from polytempo.testing import simulator
from polytempo.world.drift import Drift


def fingerprint(sim) -> str:
    return digest(sim.strategy.save_state(), sim.history.evaluations, sim.history.updates)


@pytest.mark.parametrize("name", list(strategies))
def test_a_run_is_bit_identical_whatever_the_number_of_workers(name):
    prints = set()
    for workers in (1, 1, 2, 5):
        sim = simulator(
            make_strategy(name, {}), clients=5, devices="slow:0.4x5", workers=workers, stop=Stop(updates=25)
        )
        sim.run()
        prints.add(fingerprint(sim))
    assert len(prints) == 1


def test_another_seed_gives_another_run():
    digests = {simulate("fedasync", clients=5, updates=10, seed=seed).digest for seed in (0, 1)}
    assert len(digests) == 2


def test_virtual_time_comes_from_the_devices_alone():
    sim = simulator(FedAsync(), clients=1, stop=Stop(updates=3))
    object.__setattr__(sim.devices, "jitter", 0.0)
    sim.run()
    assert [row["time"] for row in sim.history.updates] == [4.0, 8.0, 12.0]


def test_a_synchronous_round_waits_for_the_slowest():
    sim = simulator(FedAvg(), clients=4, devices="slow:0.25x5", stop=Stop(updates=8))
    object.__setattr__(sim.devices, "jitter", 0.0)
    sim.run()
    assert sorted({row["began"] for row in sim.history.updates}) == [0.0, 20.0]


def test_an_asynchronous_client_never_waits():
    sim = simulator(FedAsync(), clients=4, devices="slow:0.25x5", stop=Stop(time=20.0))
    object.__setattr__(sim.devices, "jitter", 0.0)
    sim.run()
    assert sim.updates == 3 * 5 + 1
    assert sim.now == 20.0


def test_at_most_k_train_at_once():
    sim = simulator(FedAsync(), clients=8, participation=Quota(count=3), stop=Stop(updates=40))
    sim.run()
    spans = [(row["began"], row["time"]) for row in sim.history.updates]
    for moment, _ in spans:
        assert sum(began <= moment < ended for began, ended in spans) <= 3
    assert len({row["client"] for row in sim.history.updates}) == 8


def test_a_run_stops_at_its_updates():
    sim = simulator(FedAsync(), stop=Stop(updates=7))
    sim.run()
    assert sim.updates == 7
    assert sim.history.evaluations[-1]["updates"] == 7


def test_a_run_stops_at_its_target_and_says_when():
    sim = simulator(Standalone(), stop=Stop(updates=300, target=0.6, at_target=True))
    sim.run()
    assert sim.evaluator.time_to_target == sim.now
    assert sim.updates < 300


def test_a_run_stops_when_nothing_gets_better():
    sim = simulator(Standalone(), stop=Stop(patience=3), work=Work(steps=1, epochs=None, lr=1e-9))
    sim.run()
    assert len(sim.history.evaluations) == 4


def test_a_late_joiner_trains_from_when_it_joins(tmp_path):
    devices = tmp_path / "devices.toml"
    devices.write_text("[[late]]\nclients = 0.5\nby = 50.0\n")
    sim = simulator(FedAsync(), clients=4, devices=str(devices), stop=Stop(time=100.0))
    sim.run()
    for client in range(4):
        first = min(row["began"] for row in sim.history.updates if row["client"] == client)
        assert first == pytest.approx(sim.devices.joins_at(client))
    assert sum(sim.devices.joins_at(client) > 0 for client in range(4)) == 2


def test_a_lost_training_never_arrives_and_its_client_returns(tmp_path):
    devices = tmp_path / "devices.toml"
    devices.write_text("[dropout]\nprobability = 0.4\naway = 10.0\n")
    for strategy in (FedAsync(), FedAvg()):
        sim = simulator(strategy, clients=4, devices=str(devices), stop=Stop(updates=40))
        sim.run()
        assert sim.updates == 40
        left = [mark for mark in sim.history.marks if mark["kind"] == "left"]
        assert left
        for mark in left:
            assert not any(
                row["client"] == mark["client"] and row["began"] < mark["time"] < row["time"]
                for row in sim.history.updates
            )


def test_clients_that_think_start_when_they_choose(tmp_path):
    devices = tmp_path / "devices.toml"
    devices.write_text("think = 20.0\n")
    sim = simulator(FedAsync(), clients=3, devices=str(devices), stop=Stop(updates=30))
    sim.run()
    rows = [row for row in sim.history.updates if row["client"] == 0]
    pauses = [after["began"] - before["time"] for before, after in pairwise(rows)]
    assert all(pause > 0 for pause in pauses)
    assert sum(pauses) / len(pauses) == pytest.approx(20, rel=0.8)


@pytest.mark.parametrize("quota", [Quota(), Quota(count=1)])
@pytest.mark.parametrize("method", [FedAsync, FedAvg])
def test_a_client_that_is_not_available_does_not_begin(tmp_path, method, quota):
    devices = tmp_path / "devices.toml"
    devices.write_text("jitter = 0.0\n[availability]\non = 10.0\noff = 30.0\n")
    sim = simulator(method(), clients=3, devices=str(devices), stop=Stop(updates=30), participation=quota)
    sim.run()
    for row in sim.history.updates:
        first_step = row["time"] - row["steps"]
        assert sim.devices.available_from(row["client"], first_step) == first_step


def test_the_network_takes_its_time_both_ways(tmp_path):
    devices = tmp_path / "devices.toml"
    devices.write_text("jitter = 0.0\n[network]\ndown = 60.0\nup = 30.0\nlatency = 1.0\n")
    sim = simulator(FedAsync(), clients=1, devices=str(devices), stop=Stop(updates=1))
    sim.run()
    model_bytes = 4 * 15
    assert sim.now == pytest.approx((1 + model_bytes / 60) + 4 + (1 + model_bytes / 30))
    assert (sim.traffic.bytes_down, sim.traffic.bytes_up) == (
        2 * model_bytes,
        model_bytes,
    )  # one more download has begun


def test_a_label_swap_hurts_until_it_is_learned():
    drifts = (Drift(at=40.0, kind="swap", labels=((0, 1),)),)
    sim = simulator(Standalone(), clients=3, stop=Stop(time=200.0), drifts=drifts)
    sim.run()
    rows = sim.history.evaluations
    before = max(row["accuracy"] for row in rows if row["time"] < 40)
    after = min(row["accuracy"] for row in rows if 40 < row["time"] < 60)
    assert after < before
    assert rows[-1]["accuracy"] > after
    assert [mark["kind"] for mark in sim.history.marks] == ["drift"] * 3


def test_a_drift_at_the_beginning_is_there_in_the_first_training():
    sim = simulator(FedAsync(), clients=2, drifts=(Drift(at=0.0, kind="swap", labels=((0, 1),)),), stop=Stop(updates=1))
    sim.run()
    assert [mark["time"] for mark in sim.history.marks] == [0.0, 0.0]
    assert all(training.generation == 1 for training in sim._trainings.values())


def test_an_update_with_nan_is_refused_and_a_diverging_run_ends_in_plain_words():
    sim = simulator(FedAsync(), clients=2, work=Work(steps=2, epochs=None, lr=1e38, weight_decay=1e9))
    with pytest.raises(UserError, match="--lr"):
        sim.run()
    assert torch.isfinite(sim.strategy.model.weights).all()
    assert sim.updates == 0


@pytest.mark.parametrize("name", list(strategies))
def test_one_slow_client_with_one_epoch_is_enough(name):
    sim = simulator(make_strategy(name, {}), clients=1, devices="slow:1x5", work=Work(epochs=1), stop=Stop(updates=2))
    sim.run()
    assert sim.updates == 2


def test_clients_that_share_a_model_are_scored_like_clients_alone():
    shared = simulator(FedAvg(), clients=6, stop=Stop(updates=6))
    shared.run()
    served = shared.history.evaluations[-1]["per_client"]
    for client in range(6):
        data = shared.federation.client(client)
        linear = nn.Linear(4, 3)
        assert len(initial_vector(linear)) == 15
        weights = shared.strategy.model_for(client)
        outputs = torch.from_numpy(shared.federation.dataset.x[data.test]) @ weights[:12].view(3, 4).T + weights[12:]
        accuracy = (outputs.argmax(1).numpy() == data.y[data.test]).mean()
        assert served[client] == pytest.approx(accuracy)


@pytest.mark.parametrize(("method", "passes"), [(FedAvg, 1), (Standalone, 6)])
def test_each_distinct_model_is_scored_in_one_pass(monkeypatch, method, passes):
    sim = simulator(method(), clients=6, stop=Stop(updates=6))
    sim.run()
    scored = []
    metric = Scorer.metric
    monkeypatch.setattr(
        Scorer, "metric", lambda self, w, x, y, rows: scored.append(len(rows)) or metric(self, w, x, y, rows)
    )
    executor = Threads(sim.evaluator.world.worker(), workers=2)
    score_clients(range(6), sim.strategy.model_for, sim.federation.client, executor)
    executor.close()
    assert len(scored) == passes
    assert sum(scored) == len(sim.federation.test_idx)


def test_a_model_for_all_that_has_not_changed_is_not_scored_again(monkeypatch):
    scored = []
    whole = evaluation.score_clients
    monkeypatch.setattr(evaluation, "score_clients", lambda who, *rest: scored.append(list(who)) or whole(who, *rest))
    sim = simulator(FedAvg(), clients=3, stop=Stop(updates=6))
    sim.eval_every = 1
    sim.run()
    assert [row["updates"] for row in sim.history.evaluations] == list(range(7))
    assert scored.count([0, 1, 2]) == 3  # the first model and one per round; own models are scored client by client
    accuracies = [row["accuracy"] for row in sim.history.evaluations]
    assert accuracies[0] == accuracies[2] != accuracies[3]


def test_a_model_for_all_is_scored_again_when_data_have_changed():
    in_the_second_round = Drift(at=6.0, kind="swap", labels=((0, 1),))
    sim = simulator(FedAvg(), clients=3, stop=Stop(updates=6), drifts=(in_the_second_round,))
    sim.eval_every = 1
    sim.run()
    before, after = (row for row in sim.history.evaluations if row["updates"] in (3, 4))
    assert before["time"] < 6.0 < after["time"]
    assert after["accuracy"] != before["accuracy"]


def test_a_model_for_all_that_was_changed_in_place_is_scored_again():
    class InPlace(FedAsync):
        def updated(self, update, now):
            self.model.weights.copy_(update.weights)

    sim = simulator(InPlace(), clients=3, stop=Stop(updates=6))
    sim.eval_every = 1
    sim.run()
    assert len({row["accuracy"] for row in sim.history.evaluations}) > 1


def test_a_run_may_end_at_its_target_or_at_its_time():
    given = {"clients": 4, "time": 400.0, "target": 0.3, "stop_at_target": True}
    reached = simulate("fedasync", **given)
    assert reached.virtual_time == reached.time_to_target < 400.0
    missed = simulate("fedasync", **{**given, "target": 1.0, "time": 40.0})
    assert (missed.virtual_time, missed.time_to_target) == (40.0, None)
    on = simulate("fedasync", **{**given, "stop_at_target": None})
    assert on.virtual_time == 400.0 > on.time_to_target


def test_idle_is_the_time_for_which_a_client_was_ready_and_had_nothing_to_do():
    sim = simulator(FedAvg(), clients=3, devices="slow:0.3x5", stop=Stop(updates=9))
    sim.devices = replace(sim.devices, jitter=0.0)
    sim.run()
    slow = int(sim.devices.seconds_per_step.argmax())
    idle = sim.history.evaluations[-1]["per_client_idle"]
    assert idle == pytest.approx([0.0 if client == slow else 0.8 for client in range(3)])
    assert sim.history.evaluations[-1]["idle_share"] == pytest.approx(1.6 / 3)
    assert sim.history.evaluations[0]["idle_share"] == 0.0


def test_who_never_waits_is_never_idle():
    sim = simulator(FedAsync(), clients=3, devices="slow:0.3x5", stop=Stop(updates=9))
    sim.run()
    assert sim.history.evaluations[-1]["per_client_idle"].tolist() == [0.0, 0.0, 0.0]


def test_the_learning_rate_follows_its_schedule_over_a_clients_rounds():
    stepped, cosine = parse_rate("step:0.1:0.5:2"), parse_rate("cosine:0.1:0:4")
    assert [rate_at(stepped, done) for done in range(5)] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025])
    assert [rate_at(cosine, done) for done in (0, 2, 4, 9)] == pytest.approx([0.1, 0.05, 0, 0])
    strategy = Standalone()
    simulator(
        strategy, clients=1, stop=Stop(updates=3), work=Work(steps=1, epochs=None, lr=Schedule("step", 0.1, 0, 1))
    ).run()
    constant = Standalone()
    simulator(constant, clients=1, stop=Stop(updates=1), work=Work(steps=1, epochs=None, lr=0.1)).run()
    assert torch.equal(strategy.model_for(0), constant.model_for(0))  # after the first round the rate is 0


def test_memory_per_idle_client_stays_small():
    tracemalloc.start()
    strategy = FedAsync()
    few, many = 500, 3_500
    sizes = []
    for clients in (few, many):
        sim = simulator(strategy, clients=clients, participation=Quota(count=1), stop=Stop(updates=60))
        sim.run()
        index_list = sum(a.nbytes for a in (sim.federation.train_idx, sim.federation.test_idx))
        data = sim.federation.dataset.x.nbytes + sim.federation.dataset.y.nbytes
        sizes.append(tracemalloc.get_traced_memory()[0] - index_list - data)
        del sim
    tracemalloc.stop()
    assert (sizes[1] - sizes[0]) / (many - few) < 2048
