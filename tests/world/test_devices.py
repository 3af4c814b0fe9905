"""Devices: who is slow, how long a round takes, and when a client is there."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytempo.core.errors import UserError
from polytempo.world.devices import Devices, SpeedChange, device_mixes, make_devices
from support import ROOT


def from_toml(path: Path, text: str, clients: int = 10, seed: int = 0) -> Devices:
    (path / "devices.toml").write_text(text)
    return make_devices(str(path / "devices.toml"), clients, seed)


def with_changes(*changes: tuple[float, float]) -> Devices:
    one, free = np.ones(1), np.full(1, np.inf)
    mask = np.ones(1, bool)
    sudden = tuple(SpeedChange(at, factor, mask) for at, factor in sorted(changes))
    none = np.zeros(1)
    return Devices(0, one, free, free, none, none, free, none, jitter=0.0, speed_changes=sudden)


def test_homogeneous_devices_need_a_second_per_step_and_no_time_to_communicate() -> None:
    devices = make_devices("homogeneous", 5, seed=0)
    assert devices.seconds_per_step.tolist() == [1.0] * 5
    assert devices.down_seconds(0, 10**9) == devices.up_seconds(0, 10**9) == devices.joins_at(0) == 0
    assert devices.available_from(0, 7.5) == 7.5
    assert devices.dropout(0, 0) is None
    assert devices.think_seconds(0, 0) == 0
    assert devices.pull_every(0) is None


def test_exactly_the_given_share_is_slow_by_exactly_the_given_factor() -> None:
    speeds = make_devices("slow:0.3x5", 20, seed=0).seconds_per_step
    assert sorted(speeds) == [1.0] * 14 + [5.0] * 6
    assert not np.array_equal(speeds, make_devices("slow:0.3x5", 20, seed=1).seconds_per_step)


@pytest.mark.parametrize(
    ("spec", "mean", "deviation", "least"),
    [("normal:0.3", 1.0, 0.3, 0.05), ("exponential", 1.0, 1.0, 0.05), ("uniform:5", 3.0, 4 / 12**0.5, 1.0)],
)
def test_speeds_follow_their_distribution(spec: str, mean: float, deviation: float, least: float) -> None:
    speeds = make_devices(spec, 20_000, seed=0).seconds_per_step
    assert speeds.mean() == pytest.approx(mean, abs=0.03)
    assert speeds.std() == pytest.approx(deviation, abs=0.03)
    assert speeds.min() >= least


def test_a_round_jitters_by_five_percent_around_the_speed_of_its_client() -> None:
    devices = make_devices("slow:1x4", 3, seed=0)
    rounds = np.array([devices.step_seconds(client, count) for client in range(3) for count in range(1000)])
    assert rounds.mean() == pytest.approx(4.0, abs=0.02)
    assert rounds.std() == pytest.approx(0.2, abs=0.02)
    assert devices.step_seconds(1, 7) == make_devices("slow:1x4", 3, seed=0).step_seconds(1, 7)
    assert devices.step_seconds(1, 7) not in (devices.step_seconds(1, 8), devices.step_seconds(2, 7))


def test_wild_jitter_never_makes_time_run_backwards(tmp_path: Path) -> None:
    devices = from_toml(tmp_path, "jitter = 3.0")
    assert min(devices.step_seconds(0, count) for count in range(200)) == 0.05


def test_a_speed_change_counts_from_its_moment() -> None:
    devices = with_changes((10.0, 5.0))
    assert devices.finish(0, 0.0, 10, 1.0) == 10.0
    assert devices.finish(0, 0.0, 12, 1.0) == 20.0
    assert devices.finish(0, 12.0, 2, 1.0) == 22.0
    assert devices.steps_done(0, 0.0, 14.9, 1.0) == 10
    assert devices.steps_done(0, 0.0, 15.0, 1.0) == 11


def test_speed_changes_multiply_and_can_be_undone() -> None:
    devices = with_changes((4.0, 4.0), (12.0, 0.25))
    assert devices.finish(0, 0.0, 10, 1.0) == 4 + 8 + 4  # 4 fast steps, 2 slow ones, 4 fast ones


times = st.floats(0, 1e6)


@given(
    changes=st.lists(st.tuples(times, st.floats(0.01, 100)), max_size=4),
    begin=times,
    steps=st.integers(0, 10_000),
    step_seconds=st.floats(1e-3, 1e3),
)
def test_all_steps_are_done_when_the_training_finishes(
    changes: list[tuple[float, float]], begin: float, steps: int, step_seconds: float
) -> None:
    devices = with_changes(*changes)
    finish = devices.finish(0, begin, steps, step_seconds)
    assert finish >= begin
    assert devices.steps_done(0, begin, finish, step_seconds) == steps
    assert devices.steps_done(0, begin, begin + (finish - begin) / 2, step_seconds) <= steps


@given(cut=st.floats(0, 1), steps=st.integers(1, 1000), change=st.tuples(times, st.floats(0.1, 10)), begin=times)
def test_steps_done_by_a_moment_are_finished_by_that_moment(
    cut: float, steps: int, change: tuple[float, float], begin: float
) -> None:
    devices = with_changes(change)
    now = begin + cut * (devices.finish(0, begin, steps, 1.0) - begin)
    done = devices.steps_done(0, begin, now, 1.0)
    assert devices.finish(0, begin, done, 1.0) <= now + 1e-4
    assert devices.finish(0, begin, done + 1, 1.0) > now


def test_the_fastest_and_slowest_fifth_have_at_least_one_client_and_do_not_overlap() -> None:
    devices = make_devices("slow:0.3x5", 20, seed=0)
    assert devices.seconds_per_step[devices.slowest_fifth()].tolist() == [5.0] * 4
    assert devices.seconds_per_step[devices.fastest_fifth()].tolist() == [1.0] * 4
    even = make_devices("homogeneous", 3, seed=0)
    assert even.fastest_fifth().tolist() == [0]
    assert even.slowest_fifth().tolist() == [2]


def test_the_example_of_the_documentation_is_a_valid_file(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "devices.md").read_text()
    example = page.split("```toml\n")[1].split("```")[0]
    devices = from_toml(tmp_path, example, clients=100)
    assert sorted(set(devices.seconds_per_step)) == [0.5 * 236 / 1410, 0.1, 0.25, 1.0]
    assert devices.down_seconds(0, 0) > 0
    assert devices.joins_at(0) == 50.0
    assert len(devices.speed_changes) == 2


def test_device_types_come_in_their_shares_with_their_own_network(tmp_path: Path) -> None:
    types = """
        seconds_per_step = 2.0
        [[type]]
        name = "board"
        share = 0.25
        seconds_per_step = 3.0
        up = 100.0
        down = 1000.0
        latency = 0.5
        [[type]]
        name = "server"
        share = 0.75
        seconds_per_step = 0.5
    """
    devices = from_toml(tmp_path, types, clients=8)
    assert sorted(devices.seconds_per_step) == [1.0] * 6 + [6.0] * 2
    board, server = int(devices.seconds_per_step.argmax()), int(devices.seconds_per_step.argmin())
    assert devices.up_seconds(board, 200) == 2.5
    assert devices.down_seconds(board, 200) == pytest.approx(0.7)
    assert devices.up_seconds(server, 200) == 0


def test_availability_alternates_with_the_mean_lengths_that_were_given(tmp_path: Path) -> None:
    devices = from_toml(tmp_path, "[availability]\non = 30.0\noff = 10.0")
    moments = np.arange(0, 20_000, 1.0)
    here = np.array([[devices.available_from(client, now) == now for now in moments] for client in range(3)])
    assert here.mean() == pytest.approx(0.75, abs=0.03)
    assert np.diff(here, axis=1).sum() == pytest.approx(3 * 2 * 20_000 / 40, rel=0.1)


def test_a_client_that_is_away_comes_back_at_the_time_it_says_whatever_was_asked_before(tmp_path: Path) -> None:
    text = "[availability]\non = 30.0\noff = 10.0"
    one, other = from_toml(tmp_path, text), from_toml(tmp_path, text)
    for now in np.random.default_rng(0).uniform(0, 5000, 300):
        back = one.available_from(2, now)
        assert back >= now
        assert one.available_from(2, back) == back
    assert other.available_from(2, 4321.0) == one.available_from(2, 4321.0)


def test_lost_trainings_have_the_given_probability_and_keep_the_client_away(tmp_path: Path) -> None:
    devices = from_toml(tmp_path, "[dropout]\nprobability = 0.2\naway = 60.0")
    fates = [devices.dropout(0, count) for count in range(2000)]
    lost = [fate for fate in fates if fate is not None]
    assert len(lost) == pytest.approx(400, abs=60)
    assert all(0 <= share < 1 and away == 60.0 for share, away in lost)
    assert fates == [devices.dropout(0, count) for count in range(2000)]


def test_late_joiners_come_at_their_time_or_at_random_up_to_it(tmp_path: Path) -> None:
    text = "[[late]]\nclients = 0.5\nby = 100.0\n[[late]]\nclients = [3]\nat = 7.0"
    devices = from_toml(tmp_path, text, clients=20)
    assert devices.joins_at(3) == 7.0
    late = np.delete(devices.joins, 3)
    assert 9 <= (late > 0).sum() <= 10
    assert late.max() <= 100
    assert devices.available_from(3, 1.0) == 7.0


def test_think_time_has_its_mean_and_pulls_their_period(tmp_path: Path) -> None:
    devices = from_toml(tmp_path, "think = 8.0\npull_every = 30.0")
    assert np.mean([devices.think_seconds(1, count) for count in range(3000)]) == pytest.approx(8.0, abs=0.5)
    assert devices.pull_every(1) == 30.0


def test_a_speed_change_in_a_file_hits_the_clients_it_names(tmp_path: Path) -> None:
    devices = from_toml(tmp_path, "[[speed_change]]\nat = 10.0\nclients = [1]\nfactor = 3.0")
    assert devices.finish(0, 10.0, 2, 1.0) == 12.0
    assert devices.finish(1, 10.0, 2, 1.0) == 16.0


def test_a_client_has_the_figures_of_its_own_table(tmp_path: Path) -> None:
    text = """
    [[client]]
    number = 1
    seconds_per_step = 0.25
    up = 100.0
    availability = { on = 50.0, off = 10.0 }

    [[client]]
    number = 0
    seconds_per_step = 3.0
    latency = 0.5

    [[client]]
    number = 2
    seconds_per_step = 1.0
    """
    devices = from_toml(tmp_path, text, clients=2)
    assert devices.seconds_per_step.tolist() == [3.0, 0.25]
    assert [devices.up_seconds(client, 200) for client in (0, 1)] == [0.5, 2.0]
    assert [devices.available_from(0, now) for now in (10.0, 1000.0)] == [10.0, 1000.0]
    waits = [devices.available_from(1, now) - now for now in np.arange(0.0, 50_000.0, 5.0)]
    assert np.mean(np.array(waits) > 0) == pytest.approx(10 / 60, abs=0.03)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jiter = 0.1", "Unknown key 'jiter'. Did you mean 'jitter'. Known: seconds_per_step, speed, jitter"),
        ("jitter = -1.0", "jitter: Input should be greater than or equal to 0"),
        ("speed = 'slwo:0.3x5'", "Did you mean 'slow'"),
        ("[network]\nupp = 1.0", "Unknown key of network 'upp'. Did you mean 'up'. Known: up, down"),
        ("[[client]]\nnumber = 0\nsecond_per_step = 1.0", "key of client.0 'second_per_step'. Did you mean"),
        ("[network]\nup = 0.0", "network.up: Input should be greater than 0"),
        ("[[late]]\nclients = 0.1", "need either at .* or by"),
        ("[[late]]\nclients = [10]\nat = 1.0", "late.0: there is no client 10. Clients are numbered 0 to 9"),
        ("[[speed_change]]\nat = 1.0\nfactor = 2.0\nclients = 3", "Expected more than 0, at most 1"),
        ("[[type]]\nname = 'a'\nshare = 0.5\nseconds_per_step = 1.0", "shares sum to 0.5, expected 1"),
        ("[[client]]\nnumber = 0", "client.0.seconds_per_step is missing"),
        (
            "[[client]]\nnumber = 1\nseconds_per_step = 1.0",
            "numbers in the .* tables are 1; expected 0 to 0, each once",
        ),
        ("speed = 'normal'\n[[client]]\nnumber = 0\nseconds_per_step = 1.0", "speed cannot be used with"),
        ("[[client]]\nnumber = 0\nseconds_per_step = 1.0", "describes 1 clients, and there are 10. Use --clients 1 or"),
        ("jitter = ", "is no valid TOML"),
        ("jitter = nan", "jitter: Input should be a finite number"),
        ("seconds_per_step = inf", "seconds_per_step: Input should be a finite number"),
        ("[[late]]\nclients = 0.1\nat = inf", "late.0.at: Input should be a finite number"),
        ("[network]\nlatency = inf", "network.latency: Input should be a finite number"),
        ("[network]\nup = nan", "network.up: Input should be greater than 0"),
        ("[dropout]\nprobability = 1.0", "dropout.probability: Input should be less than 1"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_the_key_and_the_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_toml(tmp_path, text)


def test_bandwidth_may_be_infinite(tmp_path: Path) -> None:
    devices = from_toml(tmp_path, "[network]\nup = inf\ndown = 10.0\nlatency = 0.5")
    assert (devices.up_seconds(0, 100), devices.down_seconds(0, 100)) == (0.5, 10.5)


def test_a_file_may_have_any_name_but_that_of_a_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("phones", "uniform"):
        Path(name).write_text("seconds_per_step = 7.0")
    assert make_devices("phones", 2, seed=0).seconds_per_step.tolist() == [7.0, 7.0]
    assert make_devices("uniform", 2, seed=0).seconds_per_step.max() <= 5


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(UserError, match=r"Cannot read nowhere\.toml"):
        make_devices("nowhere.toml", 3, seed=0)


@pytest.mark.parametrize("spec", ["slow:0.3", "slow:2x5", "slow:0.3x0", "uniform:0.5", "normal:x", "homogeneous:1"])
def test_a_malformed_mix_is_answered_with_the_expected_form(spec: str) -> None:
    form = device_mixes[spec.partition(":")[0]].form
    with pytest.raises(UserError, match=f"Devices '{spec}' are not understood. Expected {form}"):
        make_devices(spec, 10, seed=0)


def test_an_unknown_mix_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match="Did you mean 'uniform'"):
        make_devices("unifrom:5", 10, seed=0)
