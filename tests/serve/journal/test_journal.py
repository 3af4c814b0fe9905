"""The journal: what was acknowledged is there after a crash at any moment, and damage is named, never guessed over."""

import errno
import os
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from polytempo.core.errors import PassingError, UserError
from polytempo.core.events import Update
from polytempo.core.schema import Schema
from polytempo.core.state import digest
from polytempo.core.streams import stream
from polytempo.serve.journal import opening
from polytempo.serve.journal import snapshots as snapshots_module
from polytempo.serve.journal import store as journal_module
from polytempo.serve.journal.database import DamagedError, JournalError, connect, transaction, unwritable
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.recovery import recover
from polytempo.serve.journal.store import Journal
from polytempo.serve.paths import DATABASE
from polytempo.serve.state.events import Event, Push
from polytempo.strategies import Strategy
from support.serving import Hosted, hosted, journal_files, refused, restarted, some_events, tiny_settings

SCHEMA = Schema(("a", "b"), ((2, 2), (3,)), 7)
ABOUT = {"schema": {"names": SCHEMA.names, "shapes": SCHEMA.shapes, "parameters": 7}}


@pytest.fixture(autouse=True)
def bodies_lie_in_files(monkeypatch):
    """Also the small ones of these tests."""
    monkeypatch.setattr(journal_module, "SMALL_BYTES", 0)


def test_small_bodies_lie_in_their_rows_and_cost_one_sync(tmp_path, monkeypatch):
    monkeypatch.undo()
    syncs = []
    with new_journal(tmp_path) as journal:
        monkeypatch.setattr(os, "fdatasync", syncs.append)
        journal.append([update(1), update(2)])
    assert not syncs
    assert [event.push.weights.tolist() for event in read(tmp_path)] == [list(range(7))] * 2
    with sqlite3.connect(tmp_path / "journal.sqlite") as database:
        database.execute("UPDATE events SET body = zeroblob(length(body)) WHERE number = 2")
    with pytest.raises(DamagedError, match="event 2"):
        read(tmp_path)


@contextmanager
def new_journal(directory: Path) -> Iterator[Journal]:
    journal = Journal.begin(directory, ABOUT, {"nothing": 0})
    try:
        yield journal
    finally:
        journal.close()


def update(number: int = 1, weights: Any = None) -> Event:
    push = Push(number, number, torch.arange(7.0) if weights is None else weights, 3, 2)
    return Event("updated", float(number), 0, push)


def read(directory: Path) -> list[Event]:
    journal = Journal(directory)
    try:
        return [event for _, event in journal.events(0)]
    finally:
        journal.close()


def same(a: Event, b: Event) -> bool:
    return digest(as_data(a)) == digest(as_data(b))


def as_data(event: Event) -> tuple[Any, ...]:
    push = event.push
    said = () if push is None else tuple(getattr(push, name) for name in Push.__slots__)
    return (event.kind, event.at, event.client, said, event.key, event.number)


# What is written is read.

floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
tensors = st.one_of(
    st.lists(floats32, max_size=5).map(torch.tensor),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(lambda n: torch.tensor(n, dtype=torch.int64)),
    st.lists(st.booleans(), max_size=3).map(lambda b: torch.tensor(b, dtype=torch.bool)),
    st.lists(floats32, max_size=4).map(lambda n: torch.tensor(n, dtype=torch.float64).reshape(1, -1, 1)),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
tiny = [-0.0, 0.0, 1e-45, -1e-40, 3.4e38]
handed_in = st.builds(
    Push,
    st.integers(1, 2**60),
    st.integers(1, 2**60),
    st.lists(floats32 | st.sampled_from(tiny), min_size=7, max_size=7).map(torch.tensor),
    st.integers(1, 2**40),
    st.integers(0, 2**40),
    st.none() | st.integers(0, 2**31),
    st.dictionaries(st.text(), values, max_size=4),
    st.booleans(),
)
times = st.floats(0, 1e12)
clients = st.integers(0, 2**31)
events = st.one_of(
    st.builds(Event, st.just("updated"), times, clients, handed_in),
    st.builds(Event, st.sampled_from(["joined", "ready", "pulled", "left"]), times, clients),
    st.builds(Event, st.just("fired"), times, st.just(-1), st.none(), st.text()),
    st.builds(Event, st.just("renumbered"), times, st.just(-1), st.none(), st.just(""), st.integers(0, 2**60)),
)


@settings(max_examples=60)
@given(st.lists(st.lists(events, min_size=1, max_size=4), max_size=3))
def test_events_are_read_back_bit_for_bit(groups: list[list[Event]]) -> None:
    with tempfile.TemporaryDirectory() as directory, new_journal(Path(directory)) as journal:
        for group in groups:
            journal.append(group)
        found = read(Path(directory))
        written = [event for group in groups for event in group]
        assert len(found) == len(written)
        assert all(map(same, found, written))


def test_an_update_with_more_answers_than_one_call_writes_is_read_back(tmp_path: Path) -> None:
    event = update()
    assert event.push is not None
    push = replace(event.push, answers={str(i): torch.full((2,), float(i)) for i in range(3000)})
    with new_journal(tmp_path) as journal:
        journal.append([replace(event, push=push), update(2)])
        assert all(map(same, read(tmp_path), [replace(event, push=push), update(2)]))


def test_bodies_go_on_in_a_new_file_when_one_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 300)
    with new_journal(tmp_path) as journal:
        written = [update(number, torch.full((7,), float(number))) for number in range(1, 8)]
        for event in written:
            journal.append([event])
        assert len(list(tmp_path.glob("*.bodies"))) > 2
        assert all(map(same, read(tmp_path), written))


