"""Clients that ask when they want, simulated: they hold the order that brought their model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from polytempo.api import simulate
from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Orders, Report, Send
from polytempo.core.state import digest
from polytempo.sim.comparing import experiments_to_compare
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.records.exchanges import exchange_figures, kl
from polytempo.strategies import Strategy, make_strategy
from polytempo.strategies.base.strategy import parameters
from polytempo.testing import simulator
from polytempo.world.drift import Drift
from support.plugs import PulledPlugError, pulled_after

WORLD: dict[str, Any] = {
    "data": "digits",
    "clients": 6,
    "partition": "rotations:2",
    "devices": "homogeneous",
    "updates": 24,
    "workers": 1,
}
AFTER_EVERY_UPDATE = [{"kind": "mixture", "after": 1, "every": 1}]


def run(strategy: str = "cdfl", **given: Any) -> Any:
    return simulate(strategy, **{**WORLD, **given})


def test_a_client_holds_its_model_for_as_long_as_it_says() -> None:
    sim = simulator(make_strategy("fedasync", {}), clients=1, stop=Stop(updates=3), asking="every:50")
    sim.run()
    assert [row["began"] for row in sim.history.updates] == pytest.approx([0, 54, 108], rel=0.05)
    assert [row["time"] for row in sim.history.updates] == pytest.approx([54, 108, 162], rel=0.05)
    assert {row["staleness"] for row in sim.history.updates} == {0}


def test_staleness_counts_from_the_answer() -> None:
    """While one of two clients holds its model, the other hands in; without asking it would be as here, 1, because
    training takes time too."""
    sim = simulator(make_strategy("fedasync", {}), clients=2, devices="slow:0.5x5", stop=Stop(updates=20))
    asking = simulator(
        make_strategy("fedasync", {}), clients=2, devices="slow:0.5x5", stop=Stop(updates=20), asking="every:500"
    )
    sim.run()
    asking.run()
    assert max(row["staleness"] for row in sim.history.updates) > 3  # the fast one trains five times meanwhile
    assert max(row["staleness"] for row in asking.history.updates) <= 2  # both hold theirs for as long


def test_one_model_is_downloaded_per_exchange() -> None:
    done = run(ask="think:30")
    model = done.bytes_up / done.updates
    assert done.bytes_per_exchange == model
    assert done.exchanges == done.updates == len(done.exchange_log) == 24


def test_fedsoft_downloads_k_times_as_much() -> None:
    one, all_of_them = run(ask="think:30"), run("fedsoft-async", ask="think:30")
    assert all_of_them.bytes_per_exchange == 2 * one.bytes_per_exchange


def test_clients_train_on_the_data_they_have_when_they_ask() -> None:
    """The drift comes while everybody holds a model."""
    sim = simulator(
        make_strategy("fedasync", {}),
        clients=3,
        stop=Stop(updates=3),
        asking="every:50",
        drifts=(Drift(kind="mixture", at=20.0),),
    )
    generations = []
    submit = sim._submit
    sim._submit = lambda training: (generations.append(training.generation), submit(training))  # type: ignore[method-assign, assignment, func-returns-value]
    sim.run()
    assert generations[:3] == [1, 1, 1]


def test_who_watches_asks_at_once_and_then_when_its_data_shift() -> None:
    sim = simulator(
        make_strategy("fedasync", {}),
        clients=3,
        stop=Stop(updates=6),
        asking="labels:10:0.01",
        drifts=(Drift(kind="swap", labels=((0, 1),), at=200.0), Drift(kind="swap", labels=((1, 2),), at=200.0)),
        partition="labels:1",
    )
    sim.run()
    asked = [mark for mark in sim.history.marks if mark["kind"] == "ask"]
    assert [mark["why"] for mark in asked[:3]] == ["it has not trained yet"] * 3
    assert all(mark["time"] == 0 for mark in asked[:3])
    assert all(200 <= mark["time"] <= 210 for mark in asked[3:5])
    assert all("labels" in mark["why"] for mark in asked[3:5])


def test_who_finds_no_reason_asks_after_many_looks() -> None:
    sim = simulator(make_strategy("fedasync", {}), clients=1, stop=Stop(updates=2), asking="labels:10")
    sim.run()
    assert sim.history.updates[1]["time"] - sim.history.updates[0]["time"] == pytest.approx(500, rel=0.02)


@parameters
class Refreshing(Strategy):
    """Sends a model to whoever holds one, and asks for it."""

    ask_for_it: bool = False

    def updated(self, update: Update, now: float) -> Orders:
        self.model.step(update.delta)
        other = 1 - update.client
        yield Report(other) if self.ask_for_it else Send(other, self.model.weights, self.model.version)


def test_a_model_that_is_sent_meanwhile_is_held_in_place_of_the_first() -> None:
    sim = simulator(Refreshing(), clients=2, stop=Stop(updates=6), asking="think:50")
    sim.run()
    assert {row["staleness"] for row in sim.history.updates} == {0}


def test_who_is_told_to_report_while_it_holds_a_model_hands_that_in() -> None:
    sim = simulator(Refreshing(ask_for_it=True), clients=2, stop=Stop(updates=6), asking="think:50")
    sim.run()
    assert 0 in [row["steps"] for row in sim.history.updates]
    state = digest(sim.save_state()["strategy"])
    again = simulator(Refreshing(ask_for_it=True), clients=2, stop=Stop(updates=6), asking="think:50")
    with pytest.raises(PulledPlugError):
        again.run(pulled_after(7))
    resumed = simulator(Refreshing(ask_for_it=True), clients=2, stop=Stop(updates=6), asking="think:50")
    resumed.load_state(again.save_state())
    resumed.history.__dict__.update(again.history.__dict__)
    resumed.run()
    assert digest(resumed.save_state()["strategy"]) == state


def test_a_client_that_was_off_comes_back_with_an_old_version(tmp_path: Any) -> None:
    devices = tmp_path / "devices.toml"
    devices.write_text("[availability]\non = 30.0\noff = 300.0\n")
    done = run(ask="every:10", devices=str(devices), updates=60)
    assert max(row["staleness"] for row in done.update_log) >= 2 * 6


def test_clients_that_come_late_and_go_take_part(tmp_path: Any) -> None:
    devices = tmp_path / "devices.toml"
    devices.write_text("[dropout]\nprobability = 0.3\naway = 40.0\n[[late]]\nclients = 0.5\nby = 300.0\n")
    done = run(ask="think:20", devices=str(devices), updates=60)
    kinds = {mark["kind"] for mark in done.marks}
    assert {"joined", "left", "ask"} <= kinds
    assert {row["client"] for row in done.update_log} == set(range(6))


def test_a_preset_is_written_down_with_what_it_sets() -> None:
    config = run(parameters={"preset": "paper"}, updates=4).config
    assert (config["parameters"]["preset"], config["parameters"]["estimate"]) == ("paper", "paper")
    assert {name: config["resolved"][name] for name in ("sharpness", "tau0", "b")} == {
        "sharpness": 12,
        "tau0": 40,
        "b": 5,
    }


@pytest.mark.parametrize("given", [{}, {"estimate": "paper"}, {"preset": "paper"}])
def test_a_run_with_asks_and_exchanges_that_was_cut_off_ends_bit_identical(given: dict[str, str]) -> None:
    def made() -> Any:
        return simulator(
            make_strategy("cdfl", given),
            clients=4,
            stop=Stop(updates=20),
            asking="loss:7",
            workers=2,
            partition="groups:2",
        )

    whole = made()
    whole.run()
    first = made()
    with pytest.raises(PulledPlugError):
        first.run(pulled_after(26))
    second = made()
    second.load_state(first.save_state())
    second.history.__dict__.update(first.history.__dict__)
    second.run()
    assert digest(second.strategy.save_state()) == digest(whole.strategy.save_state())
    assert digest(second.history.exchanges) == digest(whole.history.exchanges)


def test_exchanges_tell_the_true_and_the_estimated_mixture_of_that_moment() -> None:
    done = run(ask="think:30", drift=AFTER_EVERY_UPDATE)
    of_one = [row for row in done.exchange_log if row["client"] == of_most(done)]
    assert len({tuple(row["mixture"]) for row in of_one}) == len(of_one) > 1
    for row in done.exchange_log:
        assert row["mixture"].sum() == pytest.approx(1)
        assert row["estimate"].sum() == pytest.approx(1)
        assert row["kl"] == pytest.approx(float((row["mixture"] * np.log(row["mixture"] / row["estimate"])).sum()))
        assert 0 <= row["before"] <= 1
    assert done.mixture_kl is not None
    assert done.cluster_accuracy == pytest.approx(np.mean(done.result["cluster_accuracies"]))


def of_most(done: Any) -> int:
    return int(np.bincount([row["client"] for row in done.exchange_log]).argmax())


@pytest.mark.parametrize("seed", [0, 1])
def test_estimates_are_nearer_to_the_truth_than_the_uniform_mixture(seed: int) -> None:
    done = run(
        partition="rotations:3",
        clients=20,
        updates=200,
        proxies=250,
        steps=40,
        batch_size=32,
        ask="think:600",
        drift=AFTER_EVERY_UPDATE,
        seed=seed,
    )
    assert done.mixture_kl < done.mixture_kl_uniform
    assert done.accuracy_after > done.accuracy_before


def test_groups_are_mixtures_of_one_cluster() -> None:
    done = run(partition="groups:2", ask="think:30")
    assert {tuple(row["mixture"]) for row in done.exchange_log} == {(1.0, 0.0), (0.0, 1.0)}


def test_a_method_that_estimates_nothing_has_no_kl_but_exchanges() -> None:
    done = run("fedbuff", ask="think:30")
    assert (done.mixture_kl, done.cluster_accuracy) == (None, None)
    assert done.accuracy_after is not None
    assert done.mixture_kl_uniform is not None


def test_the_usual_runs_record_no_exchanges() -> None:
    assert run("fedbuff", partition="iid").exchanges == 0


def row(after: float, divergence: float | None = None) -> Mapping[str, Any]:
    return {"before": 0.5, "after": after, "kl": divergence, "mixture": np.array([0.75, 0.25])}


def test_figures_are_means_over_the_last_quarter() -> None:
    figures = exchange_figures([*[row(0.0)] * 6, row(0.5, 0.2), row(0.7, 0.4)])
    assert figures["accuracy_after"] == pytest.approx(0.6)
    assert figures["mixture_kl"] == pytest.approx(0.3)
    assert figures["mixture_kl_uniform"] == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5))
    assert exchange_figures([])["accuracy_after"] is None
    assert [exchange_figures([row(0.1)] * n)["accuracy_after"] for n in (1, 2, 3)] == pytest.approx([0.1] * 3)


def test_the_divergence_by_hand_and_of_a_share_that_was_not_seen() -> None:
    assert kl(np.array([0.5, 0.5]), np.array([0.25, 0.75])) == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert kl(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == pytest.approx(0.5 * np.log(0.5) + 0.5 * np.log(0.5e9))


def test_bad_words_are_refused() -> None:
    with pytest.raises(UserError, match="every:60"):
        run(ask="every:never", data="nowhere.npz")  # before anything is loaded
    with pytest.raises(UserError, match="warm_up"):
        run("fedbuff", warm_up=3)


@pytest.mark.parametrize("words", ["think:1e300", "think:0", "every:-1", "labels:60:0.6", "sometimes:3", "think"])
def test_words_that_are_no_policy_say_what_is_expected(words: str) -> None:
    with pytest.raises(UserError, match=r"Expected|Known|know"):
        run(ask=words)


@pytest.mark.parametrize("proxies", ["-5", "1.5", "nowhere.npz"])
def test_proxies_that_are_neither_a_number_nor_a_file_are_refused(proxies: str) -> None:
    with pytest.raises(UserError, match="whole number"):
        run(proxies=proxies)


def test_proxies_may_be_a_number_in_python_and_default_in_words() -> None:
    assert run(proxies=40, updates=2).config["resolved"]["proxies"] == [40, 40]
    assert run("fedbuff", proxies="default", updates=2).config["resolved"]["proxies"] == [143, 143]
    assert run("fedbuff", updates=2).config["resolved"].get("proxies") is None


def test_a_comparison_is_fair_as_soon_as_one_method_needs_proxies() -> None:
    needing = experiments_to_compare(["cdfl", "fedbuff"], 1, {}, {})
    assert [experiment.proxies for experiment in needing] == ["default", "default"]
    assert experiments_to_compare(["cdfl", "fedbuff"], 1, {}, {"proxies": "30"})[1].proxies == "30"
    assert experiments_to_compare(["fedasync", "fedbuff"], 1, {}, {})[0].proxies is None


def test_more_proxies_than_there_are_data_is_an_error_with_the_number_that_is_possible() -> None:
    with pytest.raises(UserError, match="Take at most"):
        run(proxies="5000")
