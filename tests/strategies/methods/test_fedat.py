"""FedAT: tiers by response time, rounds inside a tier, reversed counts as weights; clients come, go and change."""

from collections import Counter
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from polytempo.core.orders import Orders, Train
from polytempo.core.state import digest, pack, unpack
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies.base.participation import EVERYONE, Quota
from polytempo.strategies.methods.fedat import FedAT, weighted_mean
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo.strategies.parts.tiers import tiers
from polytempo.testing import begun, simulator, update, vector


class Clients:
    """Clients of a strategy, moved by hand: who is in training, and from which order."""

    def __init__(self, clients: int = 0, participation: Quota = EVERYONE, **parameters: float) -> None:
        self.strategy = begun(FedAT(**parameters), vector(0.0), clients, participation)
        self.training: dict[int, Train] = {}
        for client in range(clients):
            self.ready(client)

    @property
    def model(self) -> float:
        return self.strategy.model.weights.item()

    def join(self, client: int, now: float = 0.0) -> None:
        self._obey(self.strategy.joined(client, now))
        self.ready(client, now)

    def ready(self, client: int, now: float = 0.0) -> None:
        self._obey(self.strategy.ready(client, now))

    def hand_in(self, client: int, now: float, weights: float = 0.0, samples: int = 1, ready: bool = True) -> None:
        order = self.training.pop(client)
        handed = update(client, order.version, order.weights, vector(weights), samples)
        self._obey(self.strategy.updated(handed, now))
        if ready:
            self.ready(client, now)

    def leave(self, client: int, now: float = 0.0) -> None:
        self.training.pop(client, None)
        self._obey(self.strategy.left(client, now))

    def _obey(self, orders: Orders) -> None:
        for order in orders or ():
            assert isinstance(order, Train)
            assert order.client not in self.training
            self.training[order.client] = order


def test_a_tier_holds_everybody_within_the_ratio_of_its_fastest():
    assert tiers({0: 4.0, 1: 1.0, 2: 2.0, 3: 2.1, 4: 9.0}, ratio=2.0) == [[1, 2], [3, 0], [4]]
    assert tiers({2: 1.0, 1: 1.0, 0: 1.5}, ratio=1.0) == [[1, 2], [0]]
    assert tiers({}, ratio=2.0) == []


def test_the_first_round_is_with_everybody_and_waits_for_the_slowest():
    clients = Clients(3)
    assert list(clients.training) == [0, 1, 2]
    clients.hand_in(0, 1.0, weights=3.0, samples=2)
    clients.hand_in(1, 1.0, weights=6.0)
    assert list(clients.training) == [2]
    assert clients.model == 0
    clients.hand_in(2, 10.0, weights=12.0)
    assert clients.model == pytest.approx((2 * 3 + 6 + 12) / 4)
    assert sorted(clients.training) == [0, 1, 2]
    assert clients.strategy.seconds == {0: 1.0, 1: 1.0, 2: 10.0}


def test_orders_carry_the_proximal_term():
    assert {order.objective.proximal for order in Clients(2).training.values()} == {0.4}
    assert {order.objective.proximal for order in Clients(2, proximal=0.1).training.values()} == {0.1}


def test_the_slower_of_two_tiers_weighs_as_much_as_the_faster_has_updated():
    clients = Clients(2)
    clients.hand_in(0, 1.0, weights=1.0)
    clients.hand_in(1, 10.0, weights=1.0)
    clients.hand_in(0, 11.0, weights=4.0)  # the fast tier has 2 rounds, the slow one 1
    assert clients.model == pytest.approx(1 / 3 * 4 + 2 / 3 * 1)
    clients.hand_in(0, 12.0, weights=8.0)
    assert clients.model == pytest.approx(1 / 4 * 8 + 3 / 4 * 1)
    clients.hand_in(1, 20.0, weights=2.0)
    assert clients.model == pytest.approx(2 / 5 * 8 + 3 / 5 * 2)


def test_three_tiers_have_each_others_counts_in_reverse():
    clients = Clients(4)
    for client, now in enumerate([1.0, 1.5, 10.0, 100.0]):
        clients.hand_in(client, now, weights=0.0)
    for _ in range(3):
        clients.hand_in(0, 101.0, weights=5.0, samples=3)
        clients.hand_in(1, 101.0, weights=1.0)
    clients.hand_in(2, 110.0, weights=10.0)
    assert clients.model == pytest.approx((1 * 4 + 2 * 10 + 4 * 0) / 7)  # rounds 4, 2, 1; 4 is the fast tier's mean


def test_every_tier_starts_from_the_current_global_model():
    clients = Clients(2)
    clients.hand_in(0, 1.0, weights=1.0)
    clients.hand_in(1, 10.0, weights=1.0)
    clients.hand_in(0, 11.0, weights=4.0)
    assert clients.training[0].weights.item() == pytest.approx(2.0)
    assert clients.training[1].weights.item() == pytest.approx(1.0)  # bound when it was sent


