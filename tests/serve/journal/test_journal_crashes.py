"""A crash at any moment: what was acknowledged is there when the server comes back."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from polytempo.core.events import Update
from polytempo.serve.journal import snapshots as snapshots_module
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import open_service
from polytempo.serve.storage.errors import DamagedError
from polytempo.strategies import Strategy
from polytempo_client.streams import stream
from support.postgres import in_files, in_postgres, in_schema, is_in_database
from support.serving import Hosted, hosted, journal_files, restarted, some_events, tiny_settings

pytestmark = pytest.mark.usefixtures("bodies_lie_apart", "store")


@pytest.mark.parametrize("strategy", ["fedasync", "fedbuff", "fedavg", "support.serving:Refresher"])
def test_a_crash_after_any_event_comes_back_to_the_same_state(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "SNAPSHOT_EVENTS", 7)
    with hosted(tmp_path, strategy) as served:
        moments = []
        handle = served.host.handle

        def handle_and_crash(requests: Any) -> None:
            handle(requests)
            directory = tmp_path / f"crash-{len(moments)}"
            moments.append((served.copied(directory), served.digest()))

        monkeypatch.setattr(served.host, "handle", handle_and_crash)
        some_events(served, 3 if strategy == "fedavg" or is_in_database(tmp_path) else 8)
        assert len(moments) > 8
        for directory, before in moments:
            assert restarted(directory, served.settings) == before


def test_a_server_that_came_back_goes_on_as_one_that_never_stopped(tmp_path: Path) -> None:
    with hosted(tmp_path, "fedbuff", parameters={"buffer_size": 3}) as straight:
        some_events(straight, 5)
        again = straight.after_crash(tmp_path / "crash")
        for client in range(3):
            again.hello(client)
        for client in (1, 0, 2, 1):
            for served in (straight, again):
                served.clock.now += 2.0
                served.push(client)
        assert again.digest() == straight.digest()
        again.close()


@in_files
def test_what_a_torn_write_ahead_log_lost_is_the_end_and_nothing_else(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        states = {served.digest()}
        handle = served.host.handle

        def handle_and_look(requests: Any) -> None:
            handle(requests)
            states.add(served.digest())

        served.host.handle = handle_and_look  # type: ignore[method-assign]
        some_events(served)
        rng = random.Random(0)
        size = (served.directory / "journal.sqlite-wal").stat().st_size
        for cut in sorted(rng.randrange(size) for _ in range(12)):
            directory = served.copied(tmp_path / f"cut-{cut}")
            os.truncate(directory / "journal" / "journal.sqlite-wal", cut)
            assert restarted(directory, served.settings) in states
            again = Hosted(directory, settings=served.settings)
            some_events(again, 1)
            assert restarted(again.copied(tmp_path / f"on-{cut}"), served.settings) == again.digest()
            again.close()


@in_files
def test_bytes_behind_the_last_body_are_forgotten(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        directory = served.copied(tmp_path / "crash")
        with journal_files(directory, "*.bodies")[-1].open("ab") as file:
            file.write(os.urandom(1000))
        again = Hosted(directory, settings=served.settings)
        assert again.digest() == served.digest()
        again.hello(0)
        again.push(0)
        assert restarted(again.copied(tmp_path / "again"), served.settings) == again.digest()
        again.close()


@pytest.mark.parametrize("point", ["database", "about", "snapshot file"])
def test_a_crash_while_a_journal_is_begun_leaves_one_that_can_be_begun(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    where = {"database": "describe", "about": "snapshot", "snapshot file": "add_snapshot"}[point]
    monkeypatch.setattr(Journal, where, crash)
    service = tiny_settings(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        open_service(tmp_path / "journal", service)
    monkeypatch.undo()
    with hosted(tmp_path) as served:
        some_events(served)
        assert restarted(served.copied(tmp_path / "crash"), service) == served.digest()


@in_files
def test_a_crash_in_a_snapshot_costs_nothing_and_leaves_nothing_for_ever(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        (served.directory / ".snapshot-000000000009.safetensors.abc").write_bytes(b"half")
        (served.directory / "snapshot-000000000011.safetensors").write_bytes(b"never registered")
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()
        served.host.snapshots.finish(served.host.service)
        assert len(list(served.directory.glob("*snapshot-*"))) == 2
        assert not list(served.directory.glob(".snapshot-*"))


@in_postgres
def test_parts_that_no_row_speaks_of_go_with_the_next_snapshot(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        made = served.host.journal.write_snapshot(9, *served.host.service.frozen())  # and then a crash, say
        assert in_schema(tmp_path, f"SELECT count(*) FROM parts WHERE blob = {made.blob}") == [(1,)]
        served.host.snapshots.finish(served.host.service)
        assert in_schema(tmp_path, f"SELECT count(*) FROM parts WHERE blob = {made.blob}") == [(0,)]
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


def test_an_acknowledged_event_that_fails_at_replay_is_never_left_out_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        directory = served.copied(tmp_path / "crash")

        def fail(*_: Any) -> None:
            raise MemoryError

        with monkeypatch.context() as broken:
            broken.setattr("polytempo.strategies.methods.fedasync.FedAsync.updated", fail)
            with pytest.raises(DamagedError, match=r"cannot take event \d+ .* again"):
                open_service(directory / "journal", served.settings)
        assert restarted(directory, served.settings) == served.digest()


def test_an_event_that_broke_the_strategy_just_before_a_crash_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, "support.serving:Brittle") as served:
        for client in (0, 1):
            served.hello(client)
            served.ready(client)
        before = served.digest()
        monkeypatch.setattr(served.host, "_roll_back", lambda *_: served.copied(tmp_path / "crash"))
        head, body = served.pushed(0, answers={"break": True})
        served.host.handle([served.request(0, head, body)])
        assert restarted(tmp_path / "crash", served.settings) == before
        assert restarted(tmp_path / "crash", served.settings) == before


class Measures(Strategy):
    """Keeps what depends on the order of a sum."""

    def setup(self) -> None:
        self.norms: list[float] = []

    def updated(self, update: Update, now: float) -> None:
        self.norms.append(float(torch.dot(update.weights, update.weights)))


def test_a_replay_sums_as_the_server_did_whatever_the_number_of_threads(tmp_path: Path) -> None:
    init = tmp_path / "large.safetensors"
    save_file({"w": stream(0, "large").normal(size=1_000_000).astype(np.float32)}, init)
    threads = torch.get_num_threads()
    with hosted(tmp_path, "test_journal_crashes:Measures", init=init) as served:
        served.hello(0)
        served.ready(0)
        torch.set_num_threads(1)  # as the host's thread does
        for i in range(3):
            served.push(0, by=0.001 * i)
        torch.set_num_threads(4)
        again = restarted(served.copied(tmp_path / "crash"), served.settings)
        torch.set_num_threads(threads)
        assert again == served.digest()


def test_events_before_a_crash_count_for_the_next_snapshot(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        again = served.after_crash(tmp_path / "crash")
        assert again.host.journal.unsaved_events == served.host.journal.unsaved_events > 0
        assert again.host.journal.unsaved_bytes == served.host.journal.unsaved_bytes > 0
        again.close()
