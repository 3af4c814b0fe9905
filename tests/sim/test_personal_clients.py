"""Simulated clients that follow the personal rule: what they remember and use, and what it costs them."""

from pathlib import Path

import numpy as np
import pytest

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.core.orders import Candidates, Train, Work
from polytempo.core.state import pack, unpack
from polytempo.learn.learner import forward_steps
from polytempo.sim.memories import DIRECTORY, Memories
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies import make_strategy
from polytempo.strategies.parts import tryout
from polytempo.strategies.parts.personal import PersonalRule
from polytempo.testing import simulator, vector
from polytempo_client.personal.jury import Rows
from polytempo_client.personal.rule import ClientMemory
from polytempo_client.personal.told import TUTTI, Personal

WORLD = {"clients": 6, "updates": 48, "steps": 6, "partition": "groups:2"}


def memory(number: float) -> ClientMemory:
    model = np.full(1000, number, np.float32)
    return ClientMemory(model, model + 1, np.arange(3))


def test_without_the_rule_a_client_uses_what_it_is_served() -> None:
    run = simulate("fedasync", **WORLD)
    assert run.accuracy_used == run.accuracy
    assert np.array_equal(run.evaluations[-1]["per_client_used"], run.evaluations[-1]["per_client"])


def test_the_rule_works_with_any_method_and_own_is_the_clients_model_not_what_it_hands_in() -> None:
    run = simulate("fedasync", personal=True, **WORLD)
    assert run.accuracy_used > run.accuracy
    assert run.accuracy_trained > run.accuracy


def test_slow_and_fast_clients_are_judged_by_the_models_that_they_use() -> None:
    run = simulate("fedasync", personal=True, **WORLD)
    used, served = (np.array(run.final_per_client(model)) for model in ("used", "served"))
    assert run.accuracy_std == pytest.approx(used.std()) != pytest.approx(served.std())
    fifths = (run.accuracy_slowest_fifth, run.accuracy_fastest_fifth)
    assert all(
        any(fifth == pytest.approx(accuracy) for accuracy in used) for fifth in fifths
    )  # of six clients, one each
    with pytest.raises(UserError, match="Did you mean 'used'"):
        run.final_per_client("use")  # type: ignore[arg-type]


def test_the_rule_changes_nothing_for_those_who_are_alone() -> None:
    assert simulate("standalone", personal=True, **WORLD).digest == simulate("standalone", **WORLD).digest


def test_a_run_with_the_rule_has_the_same_bits_with_any_number_of_workers() -> None:
    assert simulate("concerto", workers=1, **WORLD).digest == simulate("concerto", workers=3, **WORLD).digest


def test_a_simulation_that_was_saved_in_the_middle_ends_in_the_same_bits() -> None:
    def made(stop: int):  # type: ignore[no-untyped-def]
        return simulator(PersonalRule(make_strategy("fedasync", {})), 4, "slow:0.5x3", Stop(updates=stop))

    whole, half, rest = made(24), made(12), made(24)
    whole.run()
    half.run()
    rest.load_state(unpack(*pack(half.save_state())))
    rest._finished = False
    rest.run()
    for client in range(4):
        one, other = whole.personal.memories[client], rest.personal.memories[client]
        assert one is not None
        assert other is not None
        assert np.array_equal(one.average, other.average)
    assert np.array_equal(
        whole.history.evaluations[-1]["per_client_used"], rest.history.evaluations[-1]["per_client_used"]
    )


def test_where_clients_differ_too_much_a_tryout_makes_soloists_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fewer in (("WARM_UP", 4), ("BEFORE", 2), ("LENGTH", 2), ("FEWEST", 3), ("MOST", 3)):
        monkeypatch.setattr(tryout, name, fewer)
    run = simulate("concerto", clients=8, updates=120, steps=4, partition="labels:2")
    assert run.tryout_winner == "solo"
    assert "tryout won by solo" in run.summary()
    rows = {client: [row["samples"] for row in run.update_log if row["client"] == client] for client in range(8)}
    settled = [of for of in rows.values() if of[-1] > of[0]]
    assert len(settled) >= 4  # slow clients are not there yet
    assert all(of == sorted(of) and len(set(of)) == 2 for of in settled)  # all of its rows, once and for good
    assert simulate("fedasync", **WORLD).tryout_winner is None