def test_a_client_that_slows_down_changes_its_tier_and_comes_back_when_it_is_fast_again():
    clients = Clients(3)
    clients.hand_in(0, 1.0)
    clients.hand_in(1, 1.0)
    clients.hand_in(2, 10.0)
    clients.hand_in(0, 11.0)
    assert sorted(clients.training) == [1, 2]  # 0 waits for 1, of its tier
    clients.hand_in(1, 18.0)
    assert sorted(clients.training) == [0, 2]  # 1 needed 8 s: it is with 2 now, and waits for it
    clients.hand_in(0, 19.0)
    clients.hand_in(2, 20.0)
    assert sorted(clients.training) == [0, 1, 2]
    clients.hand_in(0, 20.0)
    clients.hand_in(1, 21.0)
    for now in range(21, 30):
        clients.hand_in(0, float(now))
    assert sorted(clients.training) == [0, 2]
    clients.hand_in(2, 30.0)
    assert sorted(clients.training) == [0, 2]  # 1 needed 1 s: it is with 0 again, and waits for it
    clients.hand_in(0, 30.0)
    assert sorted(clients.training) == [0, 1, 2]


def test_a_client_takes_its_rounds_and_its_model_to_its_new_tier():
    clients = Clients(2)
    clients.hand_in(0, 1.0, weights=2.0, samples=3)
    clients.hand_in(1, 10.0, weights=2.0)
    clients.hand_in(0, 19.0, weights=6.0, samples=3)  # 9 s: as slow as the other, with two rounds to its one
    assert clients.model == pytest.approx((3 * 6 + 2) / 4)
    clients.hand_in(1, 20.0, weights=4.0)
    assert clients.model == pytest.approx((3 * 6 + 4) / 4)
    assert sorted(clients.training) == [0, 1]


def test_who_is_slow_to_say_ready_holds_up_its_own_tier_only():
    clients = Clients(2)
    clients.hand_in(0, 1.0)
    clients.hand_in(1, 10.0, ready=False)
    assert list(clients.training) == [0]


def test_a_client_that_leaves_in_mid_round_is_not_waited_for():
    clients = Clients(3)
    clients.hand_in(0, 1.0, weights=2.0)
    clients.hand_in(1, 1.0, weights=4.0)
    clients.leave(2, 2.0)
    assert clients.model == pytest.approx(3.0)
    assert sorted(clients.training) == [0, 1]


def test_a_round_that_everybody_left_is_dropped():
    clients = Clients(2)
    clients.leave(0)
    clients.leave(1)
    assert clients.strategy.model.version == 0
    assert clients.strategy.open == []
    clients.join(1, 5.0)
    assert list(clients.training) == [1]


def test_an_update_counts_though_its_client_left_before_the_round_ended():
    clients = Clients(2)
    clients.hand_in(0, 1.0, weights=2.0)
    clients.leave(0, 2.0)
    clients.leave(1, 3.0)
    assert clients.model == pytest.approx(2.0)


def test_a_client_counts_while_it_is_a_member_and_again_when_it_has_finished_a_round():
    clients = Clients(2)
    clients.hand_in(0, 1.0, weights=2.0)
    clients.hand_in(1, 10.0, weights=2.0)
    clients.leave(1, 10.5)
    clients.hand_in(0, 11.0, weights=6.0)
    assert clients.model == pytest.approx(6.0)
    clients.join(1, 11.5)
    assert sorted(clients.training) == [0, 1]  # it is known to be slow, and waits for nobody
    clients.hand_in(0, 12.0, weights=8.0)
    assert clients.model == pytest.approx(8.0)
    clients.hand_in(1, 21.5, weights=4.0)  # with 3 rounds, as few as anybody has
    assert clients.model == pytest.approx(1 / 2 * 8 + 1 / 2 * 4)


def test_the_models_of_clients_that_left_are_not_kept():
    clients = Clients(2)
    for client in range(2):
        clients.hand_in(client, 1.0)
    for client in range(2, 20):
        clients.join(client, client)
        clients.hand_in(client, client + 0.5, weights=float(client))
        clients.leave(client, client + 0.75)
    _, tensors = pack(clients.strategy.save_state())
    assert len(tensors) <= 4


def test_late_joiners_are_profiled_together_and_count_when_their_round_ends():
    clients = Clients(1)
    clients.hand_in(0, 1.0, weights=1.0)
    clients.join(1, 1.5)
    assert sorted(clients.training) == [0, 1]  # nobody knows how fast it is, so it waits for nobody
    clients.join(2, 1.6)
    clients.join(3, 1.7)
    assert sorted(clients.training) == [0, 1]  # profiling goes round by round
    clients.hand_in(1, 11.5, weights=3.0)
    assert clients.model == pytest.approx(1 / 2 * 1 + 1 / 2 * 3)
    assert sorted(clients.training) == [0, 1, 2, 3]


def test_a_late_joiner_does_not_take_over_the_model():
    clients = Clients(2)
    clients.hand_in(0, 1.0, weights=0.0)
    clients.hand_in(1, 10.0, weights=0.0)
    for now in range(11, 20):
        clients.hand_in(0, float(now), weights=0.0)
    clients.hand_in(1, 20.0, weights=0.0)
    clients.join(2, 20.0)
    clients.hand_in(2, 120.0, weights=1.0)  # a tier of its own, with as few rounds as the slow tier: 10, 2, 2
    assert clients.model == pytest.approx(10 / 14)


