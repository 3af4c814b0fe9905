"""Named device types: who has which, how fast it is, and the accuracy of each."""

import re
from pathlib import Path

import numpy as np
import pytest

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.sim.records.measures import accuracy_per_device, device_figures
from polytempo.world.device_types import DeviceType, device_types, hardware_of
from polytempo.world.devices import Devices, make_devices


def from_toml(path: Path, text: str, clients: int = 10) -> Devices:
    (path / "devices.toml").write_text(text)
    return make_devices(str(path / "devices.toml"), clients, seed=0)


def with_types(*types: DeviceType) -> Devices:
    hardware = hardware_of(types)
    joins, on, off = np.zeros(len(types)), np.full(len(types), np.inf), np.zeros(len(types))
    return Devices(0, *hardware[:4], joins, on, off, kinds=hardware.kinds)


def test_a_device_with_a_fifth_of_the_peak_rate_needs_five_times_as_long() -> None:
    pace = {name: round(kind.seconds_per_step, 2) for name, kind in device_types.items()}
    assert pace == {"D1": 1.0, "D2": 0.28, "D3": 0.18, "D4": 0.17, "D5": 4.92}


def test_the_downlink_is_ten_times_as_fast_as_the_uplink() -> None:
    assert all(kind.down == 10 * kind.up for _, kind in device_types.items())


def test_the_word_alone_is_the_mix_of_the_paper() -> None:
    devices = make_devices("types", 20, seed=0)
    assert {kind: len(clients) for kind, clients in devices.clients_by_kind().items()} == {
        "D3": 4,
        "D2": 4,
        "D1": 4,
        "D5": 8,
    }
    assert devices.kinds == make_devices("types:D1=0.2,D2=0.2,D3=0.2,D5=0.4", 20, seed=0).kinds
    assert devices.kinds != make_devices("types", 20, seed=1).kinds


def test_a_list_gives_types_to_clients_in_order_with_their_speed_and_network() -> None:
    devices = make_devices("types:D1*2,D2,D5", 4, seed=0)
    assert devices.kinds == ("D1", "D1", "D2", "D5")
    assert devices.seconds_per_step.tolist() == [1.0, 1.0, 236 / 845, 236 / 48]
    assert devices.up_seconds(3, 1_250_000) == pytest.approx(1.02)
    assert devices.down_seconds(3, 1_250_000) == pytest.approx(0.12)
    assert devices.joins.tolist() == [0.0] * 4


def test_shares_in_words_and_in_a_file_give_everybody_the_same_device(tmp_path: Path) -> None:
    file = "[[type]]\nname = 'D4'\nshare = 0.3\n[[type]]\nname = 'D5'\nshare = 0.7"
    one, other = from_toml(tmp_path, file), make_devices("types:D4=0.3,D5=0.7", 10, seed=0)
    assert one.kinds == other.kinds
    assert np.array_equal(one.seconds_per_step, other.seconds_per_step)
    assert np.array_equal(one.up, other.up)


def test_a_known_type_in_a_file_keeps_what_the_file_does_not_say_otherwise(tmp_path: Path) -> None:
    text = "seconds_per_step = 2.0\n[[type]]\nname = 'D5'\nshare = 1.0\nup = 100.0\nlatency = 0.0"
    devices = from_toml(tmp_path, text, clients=1)
    assert devices.seconds_per_step[0] == 2 * 236 / 48
    assert (devices.up[0], devices.down[0], devices.latency[0]) == (100.0, 12.5e6, 0.0)
    assert from_toml(tmp_path, text + "\nseconds_per_step = 3.0", clients=1).seconds_per_step[0] == 6.0