# Forward passes are charged.

SIX_JURORS = Rows(np.arange(54), np.arange(54, 60), np.arange(54), changed=False)


@pytest.mark.parametrize(
    ("order", "steps"),
    [
        (Train(0, vector(1), 0, Work(batch_size=10)), 0),
        (Train(0, vector(1), 0, Work(batch_size=10), questions=("fit", "soft-labels")), 2 * 60 / 30),
        (Train(0, vector(1), 0, Work(batch_size=10), candidates=Candidates((vector(1),) * 3, (0,) * 3)), 3 * 60 / 30),
        (Train(0, vector(1), 0, Work(batch_size=10), personal=Personal()), 4 * 6 / 30),
        (Train(0, vector(1), 0, Work(batch_size=10), personal=Personal(parameters={TUTTI: 1.0})), 6 * 6 / 30),
    ],
    ids=["nothing", "questions", "candidates", "mixtures", "a rehearsal"],
)
def test_a_forward_pass_costs_a_third_of_a_training_step(order: Train, steps: float) -> None:
    assert forward_steps(order, rows=60, dealt=SIX_JURORS, memory=memory(0)) == pytest.approx(steps)


def test_a_client_whose_data_have_changed_does_not_rehearse_and_is_not_charged_for_it() -> None:
    order = Train(0, vector(1), 0, Work(batch_size=10), personal=Personal(parameters={TUTTI: 1.0}))
    steps = forward_steps(order, rows=60, dealt=SIX_JURORS._replace(changed=True), memory=memory(0))
    assert steps == pytest.approx(4 * 6 / 30)


def test_a_client_without_a_model_of_its_own_has_nothing_to_judge() -> None:
    assert forward_steps(Train(0, vector(1), 0, Work(), personal=Personal()), 60, SIX_JURORS, memory=None) == 0


def test_candidates_take_virtual_time() -> None:
    world = {"clients": 4, "updates": 8, "steps": 6, "devices": "homogeneous", "partition": "iid"}
    assert simulate("ifca-async", **world).virtual_time > simulate("fedasync", **world).virtual_time


# Memories that do not fit into memory.


def test_memories_past_the_bound_are_in_files_and_come_back_as_they_were(tmp_path: Path) -> None:
    memories = Memories(tmp_path / DIRECTORY, held_bytes=3 * memory(0).nbytes)
    for client in range(8):
        memories.keep(client, memory(client))
    assert len(list((tmp_path / DIRECTORY).iterdir())) == 5
    for client in range(8):
        found = memories[client]
        assert found is not None
        assert (found.own[0], found.average[0]) == (client, client + 1)
    assert memories[8] is None


def test_a_checkpoint_finds_its_files_whatever_was_written_since(tmp_path: Path) -> None:
    bound = 2 * memory(0).nbytes
    memories = Memories(tmp_path / DIRECTORY, bound)
    for client in range(4):
        memories.keep(client, memory(client))
    saved = pack(memories.save_state())
    memories.drop_files()
    for client in range(4):
        memories.keep(client, memory(10 + client))
    again = Memories(tmp_path / DIRECTORY, bound)
    again.load_state(unpack(*saved))
    assert [again[client].own[0] for client in range(4)] == [0, 1, 2, 3]  # type: ignore[union-attr]
    assert len(list((tmp_path / DIRECTORY).iterdir())) == 2


def test_a_run_with_a_directory_leaves_no_memories_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytempo.sim.memories.HELD_BYTES", 1)
    simulate("concerto", out=tmp_path / "run", **WORLD)
    assert not (tmp_path / "run" / DIRECTORY).exists()


def test_a_target_is_about_the_models_that_clients_use() -> None:
    run = simulate("fedasync", personal=True, target=0.5, stop_at_target=False, eval_every=6, **WORLD)
    reached = next(row for row in run.evaluations if row["accuracy_used"] >= 0.5)
    assert run.time_to_target == reached["time"]
    assert reached["accuracy"] < 0.5
    assert f"used accuracy {run.accuracy_used:.1%}, served {run.accuracy:.1%}" in run.summary()
