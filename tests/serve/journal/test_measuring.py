"""A service's device file: what clients have shown of their devices, and a simulation on them."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import polytempo
from polytempo.cli.main import app
from polytempo.core.state import pack, unpack
from polytempo.serve.state.service import Member
from polytempo.testing.hosting import Hosted
from polytempo.world.devices import make_devices
from support.serving import ManualClock, hosted, join_all, nudge, running

pytestmark = pytest.mark.usefixtures("store")

PACES = (0.5, 2.0, 0.125)
"""Seconds per step, of four steps, of three clients."""


def rounds(server: Hosted, client: int, pace: float, count: int, sent: tuple[int, float] = (0, 0.0)) -> None:
    """The client trains alone, and its update takes so many bytes and seconds to come in."""
    for _ in range(count):
        if client not in server.host.service.flights:
            server.ready(client)
        server.clock.now += 4 * pace + sent[1]
        head, body = server.pushed(client, steps=4, ready=False)
        request = server.request(client, head, body)
        timed = {"sent_bytes": sent[0], "sent_seconds": sent[1]}
        server.host.handle([type(request)(request.session, request.kind, request.head, request.body, **timed)])


def printed(directory: Path) -> str:
    result = CliRunner().invoke(app, ["devices", str(directory)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def tables(text: str) -> dict[int, dict[str, Any]]:
    return {table["number"]: table for table in tomllib.loads(text)["client"]}


def test_the_file_has_each_clients_pace_bandwidth_and_availability_as_they_were(tmp_path: Path) -> None:
    with hosted(tmp_path) as server:
        for client, pace in enumerate(PACES):
            server.hello(client)
            rounds(server, client, pace, 5, (1000 * (client + 1), 2.0))
        start = server.clock.now
        server.leave(2)
        server.clock.now = start + 30.0
        server.hello(2)
    found = tables(printed(tmp_path))
    assert [found[client]["seconds_per_step"] for client in range(3)] == list(PACES)
    assert [found[client]["up"] for client in range(3)] == [500.0, 1000.0, 1500.0]
    there = 5 * (4 * PACES[2] + 2.0)
    assert found[2]["availability"] == {"on": there, "off": 30.0}
    assert "availability" not in found[0]


def test_the_directory_of_the_journal_does_as_well_and_any_other_is_refused(tmp_path: Path) -> None:
    with hosted(tmp_path) as server:
        server.hello(0)
        rounds(server, 0, 1.0, 3)
    assert printed(tmp_path) == printed(tmp_path / "journal")
    result = CliRunner().invoke(app, ["devices", str(tmp_path / "elsewhere")])
    assert "Expected the --dir of `polytempo serve`, or the journal directory in it" in str(result.exception)


def test_only_clients_that_were_measured_are_in_the_file_and_comments_have_their_own_numbers(tmp_path: Path) -> None:
    with hosted(tmp_path) as server:
        for client, pace in ((100_000, 3.0), (0, 1.0), (7, 2.0)):
            server.hello(client)
            rounds(server, client, pace, 3)
        server.hello(2)
        rounds(server, 2, 9.0, 1)
    text = printed(tmp_path)
    found = tables(text)
    assert {number: table["seconds_per_step"] for number, table in found.items()} == {0: 1.0, 1: 2.0, 2: 3.0}
    assert "\n# Without client 2: fewer than 3 updates.\n" in text
    assert "[[client]]  # client 100000 of the service: 3 updates\nnumber = 2" in text
    assert make_devices_from(tmp_path, text).seconds_per_step.tolist() == [1.0, 2.0, 3.0]


def test_nothing_is_said_of_a_service_without_updates(tmp_path: Path) -> None:
    with hosted(tmp_path) as server:
        join_all(server)
    result = CliRunner().invoke(app, ["devices", str(tmp_path)])
    assert "no client has handed in 3 updates" in str(result.exception)


def test_a_disturbed_round_does_not_make_a_client_slow(tmp_path: Path) -> None:
    with hosted(tmp_path) as server:
        server.hello(0)
        for pace in (1.0, 1.0, 5000.0, 1.0, 1.0):
            rounds(server, 0, pace, 1)
    assert tables(printed(tmp_path))[0]["seconds_per_step"] == 1.0


def test_the_figures_of_a_life_survive_a_restart_and_take_no_more_room(tmp_path: Path) -> None:
    with hosted(tmp_path) as server:
        server.hello(0)
        rounds(server, 0, 1.0, 100)
        server.host.snapshots.finish(server.host.service)
        settings, operations = server.settings, server.operations
    with hosted(tmp_path, settings=settings, operations=operations) as again:
        measured = again.host.service.members[0].measured
    assert measured.rounds == 100
    assert len(measured.paces) == 31


def test_a_snapshot_of_before_measuring_still_loads() -> None:
    text, tensors = pack(Member(updates=3))
    begins = text.index(',"measured":')
    assert unpack(text[:begins] + "}}", tensors) == Member(updates=3)


def test_a_simulation_with_the_file_gives_each_client_its_measured_rounds(tmp_path: Path) -> None:
    with hosted(tmp_path) as server:
        for client, pace in enumerate(PACES):
            server.hello(client)
            rounds(server, client, pace, 5, (1000, 2.0))
    (tmp_path / "devices.toml").write_text(printed(tmp_path))
    devices = str(tmp_path / "devices.toml")
    assert make_devices(devices, 3, seed=5).seconds_per_step.tolist() == list(PACES)
    run = polytempo.simulate("fedasync", devices=devices, clients=3, partition="iid", steps=4, updates=20)
    model_bytes = run.value_of("bytes_up") / run.value_of("uploads")
    for client, pace in enumerate(PACES):
        times = [row["time"] for row in run.update_log if row["client"] == client]
        assert np.diff(times) == pytest.approx(4 * pace + model_bytes / 500.0)


def test_a_client_that_is_slowed_down_on_the_network_is_the_slowest_in_the_file(tmp_path: Path) -> None:
    clock = ManualClock()
    with running(tmp_path, clients=3, seconds=clock) as server:
        for client in range(3):
            with server.client(client) as trainer:
                for _ in range(3):
                    task = trainer.task()
                    clock.now += 4 * (7.0 if client == 1 else 1.0)
                    trainer.push(task, nudge(task), samples=10, steps=4)
    found = tables(printed(tmp_path))
    assert [found[client]["seconds_per_step"] for client in range(3)] == [1.0, 7.0, 1.0]
    assert make_devices_from(tmp_path, printed(tmp_path)).slowest_fifth().tolist() == [1]


def make_devices_from(directory: Path, text: str) -> Any:
    (directory / "devices.toml").write_text(text)
    return make_devices(str(directory / "devices.toml"), 3, seed=0)