def test_a_file_may_take_types_in_words_and_put_them_on_another_network(tmp_path: Path) -> None:
    words = "seconds_per_step = 3.0\nspeed = 'types:D1*2,D4'\n"
    devices = from_toml(tmp_path, words, clients=3)
    assert devices.seconds_per_step.tolist() == [3.0, 3.0, 3 * 236 / 1410]
    assert devices.down.tolist() == [12.5e6] * 3
    elsewhere = from_toml(tmp_path, words + "[network]\nup = 10.0\ndown = 20.0", clients=3)
    assert (elsewhere.kinds, elsewhere.up[0], elsewhere.down[0], elsewhere.latency[0]) == (devices.kinds, 10, 20, 0)


def test_devices_without_types_have_no_kinds(tmp_path: Path) -> None:
    assert make_devices("slow:0.3x5", 5, seed=0).kinds == ()
    assert from_toml(tmp_path, "speed = 'uniform:5'").clients_by_kind() == {}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("types:D1*2,D2", "D1*2,D2 are those of 3 clients, and there are 5. Name one per client"),
        ("types:D1,D1,D6,D1,D1", "Unknown device type 'D6'. Did you mean"),
        ("types:D1=0.5,D2=0.4", "sum to 0.9, expected 1"),
        ("types:D1=0.5,D2", "Expected types, types:D1=0.2,D5=0.8 or types:D1*3,D2*2,D5"),
        ("types:D1*4,D2=1", "are not understood"),
        ("types:D1*2.5,D2*2.5", "are not understood"),
        ("types:D1*0,D2*5", "are not understood"),
        ("types:D1*inf", "are not understood"),
        ("types:D1=nan", "are not understood"),
        ("types:D1=-1,D2=2", "are not understood"),
    ],
)
def test_types_that_do_not_fit_are_refused_with_the_reason(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        make_devices(spec, 5, seed=0)


def test_an_unknown_type_in_a_file_needs_a_speed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"phone is no known device type \(D1, D2, D3, D4, D5\), so it needs seconds"):
        from_toml(tmp_path, "[[type]]\nname = 'phone'\nshare = 1.0")


def test_accuracy_is_told_per_device_type_and_of_the_slowest_and_the_fastest() -> None:
    fast, slow = DeviceType("fast", 0.5), DeviceType("a slow one", 2.0)
    devices, served = with_types(slow, fast, slow), np.array([0.2, 0.9, 0.4])
    assert device_figures(served, devices) == {
        "accuracy_slowest_device": pytest.approx(0.3),
        "accuracy_fastest_device": 0.9,
        "accuracy_per_device": {"fast": 0.9, "a slow one": pytest.approx(0.3)},
    }


def test_without_types_the_slowest_and_the_fastest_device_are_single_clients() -> None:
    devices, served = make_devices("uniform:5", 10, seed=0), np.arange(10) / 10
    figures = device_figures(served, devices)
    assert figures["accuracy_slowest_device"] == served[devices.seconds_per_step.argmax()]
    assert figures["accuracy_fastest_device"] == served[devices.seconds_per_step.argmin()]
    assert figures["accuracy_per_device"] is None


def test_a_run_records_the_accuracy_of_each_type_at_every_evaluation() -> None:
    run = simulate("fedasync", clients=5, devices="types:D1*2,D4,D5*2", updates=10, eval_every=5)
    assert all(list(row["accuracy_per_device"]) == ["D4", "D1", "D5"] for row in run.evaluations)
    served, per_device = run.final_per_client(), run.accuracy_per_device
    assert per_device == {"D4": served[2], "D1": served[:2].mean(), "D5": served[3:].mean()}
    assert (run.accuracy_fastest_device, run.accuracy_slowest_device) == (per_device["D4"], per_device["D5"])
    plain = simulate("fedasync", clients=5, updates=5)
    assert "accuracy_per_device" not in plain.evaluations[-1]
    assert plain.accuracy_per_device is None


def test_nobody_is_left_out_of_the_accuracy_per_device() -> None:
    devices, served = make_devices("types", 30, seed=4), np.random.default_rng(0).random(30)
    means, sizes = accuracy_per_device(served, devices), devices.clients_by_kind()
    assert means is not None
    assert sum(means[kind] * len(sizes[kind]) for kind in means) == pytest.approx(served.sum())
