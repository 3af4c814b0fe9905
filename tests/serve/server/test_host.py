"""The host: what clients ask for happens once, and what is due happens in order."""

import threading
from pathlib import Path
from typing import Any

import pytest

from polytempo.serve.server.requests import Request
from polytempo_client.protocol.bodies import entries_of, make_body
from polytempo_client.protocol.wire_pb2 import Head, Hello
from support.serving import FakeSession, hosted, join_all, refused, restarted, some_events

# Once.


def test_a_repeated_push_is_answered_with_the_open_task_and_not_applied_again(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        push = served.pushed(0)
        first = served.ask(0, *push)
        after = served.digest()
        again = served.ask(0, *push)
        assert again.task.number == first.task.number == served.task(0)
        assert served.digest() == after


def test_a_repeated_push_of_a_client_without_a_task_is_answered_with_its_model(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        push = served.pushed(0, ready=False)
        assert served.ask(0, *push).WhichOneof("kind") == "accepted"
        after = served.digest()
        assert served.ask(0, *push).WhichOneof("kind") == "model"
        assert served.digest() == after


def test_a_repeat_in_the_same_group_is_not_applied_again(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        push = served.pushed(0)
        served.host.handle([served.request(0, *push), served.request(1, *served.pushed(1)), served.request(0, *push)])
        assert served.host.service.updates == 2
        assert served.sessions[0].kinds()[-2:] == ["task", "task"]


def test_a_repeat_after_a_crash_is_not_applied_again(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        push = served.pushed(0)
        served.ask(0, *push)
        again = served.after_crash(tmp_path / "crash")
        again.hello(0, task=push[0].push.task)
        assert again.ask(0, *push).task.number == served.task(0)
        assert again.digest() == served.digest()
        again.close()


@pytest.mark.parametrize("leaves", [False, True])
def test_a_repeat_after_the_client_has_come_again_is_not_applied_again(leaves: bool, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        push = served.pushed(0)
        served.ask(0, *push)
        if leaves:
            served.leave(0)
        served.reconnect(0)
        before = served.digest()
        assert served.ask(0, *push).WhichOneof("kind") == ("model" if leaves else "task")
        assert served.digest() == before


def test_asking_again_for_work_gives_the_same_task(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        served.hello(0)
        first = served.ready(0)
        before = served.digest()
        assert served.ready(0).task == first.task
        assert served.digest() == before


def test_asking_again_while_it_is_not_ones_turn_changes_nothing(tmp_path: Path) -> None:
    with hosted(tmp_path, participation="k:1:round-robin") as served:
        join_all(served)
        waiting = 1 if served.task(0) else 0
        before = served.digest()
        assert served.ready(waiting).WhichOneof("kind") == "accepted"
        assert served.digest() == before
        served.push(1 - waiting)
        assert served.sessions[waiting].kinds()[-1] == "task"


def test_a_second_hello_is_welcomed_and_changes_nothing(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        before = served.digest()
        assert served.hello(0).welcome.task == served.task(0)
        assert served.digest() == before


def test_a_pull_is_answered_with_the_model_even_if_the_strategy_orders_nothing(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        assert served.pull(0).WhichOneof("kind") == "model"
        _, body = served.sessions[0].sent[-1]
        expected = make_body(
            entries_of(served.host.service.schema), [served.host.service.strategy.model_for(0).numpy()]
        )
        assert bytes(body) == b"".join(expected)


def test_requests_that_come_together_end_in_the_state_of_the_same_requests_one_by_one(tmp_path: Path) -> None:
    digests = []
    for way in ("together", "one by one"):
        (tmp_path / way).mkdir()
        with hosted(tmp_path / way) as served:
            join_all(served, 3)
            requests = [served.request(client, *served.pushed(client)) for client in (2, 0, 1)]
            for group in [requests] if way == "together" else [[request] for request in requests]:
                served.host.handle(group)
            digests.append(served.digest())
    assert digests[0] == digests[1]


# Timers.


def test_overdue_timers_fire_in_order_after_a_restart_and_downtime_does_not_count(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Impatient", patience=1e6) as served:
        join_all(served)
        served.at(1.0)
        served.push(0)
        again = served.after_crash(tmp_path / "crash")
        assert again.host.clock() == 1.0
        again.at(2.0)
        assert again.host.service.strategy.fired_at == []
        again.at(7.0)
        fired = again.host.service.strategy.fired_at
        assert fired == [("shrink", 8.0), ("report", 8.0)]
        again.at(30.0)
        assert [at for _, at in fired] == sorted(at for _, at in fired)
        assert restarted(again.copied(tmp_path / "again"), served.settings) == again.digest()
        again.close()


# A strategy that fails.


def test_an_update_that_breaks_the_strategy_is_refused_and_nothing_of_it_stays(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Brittle") as served:
        join_all(served)
        served.push(1)
        before = served.digest()
        assert refused(served.push(0, answers={"break": 1}), "ZeroDivisionError")
        assert served.digest() == before
        assert served.shared.meters.refusals["strategy"] == 1
        served.reconnect(1)
        assert served.push(1).WhichOneof("kind") == "task"
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


def test_others_in_the_group_of_an_update_that_breaks_the_strategy_are_not_lost(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Brittle") as served:
        join_all(served, 2)
        served.hello(3)
        served.ready(3)
        good = [served.request(client, *served.pushed(client)) for client in (1, 3)]
        bad = served.request(0, *served.pushed(0, answers={"break": 1}))
        served.host.handle([good[0], bad, good[1]])
        assert served.host.service.updates == 2
        assert all(session.ended for session in served.sessions.values())
        for request in good:  # they come again, since they may not have been answered
            client = request.session.client
            served.reconnect(client)
            push = Head(push=request.head.push)
            assert served.ask(client, push, [request.body]).task.number == served.task(client)
        assert served.host.service.updates == 2


def test_clients_have_time_to_return_after_the_strategy_failed(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Brittle", patience=10.0) as served:
        join_all(served)
        served.at(50.0)
        served.push(0, answers={"break": 1})
        served.at(59.0)
        assert served.host.service.is_member(1)


# The thread.


def test_a_host_that_is_told_to_stop_ends_with_a_snapshot(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        some_events(served)
        before, last = served.digest(), served.host.journal.last
        served.host.start()
        served.host.stop()
        assert served.host.error is None
        assert (served.directory / f"snapshot-{last:012d}.safetensors").exists()
    assert restarted(tmp_path, served.settings) == before


def test_requests_of_many_threads_are_all_answered(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        answered = threading.Semaphore(0)

        class Waiting(FakeSession):
            def send(self, message: Any, answers: int = 0) -> None:
                super().send(message, answers)
                answered.release()

        sessions = [Waiting(client) for client in range(20)]
        served.host.start()
        threads = [
            threading.Thread(
                target=lambda session=session: served.host.submit(
                    Request(session, "hello", Head(request=1, hello=Hello()), bytearray())
                )
            )
            for session in sessions
        ]
        for thread in threads:
            thread.start()
        assert all(answered.acquire(timeout=30) for _ in sessions)
        served.host.stop()
        assert served.host.error is None
        assert all(session.kinds() == ["welcome", "refusal"] for session in sessions)  # the last: come again
        assert len(served.host.service.members) == 20
