"""The client: a session that outlives connections, and orders that reach a client in the middle of its training."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from polytempo.core.errors import UserError
from polytempo.serve.server import messages
from polytempo.serve.server.checks import ANSWER_BYTES
from polytempo.serve.server.decisions import Reply
from polytempo.serve.server.network.outbox import WAITING_MESSAGES, GrpcSession, Outbox
from polytempo.serve.storage.errors import JournalError
from polytempo_client.client import Client
from polytempo_client.errors import RefusedError
from polytempo_client.protocol.framing import FRAME_BYTES
from polytempo_client.protocol.tasks import Task
from polytempo_client.protocol.wire_pb2 import Head, Ready
from support.serving import ManualClock, free_port, hosted, nudge, running, settled

pytestmark = pytest.mark.usefixtures("short_pauses")


def in_thread(act: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


# A session.


def test_a_task_that_is_withdrawn_while_its_result_is_on_its_way_is_no_fault_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        check, pushed = server.host.handlers.table["push"], []

        def break_off_at_the_first(request: Any, service: Any, now: float) -> Any:
            pushed.append(request.head.push.task)
            if len(pushed) > 1:
                return check(request, service, now)
            server.host.presence.expect([0], 0.0)  # and so for long that it counts as gone
            request.session.end()
            return Reply()

        monkeypatch.setitem(server.host.handlers.table, "push", break_off_at_the_first)
        client.run(lambda task: (nudge(task), 5), updates=1, refusals=1)
        assert server.host.service.updates == 1
        assert pushed[0] == pushed[1] != pushed[2]


def test_a_client_pulls_trains_and_pushes(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        before = client.pull(30)
        assert {name: array.shape for name, array in before.tensors.items()} == {"bias": (2,), "weight": (2, 2)}
        client.run(lambda task: (nudge(task), 5), updates=3)
        assert server.host.service.members[0].updates == 3
        assert not np.array_equal(client.pull(30).tensors["bias"], before.tensors["bias"])
        assert client.number == 0


def test_twelve_clients_in_one_process_all_get_a_task(tmp_path: Path) -> None:
    """Each has a connection of its own: the server takes eight calls on one."""
    with running(tmp_path, clients=12) as server, ExitStack() as opened:
        clients = [opened.enter_context(server.client(number)) for number in range(12)]
        assert [client.task(30).count for client in clients] == [0] * 12


def test_an_update_is_what_was_pushed(tmp_path: Path) -> None:
    with running(tmp_path, parameters={"mixing": 1.0, "staleness": "constant"}) as server, server.client(1) as client:
        task = client.task(30)
        client.push(task, nudge(task, 0.25), samples=5, timeout=30)
        expected = {name: array + np.float32(0.25) for name, array in task.tensors.items()}
        assert all(np.array_equal(client.pull(30).tensors[name], expected[name]) for name in expected)


def test_a_client_acts_only_as_the_one_whose_token_it_has(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client(0) as one, server.client(2) as other:
        tasks = one.task(30), other.task(30)
        assert (one.number, other.number) == (0, 2)
        before = server.host.service.digest()
        with pytest.raises(RefusedError, match="is not yours"):
            other.push(tasks[0], nudge(tasks[0]), samples=5, timeout=30)
        assert server.host.service.digest() == before


def test_a_refused_update_says_why_and_the_client_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        calls: list[Task] = []

        def train(task: Task) -> tuple[dict[str, np.ndarray], int]:
            calls.append(task)
            return nudge(task, 1e6 if len(calls) == 1 else 0.1), 5

        client.run(train, updates=2)
        assert len(calls) == 3
        assert server.shared.meters.refusals["push"] == 1


def test_a_message_that_is_too_large_is_refused_and_not_tried_for_ever(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        task = client.task(30)
        much = {"much": torch.zeros(ANSWER_BYTES // 4 + 1000)}
        with pytest.raises(RefusedError, match="expected at most"):
            client.push(task, nudge(task), samples=5, answers=much, timeout=60)
        client.push(task, nudge(task), samples=5, timeout=30)
        assert server.host.service.updates == 1


def test_a_model_of_several_frames_passes_both_ways(tmp_path: Path) -> None:
    init = tmp_path / "large.safetensors"
    weights = np.random.default_rng(0).normal(size=FRAME_BYTES).astype(np.float32)  # four frames
    save_file({"bias": weights[:5], "weight": weights}, init)
    parameters = {"mixing": 1.0, "staleness": "constant"}
    with running(tmp_path, init=init, parameters=parameters) as server, server.client(0) as client:
        task = client.task(30)
        assert np.array_equal(task.tensors["weight"], weights)
        client.push(task, nudge(task), samples=5, timeout=30)
        assert np.array_equal(client.pull(30).tensors["weight"], weights + np.float32(0.1))


def test_a_client_that_leaves_is_out_and_may_come_again(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        client = server.client(0)
        client.task(30)
        client.leave(30)
        assert not server.host.service.is_member(0)
        with pytest.raises(UserError, match="closed"):
            client.pull()
        with server.client(0) as again:
            assert again.task(30).count == 1


def test_a_client_that_closes_may_come_again_to_its_task(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with server.client(0) as client:
            task = client.task(30)
        with server.client(0) as again:
            assert again.task(30).number == task.number


def test_closing_wakes_whoever_waits(tmp_path: Path) -> None:
    with running(tmp_path, participation="k:1") as server, server.client(0) as one:
        one.task(30)
        other = server.client(1)
        failures: list[BaseException] = []

        def wait_for_a_task() -> None:
            try:
                other.task()
            except UserError as error:
                failures.append(error)

        waiting = in_thread(wait_for_a_task)
        settled(other)
        other.close()
        waiting.join(30)
        assert "closed" in str(failures[0])


def test_no_task_within_the_time_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []

    def wait_in_vain(_: Any, timeout: float | None = None) -> bool:
        waits.append(timeout)
        return False

    with running(tmp_path, participation="k:1") as server, server.client(0) as one, server.client(1) as other:
        one.task(30)
        other.wait_for_welcome(30)
        monkeypatch.setattr(other._changed, "wait_for", wait_in_vain)
        with pytest.raises(TimeoutError, match=r"no task has come within 60 s"):
            other.task(timeout=60)
    assert waits == [60]


# Orders that nobody asked for.


def test_a_refresh_reaches_a_client_in_the_middle_of_its_training(tmp_path: Path) -> None:
    with running(tmp_path, "support.serving:Refresher") as server, server.client(0) as slow, server.client(1) as fast:
        task = slow.task(30)
        fast.run(lambda task: (nudge(task), 5), updates=2)
        settled(slow)
        models = task.refreshes()
        assert [model.version for model in models] == [1, 2]
        assert task.base == models[-1].number
        slow.push(task, {n: a + np.float32(1.0) for n, a in models[-1].tensors.items()}, samples=5, timeout=30)
        assert server.host.service.members[0].version == 2
        assert server.host.service.members[0].staleness == 0


def test_an_update_may_count_from_a_model_before_the_last_refresh(tmp_path: Path) -> None:
    with running(tmp_path, "support.serving:Refresher") as server, server.client(0) as slow, server.client(1) as fast:
        task = slow.task(30)
        fast.run(lambda task: (nudge(task), 5), updates=1)
        settled(slow)
        slow.push(task, nudge(task), samples=5, timeout=30)
        assert server.host.service.members[0].version == 0
        assert server.host.service.members[0].staleness == 1


def test_report_now_reaches_a_client_in_the_middle_of_its_training(tmp_path: Path) -> None:
    clock = ManualClock()
    with running(tmp_path, "support.serving:Impatient", seconds=clock) as server, server.client(0) as client:
        task = client.task(30)
        assert not task.reported
        clock.now = 7.5
        server.host.tick()
        settled(client)
        assert task.reported
        client.push(task, nudge(task), samples=5, steps=1, timeout=30)
        assert not client.task(30).reported


def test_a_task_comes_when_it_is_the_clients_turn(tmp_path: Path) -> None:
    with running(tmp_path, participation="k:1:round-robin") as server, server.client(0) as one:
        task = one.task(30)
        with server.client(1) as other:
            other._connection.ask(Head(ready=Ready()), timeout=30)
            one.push(task, nudge(task), samples=5, timeout=30)
            assert other.task(30).number > task.number


# Broken connections.


def test_what_was_not_acknowledged_is_pushed_again_after_a_restart_and_applied_once(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, port=port) as server:
        client = server.client(0)
        task = client.task(30)
    pushing = in_thread(lambda: client.push(task, nudge(task), samples=5, timeout=60))
    with running(tmp_path, port=port) as server:
        pushing.join(60)
        assert not pushing.is_alive()
        assert server.host.service.members[0].updates == 1
        assert client.task(30).number > task.number
        client.close()


def test_a_push_whose_acknowledgement_is_lost_is_applied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        task = client.task(30)
        tell = server.host._tell
        lost: list[Any] = []

        def lose_the_first(event: Any, orders: Any, request: Any = None) -> None:
            if event.kind == "updated" and not lost:
                lost.append(event)
                request.session.end()
            else:
                tell(event, orders, request)

        monkeypatch.setattr(server.host, "_tell", lose_the_first)
        client.push(task, nudge(task), samples=5, timeout=30)
        assert lost
        assert server.host.service.updates == 1
        assert client.task(30).number == server.host.service.open_task(0)


def test_a_client_in_training_goes_on_with_its_task_after_a_restart_and_hears_what_it_missed(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, "support.serving:Refresher", port=port) as server:
        slow = server.client(0)
        task = slow.task(30)
    with running(tmp_path, "support.serving:Refresher", port=port) as server, server.client(1) as fast:
        fast.run(lambda task: (nudge(task), 5), updates=1)
        settled(slow)
        assert len(task.refreshes()) == 1
        assert not task.withdrawn
        slow.push(task, nudge(task), samples=5, timeout=30)
        assert server.host.service.members[0].updates == 1
        slow.close()


def test_a_client_whose_task_was_withdrawn_while_it_was_away_learns_it(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, port=port) as server:
        client = server.client(0)
        task = client.task(30)
    with hosted(tmp_path, patience=1.0) as served:
        served.at(100.0)
    with running(tmp_path, port=port):
        settled(client)
        assert task.withdrawn
        with pytest.raises(RefusedError, match="withdrawn"):
            client.push(task, nudge(task), samples=5, timeout=30)
        client.close()


def test_a_full_disk_makes_a_client_wait_and_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        task = client.task(30)
        append, failures = server.host.journal.append, []

        def full_twice(events: Any) -> None:
            if len(failures) < 2:
                failures.append(events)
                raise JournalError("No space left on device")
            append(events)

        monkeypatch.setattr(server.host.journal, "append", full_twice)
        client.push(task, nudge(task), samples=5, timeout=30)
        assert server.host.service.members[0].updates == 1
        assert len(failures) == 2


def test_an_answer_that_cannot_be_sent_is_named(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        task = client.task(30)
        with pytest.raises(UserError, match="complex64, which cannot be sent"):
            client.push(task, nudge(task), samples=5, answers={"a": torch.zeros(1, dtype=torch.complex64)})


# Who may come in.


def test_a_wrong_token_is_an_error_and_not_tried_for_ever(tmp_path: Path) -> None:
    with running(tmp_path) as server, Client(f"127.0.0.1:{server.port}", "no-such-token", insecure=True) as client:
        with pytest.raises(UserError, match="no client has this token"):
            client.pull(30)
        with pytest.raises(UserError, match="no client has this token"):
            client.wait_for_welcome(30)
        assert server.host.service.members == {}
        assert server.shared.meters.refusals["token"] == 1


@pytest.mark.parametrize(
    "address", ["192.0.2.1:8443", "example.org:8443", "0.0.0.0:8443", "[2001:db8::1]:8443", "127.evil.example:8443"]
)
def test_plaintext_is_refused_off_loopback(address: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="only loopback"):
        Client(address, "token", insecure=True)


def test_without_a_ca_there_is_no_client() -> None:
    with pytest.raises(UserError, match="ca="):
        Client("127.0.0.1:8443", "token")


def test_a_session_that_nobody_reads_is_ended_and_holds_no_more_messages() -> None:
    session = GrpcSession(0, "", Outbox())
    for _ in range(WAITING_MESSAGES + 5):
        session.send(messages.accepted())
    assert session.messages[0] is None
    assert len(session.messages) < WAITING_MESSAGES