# A crash at any moment.


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
        some_events(served, 3 if strategy == "fedavg" else 8)
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

    where = {"database": "describe", "about": "snapshot", "snapshot file": "_transaction"}[point]
    if point == "snapshot file":
        describe = Journal.describe

        def describe_and_break(journal: Journal, about: dict[str, Any]) -> None:
            describe(journal, about)
            monkeypatch.setattr(Journal, "_transaction", crash)

        monkeypatch.setattr(Journal, "describe", describe_and_break)
    else:
        monkeypatch.setattr(Journal, where, crash)
    service = tiny_settings(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        open_service(tmp_path / "journal", service)
    monkeypatch.undo()
    with hosted(tmp_path) as served:
        some_events(served)
        assert restarted(served.copied(tmp_path / "crash"), service) == served.digest()


def test_a_crash_in_a_snapshot_costs_nothing_and_leaves_nothing_for_ever(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        (served.directory / ".snapshot-000000000009.safetensors.abc").write_bytes(b"half")
        (served.directory / "snapshot-000000000011.safetensors").write_bytes(b"never registered")
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()
        served.host.snapshots.finish(served.host.service)
        assert len(list(served.directory.glob("*snapshot-*"))) == 2
        assert not list(served.directory.glob(".snapshot-*"))


def test_a_server_that_takes_over_sees_what_the_one_before_wrote_last(tmp_path: Path) -> None:
    with new_journal(tmp_path) as first:
        second = Journal(tmp_path)
        first.append([update(1)])
        first.append([update(2)])
    second.lock()
    second.append([update(3)])
    assert all(map(same, read(tmp_path), [update(1), update(2), update(3)]))
    second.close()


# Damage.


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [shorten, flip, Path.unlink])
def test_a_damaged_body_is_named_and_its_tail_is_lost_only_on_request(damage: Any, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        directory = served.copied(tmp_path / "crash")
        damage(journal_files(directory, "*.bodies")[-1])
        before = {path.name: path.read_bytes() for path in journal_files(directory, "*.bodies")}
        with pytest.raises(DamagedError, match=r"damaged at event \d+.*Nothing was changed.*--lose-tail"):
            open_service(directory / "journal", served.settings)
        after = {path.name: path.read_bytes() for path in journal_files(directory, "*.bodies")}
        assert {name: after[name] for name in before} == before
        again = Hosted(directory, settings=served.settings, lose_tail=True)
        again.hello(2)
        lost_task = served.task(2)
        assert refused(again.push(2, task=lost_task, base=lost_task), "not yours")
        again.push(2)
        assert again.task(2) > 1_000_000
        again_digest = again.digest()
        again.close()
        assert restarted(directory, served.settings) == again_digest


@pytest.mark.parametrize("column", ["at", "client", "detail"])
def test_a_changed_row_is_noticed(column: str, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
    with sqlite3.connect(tmp_path / "journal" / "journal.sqlite") as database:
        changed = "replace(detail, '10', '11')" if column == "detail" else f"{column} + 1"
        database.execute(f"UPDATE events SET {column} = {changed} WHERE number = 7")
    with pytest.raises(DamagedError, match="damaged at event 7: its checksum is wrong"):
        open_service(tmp_path / "journal", served.settings)


def test_a_damaged_snapshot_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served, 3)
        served.host.snapshots.finish(served.host.service)
        served.push(0)
        directory = served.copied(tmp_path / "crash")
        flip(journal_files(directory, "snapshot-*")[-1])
        assert restarted(directory, served.settings) == served.digest()


@pytest.mark.parametrize("lose_tail", [False, True])
def test_without_a_readable_snapshot_nothing_is_guessed_and_nothing_deleted(lose_tail: bool, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        served.host.snapshots.finish(served.host.service)
        directory = served.copied(tmp_path / "crash")
        for path in journal_files(directory, "snapshot-*"):
            flip(path)
        with pytest.raises(JournalError, match=r"No snapshot .* can be read. Nothing was changed."):
            open_service(directory / "journal", served.settings, lose_tail)
        for path in journal_files(directory, "snapshot-*"):
            flip(path)
        assert restarted(directory, served.settings) == served.digest()


@pytest.mark.parametrize("content", [b"", b"no database at all" * 500])
def test_a_garbled_database_is_a_clear_error(content: bytes, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        served.close()
    database = tmp_path / "journal" / "journal.sqlite"
    database.write_bytes(content or database.read_bytes()[:5000])
    with pytest.raises(JournalError, match=r"cannot be read: .* Restore it from a backup"):
        open_service(tmp_path / "journal", served.settings)


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_a_lost_first_model_is_a_clear_error(content: bytes | None, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        path = served.directory / "initial.safetensors"
        path.unlink() if content is None else path.write_bytes(content)
        served.close()
        with pytest.raises(JournalError, match=r"initial.safetensors cannot be read.*Restore"):
            open_service(served.directory, served.settings)


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
            with pytest.raises(DamagedError, match="cannot take it again"):
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
    with hosted(tmp_path, "test_journal:Measures", init=init) as served:
        served.hello(0)
        served.ready(0)
        torch.set_num_threads(1)  # as the host's thread does
        for i in range(3):
            served.push(0, by=0.001 * i)
        torch.set_num_threads(4)
        again = restarted(served.copied(tmp_path / "crash"), served.settings)
        torch.set_num_threads(threads)
        assert again == served.digest()


# Pruning.


def test_pruning_keeps_a_journal_bounded_and_every_kept_state_can_be_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "SNAPSHOT_EVENTS", 20)
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 2000)
    with hosted(tmp_path) as served:
        journal, states, sizes = served.host.journal, {}, []
        served.hello(0)
        served.ready(0)
        for i in range(150):
            served.push(0, by=0.001 * i)
            states[journal.last] = served.digest()
            sizes.append(sum(path.stat().st_size for path in served.directory.glob("*[!l]")))
            assert len(list(served.directory.iterdir())) < 20
            assert journal._query("SELECT count(*) FROM events")[0][0] <= 60
        assert max(sizes[75:]) <= 1.2 * max(sizes[:75])
        oldest = journal.snapshots()[0]
        assert len(journal.snapshots()) == 2
        for number in range(max(oldest, min(states)), journal.last + 1):
            assert recover(journal, served.opened.begin, number).digest() == states[number]


def test_events_before_a_crash_count_for_the_next_snapshot(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        again = served.after_crash(tmp_path / "crash")
        assert again.host.journal.unsaved_events == served.host.journal.unsaved_events > 0
        assert again.host.journal.unsaved_bytes == served.host.journal.unsaved_bytes > 0
        again.close()


# Who may write, and what.


def test_only_one_server_writes_a_journal(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        with pytest.raises(JournalError, match="Another server is running"):
            open_service(served.directory, served.settings)
        served.hello(0)
        before = served.digest()
    assert restarted(tmp_path, served.settings) == before


def test_other_settings_are_not_continued(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        pass
    with pytest.raises(UserError, match="holds another service"):
        open_service(served.directory, tiny_settings(tmp_path, "fedbuff"))
    with pytest.raises(UserError, match="seed is 0 there, 1 here"):
        open_service(served.directory, tiny_settings(tmp_path, seed=1))
    assert restarted(tmp_path, tiny_settings(tmp_path))


def as_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "code_versions", lambda _: {"code": "another"})


def test_another_version_does_not_replay_a_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path) as served:
        some_events(served, 3)
        served.host.snapshots.finish(served.host.service)
        at_snapshot, old_task = served.digest(), served.task(0)
        served.push(0)
        directory = served.copied(tmp_path / "crash")
        as_another_version(monkeypatch)
        with pytest.raises(JournalError, match=r"another version \(code changed\).* 1 events after .*--lose-tail"):
            open_service(directory / "journal", served.settings)
        again = Hosted(directory, settings=served.settings, lose_tail=True)
        assert digest(again.host.service.strategy.save_state()) == digest(
            recover(served.host.journal, served.opened.begin, served.host.journal.last - 1).strategy.save_state()
        )
        assert again.digest() != at_snapshot
        again.hello(0)
        assert again.task(0) == old_task
        again.push(0)
        assert again.task(0) > 1_000_000
        assert restarted(again.copied(tmp_path / "again"), served.settings) == again.digest()
        again.close()


def test_another_version_goes_on_where_a_snapshot_is_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        served.host.snapshots.finish(served.host.service)
        before = served.digest()
    as_another_version(monkeypatch)
    assert restarted(tmp_path, served.settings) == before
    again = Journal(tmp_path / "journal")
    assert again.about["versions"] == {"code": "another"}
    assert again.snapshots() == [again.last]
    again.close()


def test_another_version_never_replays_because_a_snapshot_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        served.host.snapshots.finish(served.host.service)
    flip(journal_files(tmp_path, "snapshot-*")[-1])
    as_another_version(monkeypatch)
    with pytest.raises(JournalError, match="another version"):
        open_service(tmp_path / "journal", served.settings)


def test_a_crash_while_a_tail_is_given_up_does_not_hide_that_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        directory = served.copied(tmp_path / "crash")
    shorten(journal_files(directory, "*.bodies")[-1])
    replace_tail = Journal.replace_tail

    def replace_and_crash(*arguments: Any) -> None:
        replace_tail(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "replace_tail", replace_and_crash)
        with pytest.raises(KeyboardInterrupt):
            open_service(directory / "journal", served.settings, lose_tail=True)
    opened = open_service(directory / "journal", served.settings)
    assert opened.service.number > 1_000_000
    opened.journal.close()


# A disk that is full, or not ours.

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail(*_: Any) -> None:
    raise FULL


def write_a_part(file: int, buffers: Any, at: int) -> int:
    return os.write(file, b"".join(buffers)[:8])


class FullDatabase:
    """A connection on which one statement fails."""

    def __init__(self, database: sqlite3.Connection, statement: str) -> None:
        self._database, self._statement = database, statement

    def execute(self, sql: str, *values: Any) -> Any:
        if sql.startswith(self._statement):
            raise sqlite3.OperationalError("database or disk is full")
        return self._database.execute(sql, *values)

    def executemany(self, sql: str, rows: Any) -> Any:
        if sql.startswith(self._statement):
            self._database.executemany(sql, rows[:1])
            raise sqlite3.OperationalError("database or disk is full")
        return self._database.executemany(sql, rows)


@pytest.mark.parametrize("point", ["pwritev", "part", "fdatasync", "BEGIN", "INSERT", "COMMIT", "segment"])
def test_a_full_disk_acknowledges_nothing_and_damages_nothing(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        before, last = served.digest(), served.host.journal.last
        with monkeypatch.context() as full:
            if point in ("pwritev", "fdatasync"):
                full.setattr(os, point, fail)
            elif point == "part":
                full.setattr(os, "pwritev", write_a_part)
                full.setattr(os, "pwrite", fail)
            elif point == "segment":
                full.setattr(journal_module, "SEGMENT_BYTES", 1)
                full.setattr(os, "open", fail)
            else:
                full.setattr(served.host.journal, "_database", FullDatabase(served.host.journal._database, point))
            group = [served.request(client, *served.pushed(client)) for client in (0, 1)]
            served.host.handle(group)
            for request in group:
                answer = served.sessions[request.session.client].answer(request.head.request)
                assert answer is not None
                assert answer[0].refusal.again
        assert served.digest() == before
        assert served.host.journal.last == last
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == before
        served.push(1)
        served.push(0)
        assert served.digest() != before
        assert restarted(served.copied(tmp_path / "later"), served.settings) == served.digest()


def test_a_disk_has_room_again_when_what_did_not_fit_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def allocate(file: int, begins: int, size: int) -> None:
        asked.append(size)
        os.pwrite(file, bytes(size), begins)
        if len(asked) == 1:
            raise FULL

    with hosted(tmp_path) as served:
        some_events(served)
        before = served.digest()
        with monkeypatch.context() as full:
            full.setattr(os, "pwritev", fail)
            full.setattr(os, "posix_fallocate", allocate)
            assert served.push(0).refusal.again
            assert served.shared.meters.journal_failing
            served.host.handle([])
            assert served.shared.meters.journal_failing
            served.host.handle([])
            assert not served.shared.meters.journal_failing
        assert asked == [sum(map(len, served.pushed(0)[1]))] * 2
        assert served.digest() == before
        served.push(0)
        assert restarted(served.copied(tmp_path / "later"), served.settings) == served.digest() != before


def test_a_disk_without_room_for_another_file_is_full_until_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 1)
        with monkeypatch.context() as full:
            full.setattr(os, "open", fail)
            assert served.push(0).refusal.again
            served.host.handle([])
            assert served.shared.meters.journal_failing
        served.host.handle([])
        assert not served.shared.meters.journal_failing
        served.push(0)
        assert restarted(served.copied(tmp_path / "later"), served.settings) == served.digest()


def test_a_database_that_cannot_be_opened_is_a_matter_of_rights_only_if_it_may_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorname = "SQLITE_CANTOPEN"
    assert isinstance(unwritable(tmp_path, error), PassingError)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not isinstance(unwritable(tmp_path, error), PassingError)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (OSError(errno.EROFS, "Read-only file system"), False),
    ],
)
def test_what_is_a_matter_of_rights_is_not_tried_again(tmp_path: Path, error: OSError, passes: bool) -> None:
    assert isinstance(unwritable(tmp_path, error), PassingError) is passes


def test_a_database_that_may_not_be_written_is_a_matter_of_rights_too(tmp_path: Path) -> None:
    connect(tmp_path).close()
    database = sqlite3.connect(f"file:{tmp_path / DATABASE}?mode=ro", uri=True, isolation_level=None)
    with pytest.raises(JournalError, match="readonly") as refused, transaction(database, tmp_path):
        database.execute("DELETE FROM events")
    database.close()
    assert not isinstance(refused.value, PassingError)


def test_a_full_disk_at_a_snapshot_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "SNAPSHOT_EVENTS", 3)
    with hosted(tmp_path) as served:
        with monkeypatch.context() as full:
            full.setattr(journal_module, "save_packed", fail)
            some_events(served)
        assert served.host.journal.snapshots() == [0]
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


def test_something_due_waits_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path, "support.serving:Impatient") as served:
        served.hello(0)
        with monkeypatch.context() as full:
            full.setattr(served.host.journal, "_database", FullDatabase(served.host.journal._database, "COMMIT"))
            served.at(5.0)
            assert served.host.service.strategy.fired_at == []
            assert served.host._seconds_to_next() >= 1.0
        served.at(5.0)
        assert served.host.service.strategy.fired_at == [("shrink", 5.0)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    service = tiny_settings(tmp_path)
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(UserError, match=r"Cannot keep a journal in .*: Permission denied"):
        open_service(tmp_path / "closed" / "journal", service)


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    service = tiny_settings(tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"Cannot keep a journal in .*: Not a directory"):
        open_service(tmp_path / "file" / "journal", service)


# A clock that goes backwards.


def test_times_never_decrease_and_timers_fire_in_order_when_the_clock_goes_back(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Impatient") as served:
        served.clock.now = 50.0
        served.hello(0)
        served.ready(0)
        for now in (52.0, 10.0, 11.0, 11.5, 20.0, 3.0, 30.0):
            served.at(now)
            served.push(0)
        times = [event.at for event in served.events()]
        assert times == sorted(times)
        fired = served.host.service.strategy.fired_at
        assert len(fired) > 3
        assert [at for _, at in fired] == sorted(at for _, at in fired)
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


def test_a_model_whose_names_no_greeting_holds_begins_no_service(tmp_path: Path) -> None:
    names = [f"{k:03d}{'n' * 1000}" for k in range(200)]
    save_file({name: np.zeros(1, np.float32) for name in names}, tmp_path / "wordy.safetensors")
    with pytest.raises(UserError, match="shorter names"):
        open_service(tmp_path / "journal", tiny_settings(tmp_path, init=tmp_path / "wordy.safetensors"))
    assert not (tmp_path / "journal").exists()