def test_a_quota_is_per_tier_and_the_tiers_model_is_that_of_its_last_round():
    clients = Clients(6, Quota(count=2))
    started: Counter[int] = Counter()
    seconds = [1.0, 1.0, 1.0, 10.0, 10.0, 10.0]
    due = {client: seconds[client] for client in clients.training}
    for _ in range(150):
        client = min(due, key=lambda client: (due[client], client))
        now = due.pop(client)
        clients.hand_in(client, now, weights=float(client >= 3))
        for other in clients.training.keys() - due.keys():
            due[other] = now + seconds[other]
            started[other] += 1
        if len(clients.strategy.seconds) == 6:
            assert len(clients.training) <= 4
    assert set(started) == set(range(6))
    strategy = clients.strategy
    for tier in ([0, 1, 2], [3, 4, 5]):
        assert len({id(strategy.models[client]) for client in tier}) == 1
    fast, slow = (sum(strategy.rounds[client] for client in tier) / 3 for tier in ([0, 1, 2], [3, 4, 5]))
    assert clients.model == pytest.approx(fast / (fast + slow))


def test_a_saved_state_goes_on_as_if_nothing_had_happened():
    one = Clients(3)
    one.hand_in(0, 1.0, weights=2.0)
    other = Clients(3)
    other.strategy.load_state(unpack(*pack(one.strategy.save_state())))
    other.training = dict(one.training)
    for clients in (one, other):
        clients.hand_in(1, 1.0, weights=1.0)
        clients.hand_in(2, 9.0, weights=5.0)
        clients.hand_in(0, 10.0, weights=7.0)
    assert digest(one.strategy.save_state()) == digest(other.strategy.save_state())


def test_tiers_run_at_their_own_pace():
    done = simulator(FedAT(), 6, "slow:0.5x5", Stop(updates=60))
    done.run()
    rounds = sorted(done.strategy.rounds.values())
    assert rounds == [rounds[0]] * 3 + [rounds[5]] * 3
    assert 4 * rounds[0] <= rounds[5] <= 6 * rounds[0]


def test_a_federation_of_one_tier_is_fedavg():
    def models(strategy: FedAT | FedAvg) -> list[Tensor]:
        run = simulator(strategy, 4, stop=Stop(updates=20))
        seen: dict[int, Tensor] = {}
        run.run(lambda: seen.update({strategy.model.version: strategy.model.weights}))
        return [seen[version] for version in sorted(seen)]

    ours, theirs = models(FedAT(proximal=0.0)), models(FedAvg())
    assert len(ours) == len(theirs) == 6
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)


def test_a_client_that_slows_down_in_simulation_no_longer_holds_up_the_fast(tmp_path):
    (tmp_path / "devices.toml").write_text("[[speed_change]]\nat = 30.0\nfactor = 8.0\nclients = 0.25\n")
    done = simulator(FedAT(), 4, str(tmp_path / "devices.toml"), Stop(updates=120))
    done.run()
    rounds = sorted(done.strategy.rounds.values())
    assert rounds[0] < rounds[1] == rounds[3]
    assert max(done.strategy.seconds.values()) > 4 * min(done.strategy.seconds.values())


HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(["hand in", "hand in", "quietly", "leave", "come"]), st.integers(0, 5), st.floats(0, 20)),
    max_size=60,
)


@given(HAPPENINGS, st.sampled_from([EVERYONE, Quota(count=2), Quota(count=1, choice="round-robin"), Quota(share=0.5)]))
def test_whatever_happens_somebody_trains_and_every_update_is_aggregated_exactly_once(happenings, quota):
    clients, now = Clients(4, quota), 0.0
    handed: list[float] = []
    aggregated: list[float] = []
    away, paused = {4, 5}, set[int]()

    def recorded(vectors, weights):
        handed_in = list(vectors)
        aggregated.extend(one.item() for one in handed_in)
        return weighted_mean(handed_in, weights)

    with patch("polytempo.strategies.methods.fedat.weighted_mean", recorded):
        for what, client, later in happenings:
            now += later
            if what in ("hand in", "quietly") and clients.training:
                client = sorted(clients.training)[client % len(clients.training)]
                handed.append(len(handed) + 1)
                clients.hand_in(client, now, weights=handed[-1], ready=what == "hand in")
                paused |= {client} if what == "quietly" else set()
            elif what == "leave" and client not in away:
                clients.leave(client, now)
                away.add(client)
                paused.discard(client)
            elif what == "come" and client in paused:
                clients.ready(client, now)
                paused.discard(client)
            elif what == "come" and client in away:
                clients.join(client, now)
                away.discard(client)
            held = [one.weights.item() for round_ in clients.strategy.open for one in round_.arrived]
            assert sorted(aggregated + held) == handed
            assert clients.training or paused or len(away) == 6
            assert all(round_.waiting for round_ in clients.strategy.open)
            assert {c for round_ in clients.strategy.open for c in round_.waiting} == set(clients.training)
            assert torch.isfinite(clients.strategy.model.weights).all()
