"""The journal: what is written is read, nothing grows without bound, and one server writes at a time."""

import os
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

from polytempo.core.errors import UserError
from polytempo.core.state import digest
from polytempo.serve.journal import snapshots as snapshots_module
from polytempo.serve.journal.files import store as store_module
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.recovery import recover
from polytempo.serve.state.events import Event, Push
from polytempo.serve.storage.errors import DamagedError, JournalError
from polytempo_client.model.schema import Schema
from support.postgres import in_files, in_schema, is_in_database
from support.serving import Hosted, hosted, restarted, tiny_settings

pytestmark = pytest.mark.usefixtures("bodies_lie_apart", "store")

SCHEMA = Schema(("a", "b"), ((2, 2), (3,)), 7)
ABOUT = {"schema": {"names": SCHEMA.names, "shapes": SCHEMA.shapes, "parameters": 7}}


def test_small_bodies_lie_in_their_rows_and_cost_one_sync(tmp_path, monkeypatch):
    monkeypatch.undo()
    syncs = []
    with new_journal(tmp_path) as journal:
        monkeypatch.setattr(os, "fdatasync", syncs.append)
        journal.append([update(1), update(2)])
    assert not syncs
    assert [event.push.weights.tolist() for event in read(tmp_path)] == [list(range(7))] * 2
    in_schema(tmp_path, "UPDATE events SET body = substr(body, 2) WHERE number = 2")
    with pytest.raises(DamagedError, match="event 2"):
        read(tmp_path)


@contextmanager
def new_journal(directory: Path) -> Iterator[Journal]:
    journal = Journal.begin(directory / "journal", ABOUT, {"nothing": 0})
    try:
        yield journal
    finally:
        journal.close()


def update(number: int = 1, weights: Any = None) -> Event:
    push = Push(number, number, torch.arange(7.0) if weights is None else weights, 3, 2)
    return Event("updated", float(number), 0, push)


def read(directory: Path, after: int = 0) -> list[Event]:
    journal = Journal(directory / "journal")
    try:
        return [event for _, event in journal.events(after)]
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


def test_events_are_read_back_bit_for_bit(tmp_path: Path) -> None:
    with new_journal(tmp_path) as journal:

        @settings(max_examples=20 if is_in_database(tmp_path) else 60)
        @given(st.lists(st.lists(events, min_size=1, max_size=4), max_size=3))
        def written_and_read(groups: list[list[Event]]) -> None:
            before = journal.last
            for group in groups:
                journal.append(group)
            found = read(tmp_path, before)
            written = [event for group in groups for event in group]
            assert len(found) == len(written)
            assert all(map(same, found, written))

        written_and_read()


def test_an_update_with_more_answers_than_one_call_writes_is_read_back(tmp_path: Path) -> None:
    event = update()
    assert event.push is not None
    push = replace(event.push, answers={str(i): torch.full((2,), float(i)) for i in range(3000)})
    with new_journal(tmp_path) as journal:
        journal.append([replace(event, push=push), update(2)])
        assert all(map(same, read(tmp_path), [replace(event, push=push), update(2)]))


@in_files
def test_bodies_go_on_in_a_new_file_when_one_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SEGMENT_BYTES", 300)
    with new_journal(tmp_path) as journal:
        written = [update(number, torch.full((7,), float(number))) for number in range(1, 8)]
        for event in written:
            journal.append([event])
        assert len(list((tmp_path / "journal").glob("*.bodies"))) > 2
        assert all(map(same, read(tmp_path), written))


# Pruning.


def size_of(served: Hosted) -> int:
    """Bytes of what the journal holds."""
    if is_in_database(served.directory.parent):
        of_tables = "SELECT coalesce(sum(length(data)), 0)::int FROM parts"
        return sum(size for (size,) in in_schema(served.directory.parent, of_tables))
    return sum(path.stat().st_size for path in served.directory.glob("*[!l]"))


def test_pruning_keeps_a_journal_bounded_and_every_kept_state_can_be_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "SNAPSHOT_EVENTS", 20)
    monkeypatch.setattr(store_module, "SEGMENT_BYTES", 2000)
    with hosted(tmp_path) as served:
        journal, states, sizes = served.host.journal, {}, []
        served.hello(0)
        served.ready(0)
        for i in range(150):
            served.push(0, by=0.001 * i)
            states[journal.last] = served.digest()
            sizes.append(size_of(served))
            assert len(list(served.directory.iterdir())) < 20
            assert journal.store.query("SELECT count(*) FROM events")[0][0] <= 60
        assert max(sizes[75:]) <= 1.2 * max(sizes[:75])
        oldest = journal.snapshots()[0]
        assert len(journal.snapshots()) == 2
        for number in range(max(oldest, min(states)), journal.last + 1):
            assert recover(journal, served.opened.begin, number).digest() == states[number]


# Who may write, and what.


def test_only_one_server_writes_a_journal(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        with pytest.raises(JournalError, match="Another server"):
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


def test_a_server_that_takes_over_sees_what_the_one_before_wrote_last(tmp_path: Path) -> None:
    with new_journal(tmp_path) as first:
        second = Journal(tmp_path / "journal")
        first.append([update(1)])
        first.append([update(2)])
    second.lock()
    second.append([update(3)])
    assert all(map(same, read(tmp_path), [update(1), update(2), update(3)]))
    second.close()


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
