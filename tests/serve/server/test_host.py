"""The host: what clients ask for happens once, what is due happens in order, and nothing bad gets past the checks."""

import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polytempo.core.events import Update
from polytempo.core.orders import Candidates, Send, Train
from polytempo.core.state import digest
from polytempo.serve.journal.database import JournalError
from polytempo.serve.protocol.wire import entries_of, make_body
from polytempo.serve.protocol.wire_pb2 import Head, Hello, Pull, Push, Ready
from polytempo.serve.server.requests import Request
from polytempo.serve.state import service as services
from polytempo.serve.state.service import FEWEST_SENDS
from polytempo.strategies import Strategy
from support.serving import FakeSession, Hosted, hosted, refused, restarted, some_events

INF, NAN = float("inf"), float("nan")


class Offers(Strategy):
    """Two candidates."""

    def order_for(self, client: int, now: float) -> Train:
        model = self.model.weights
        return self.train(client, self.model, candidates=Candidates((model, model + 1), (self.model.version, -1)))


class BiasOnly(Strategy):
    """Trains and takes one tensor."""

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.model, trainable=("bias",))

    def updated(self, update: Update, now: float) -> None:
        self.model.replace(update.weights)


class Listens(Strategy):
    """Keeps the answers."""

    def setup(self) -> None:
        self.heard: list[dict[str, Any]] = []

    def updated(self, update: Update, now: float) -> None:
        self.heard.append(update.answers)


def begun(served: Hosted, clients: int = 2) -> None:
    for client in range(clients):
        served.hello(client)
        served.ready(client)


# Once.


def test_a_repeated_push_is_answered_with_the_open_task_and_not_applied_again(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begun(served)
        push = served.pushed(0)
        first = served.ask(0, *push)
        after = served.digest()
        again = served.ask(0, *push)
        assert again.task.number == first.task.number == served.task(0)
        assert served.digest() == after


def test_a_repeated_push_of_a_client_without_a_task_is_answered_with_its_model(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begun(served)
        push = served.pushed(0, ready=False)
        assert served.ask(0, *push).WhichOneof("kind") == "accepted"
        after = served.digest()
        assert served.ask(0, *push).WhichOneof("kind") == "model"
        assert served.digest() == after


def test_a_repeat_in_the_same_group_is_not_applied_again(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begun(served)
        push = served.pushed(0)
        served.host.handle([served.request(0, *push), served.request(1, *served.pushed(1)), served.request(0, *push)])
        assert served.host.service.updates == 2
        assert served.sessions[0].kinds()[-2:] == ["task", "task"]


def test_a_repeat_after_a_crash_is_not_applied_again(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begun(served)
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
        begun(served)
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
        begun(served)
        waiting = 1 if served.task(0) else 0
        before = served.digest()
        assert served.ready(waiting).WhichOneof("kind") == "accepted"
        assert served.digest() == before
        served.push(1 - waiting)
        assert served.sessions[waiting].kinds()[-1] == "task"


def test_a_second_hello_is_welcomed_and_changes_nothing(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begun(served)
        before = served.digest()
        assert served.hello(0).welcome.task == served.task(0)
        assert served.digest() == before


def test_a_pull_is_answered_with_the_model_even_if_the_strategy_orders_nothing(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begun(served)
        assert served.pull(0).WhichOneof("kind") == "model"
        _, body = served.sessions[0].sent[-1]
        expected = make_body(entries_of(served.host.service.schema), [served.host.service.strategy.model_for(0)])
        assert bytes(body) == b"".join(expected)


def test_requests_that_come_together_end_in_the_state_of_the_same_requests_one_by_one(tmp_path: Path) -> None:
    digests = []
    for way in ("together", "one by one"):
        (tmp_path / way).mkdir()
        with hosted(tmp_path / way) as served:
            begun(served, 3)
            requests = [served.request(client, *served.pushed(client)) for client in (2, 0, 1)]
            for group in [requests] if way == "together" else [[request] for request in requests]:
                served.host.handle(group)
            digests.append(served.digest())
    assert digests[0] == digests[1]


# Coming and going.


def test_a_client_that_returns_in_time_goes_on_with_its_task(tmp_path: Path) -> None:
    with hosted(tmp_path, patience=10.0) as served:
        begun(served)
        task = served.task(0)
        served.disconnect(0)
        served.at(9.0)
        assert served.reconnect(0, task=task, heeded=task).welcome.task == task
        served.at(30.0)
        assert served.push(0).WhichOneof("kind") == "task"


def test_a_client_that_is_away_for_too_long_has_left_with_its_task(tmp_path: Path) -> None:
    with hosted(tmp_path, patience=10.0) as served:
        begun(served)
        push = served.pushed(0)
        served.disconnect(0)
        served.at(9.9)
        assert served.host.service.is_member(0)
        served.at(10.0)
        assert not served.host.service.is_member(0)
        assert served.reconnect(0, task=push[0].push.task).welcome.task == 0
        assert refused(served.ask(0, *push), "withdrawn")
        assert served.host.service.is_member(1)


def test_the_end_of_an_old_connection_does_not_count_when_a_new_one_is_there(tmp_path: Path) -> None:
    with hosted(tmp_path, patience=10.0) as served:
        begun(served)
        old = served.sessions[0]
        served.reconnect(0)
        assert old.ended
        served.host.handle([Request(old, "gone", Head(), bytearray())])
        served.at(50.0)
        assert served.host.service.is_member(0)


def test_a_client_that_returns_is_sent_the_last_refresh_that_it_missed_and_nothing_twice(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Refresher") as served:
        begun(served, 3)
        task = served.task(0)
        served.push(1)
        heard = served.sessions[0].sent[-1][0].model
        assert heard.task == task
        served.disconnect(0)
        for _ in range(3):
            served.push(2)
        served.reconnect(0, task=task, heeded=heard.number)
        sent = [head.model.number for head, _ in served.sessions[0].sent if head.HasField("model")]
        assert sent == [served.host.service.flights[0].sends[-1][0]]
        served.reconnect(0, task=task, heeded=sent[-1])
        assert not any(head.HasField("model") for head, _ in served.sessions[0].sent)
        assert served.push(0).WhichOneof("kind") == "task"


def test_one_refresh_does_what_those_that_were_missed_would_have_done(tmp_path: Path) -> None:
    """Progress that the first of them throws away stays thrown away."""
    with hosted(tmp_path) as served:
        begun(served, 1)
        service, flight = served.host.service, served.host.service.flights[0]
        models = [flight.order.weights + k for k in range(3)]
        for rebase in ([True, True, True], [False, True, True], [True, False, True]):
            flight.sends = [(100 + k, Send(0, models[k], k, rebase[k])) for k in range(3)]
            (again,) = service.missed(0, 99)
            assert (again.number, again.order) == (102, Send(0, models[2], 2, all(rebase)))
            assert service.missed(0, 101)[0].order == flight.sends[2][1]


def test_a_client_that_never_answers_keeps_only_the_last_models_that_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, "support.serving:Refresher") as served:
        begun(served, 2)
        first = served.task(0)
        monkeypatch.setattr(services, "MOST_SENDS", FEWEST_SENDS)
        for _ in range(FEWEST_SENDS + 5):
            served.push(1)
        flight = served.host.service.flights[0]
        assert len(flight.sends) == FEWEST_SENDS
        answer = served.push(0, base=flight.forgotten)
        assert refused(answer, "too many others were sent")
        assert answer.refusal.void
        assert served.host.refusals.refusals == {}  # which is nobody's fault, once
        assert refused(served.push(0, base=flight.forgotten), "too many others were sent")
        assert served.host.refusals.refusals == {0: 1}
        assert served.push(0, base=first).WhichOneof("kind") == "task"


def test_sessions_that_take_over_again_and_again_have_a_token_in_two_places(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begun(served, 2)
        for at in (0.0, 300.0, 601.0):
            served.at(at)
            served.reconnect(0)
        refusals = served.shared.meters.refusals
        assert refusals == {"replaced": 3}  # a network that breaks now and then
        served.at(650.0)
        served.reconnect(1)
        served.reconnect(0)
        assert refusals == {"replaced": 4, "contested": 1}


def test_a_journal_that_cannot_be_written_is_told_and_no_more_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> None:
        raise JournalError("The journal cannot be written: No space left on device.")

    with hosted(tmp_path) as served:
        begun(served, 1)
        with monkeypatch.context() as patch:
            patch.setattr(served.host.journal, "append", full)
            assert served.push(0).refusal.again
            served.host.write_status(stopping=True)
            assert served.host.status()["journal_failing"]
            assert not served.host.is_healthy()
        served.host.handle([])  # it is tried, though nobody comes
        assert served.host.is_healthy() is served.host._thread.is_alive()
        assert not served.shared.meters.journal_failing
        assert served.push(0).WhichOneof("kind") == "task"


def test_a_client_that_was_told_to_report_while_it_was_away_is_told_when_it_returns(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Impatient") as served:
        begun(served)
        task = served.task(0)
        served.disconnect(0)
        served.at(7.5)
        assert served.sessions[1].kinds()[-1] == "report"
        served.reconnect(0, task=task, heeded=task)
        assert served.sessions[0].sent[-1][0].report.task == task


def test_after_a_restart_clients_have_the_whole_patience_to_return(tmp_path: Path) -> None:
    with hosted(tmp_path, patience=10.0) as served:
        begun(served)
        served.at(100.0)
        again = served.after_crash(tmp_path / "crash")
        again.at(9.0)
        assert again.host.service.is_member(0)
        again.hello(0)
        again.at(11.0)
        assert again.host.service.is_member(0)
        assert not again.host.service.is_member(1)
        again.close()


# Timers.


def test_overdue_timers_fire_in_order_after_a_restart_and_downtime_does_not_count(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Impatient", patience=1e6) as served:
        begun(served)
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


def test_a_timer_that_raises_stops_the_server_with_its_error(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Brittle") as served:
        begun(served, 3)
        before = served.digest()
        served.clock.now = 100.0
        served.host.start()
        served.host._thread.join(30)
        assert isinstance(served.host.error, ZeroDivisionError)
        assert all(session.ended for session in served.sessions.values())
        assert restarted(tmp_path, served.settings) == before


# A strategy that fails.


def test_an_update_that_breaks_the_strategy_is_refused_and_nothing_of_it_stays(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Brittle") as served:
        begun(served)
        served.push(1)
        before = served.digest()
        assert refused(served.push(0, answers={"break": 1}), "ZeroDivisionError")
        assert served.digest() == before
        assert served.shared.meters.refusals["push"] == 1
        served.reconnect(1)
        assert served.push(1).WhichOneof("kind") == "task"
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


def test_others_in_the_group_of_an_update_that_breaks_the_strategy_are_not_lost(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Brittle") as served:
        begun(served, 2)
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
        begun(served)
        served.at(50.0)
        served.push(0, answers={"break": 1})
        served.at(59.0)
        assert served.host.service.is_member(1)


# Every refusal.


def changed(**said: Any) -> Callable[[Hosted], tuple[Head, list[Any]]]:
    return lambda served: served.pushed(0, **said)


def named(**tensors: Any) -> Callable[[Hosted], tuple[Head, list[Any]]]:
    fitting = {"bias": np.zeros(2, np.float32), "weight": np.zeros((2, 2), np.float32)}
    kept = {name: array for name, array in {**fitting, **tensors}.items() if array is not None}
    return lambda served: served.pushed(0, tensors=kept)


def bad_number(number: float) -> Callable[[Hosted], tuple[Head, list[Any]]]:
    return lambda served: served.pushed(0, weights=torch.tensor([0.0, 0.0, number, 0.0, 0.0, 0.0]))


def garbled_body(served: Hosted) -> tuple[Head, list[Any]]:
    head, body = served.pushed(0)
    return head, [b"".join(body)[:-3]]


def deep(levels: int) -> str:
    return '{"dict":[["a",' + "[" * levels + "]" * levels + "]]}"


def answering(value: Any) -> Callable[[Hosted], tuple[Head, list[Any]]]:
    """Answers as a stranger may write them."""
    text = value if isinstance(value, str) else json.dumps(value)

    def make(served: Hosted) -> tuple[Head, list[Any]]:
        head, body = served.pushed(0)
        head.push.answers = text
        return head, body

    return make


REFUSALS: dict[str, tuple[Callable[[Hosted], tuple[Head, list[Any]]], str]] = {
    "no task": (changed(task=0), "task 0 is not yours"),
    "unknown task": (changed(task=99), "task 99 is not yours"),
    "another's task": (lambda served: served.pushed(0, task=served.task(1)), "is not yours"),
    "wrong base": (changed(base=99), "started from model 99"),
    "another's base": (lambda served: served.pushed(0, base=served.task(1)), "started from model"),
    "no samples": (changed(samples=0), "0 samples; expected 1 to"),
    "too many samples": (changed(samples=10**9 + 1), "1000000001 samples; expected 1 to 1000000000"),
    "too many steps": (changed(steps=5), "5 steps; the task has 4"),
    "missing tensor": (named(bias=None), "'bias' is missing"),
    "unknown tensor": (named(extra=np.zeros(1, np.float32)), "'extra' is none of the model's"),
    "stray answer": (named(**{"answer/7": np.zeros(1, np.float32)}), "'answer/7' is none of the model's"),
    "dtype": (named(bias=np.zeros(2)), "dtype float64; expected float32"),
    "shape": (named(bias=np.zeros((1, 2), np.float32)), "shape [1, 2]; expected [2]"),
    "nan": (bad_number(NAN), "NaN or Inf"),
    "inf": (bad_number(INF), "NaN or Inf"),
    "too far": (bad_number(1e4), "away from its start; expected at most"),
    "sum overflows": (bad_number(3e38), "away from its start; expected at most"),
    "candidate not offered": (changed(chosen=0), "candidate 0 was not offered"),
    "cut body": (garbled_body, "safetensors"),
    "no body": (lambda served: (served.pushed(0)[0], []), "is missing"),
    "garbled answers": (answering("{"), "cannot be read"),
    "answers of objects": (
        answering({"object": "polytempo.core.orders.Report", "state": {"client": 0}}),
        "cannot be read",
    ),
    "objects inside": (answering({"dict": [["a", {"object": "x", "state": {}}]]}), "cannot be read"),
    "again": (answering({"dict": [["a", {"again": 0}]]}), "cannot be read"),
    "no such tensor": (answering({"dict": [["a", {"tensor": 0}]]}), "cannot be read"),
    "huge deque": (answering({"dict": [["a", {"deque": [], "maxlen": 10**30}]]}), "cannot be read"),
    "unhashable": (answering({"dict": [[[], 1]]}), "cannot be read"),
    "huge number": (answering('{"dict":[["a",' + "9" * 5000 + "]]}"), "cannot be read"),
    "answers no table": (answering([1]), "no table of names"),
    "answers with odd names": (answering({"dict": [[1, 2]]}), "no table of names"),
    "nan answer": (answering({"dict": [["a", [NAN]]]}), "NaN or Inf"),
    "nan as a name": (answering({"dict": [["a", {"dict": [[NAN, 1]]}]]}), "NaN or Inf"),
    "deep answer": (answering(deep(200)), "levels deep"),
    "deeper answer": (answering(deep(450)), ""),
    "deepest answer": (answering(deep(100_000)), "cannot be read"),
    "one tensor many times": (
        lambda served: served.pushed(0, answers={"a": [torch.zeros(100_000)] * 11}),
        "the answers hold 110",
    ),
    "endless header": (
        lambda served: (served.pushed(0)[0], [struct.pack("<Q", 2 << 20), b" " * (2 << 20)]),
        "a header of 2097152 bytes; expected at most 1048576",
    ),
    "nan in an answer's tensor": (
        lambda served: served.pushed(0, answers={"a": torch.tensor([NAN])}),
        "an answer holds NaN or Inf",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_bad_update_is_refused_with_a_reason_and_changes_nothing(case: str, tmp_path: Path) -> None:
    make, reason = REFUSALS[case]
    with hosted(tmp_path) as served:
        begun(served)
        before, written = served.digest(), served.host.journal.last
        assert refused(served.ask(0, *make(served)), reason)
        assert served.digest() == before
        assert served.host.journal.last == written
        assert served.shared.meters.refusals["push"] == 1
        assert served.push(0).WhichOneof("kind") == "task"


def test_a_choice_among_candidates_is_checked(tmp_path: Path) -> None:
    with hosted(tmp_path, "test_host:Offers") as served:
        begun(served, 1)
        before = served.digest()
        assert refused(served.push(0, chosen=2, weights=torch.zeros(6)), "candidate 2 was not offered")
        assert refused(served.push(0), "started from model")
        assert served.digest() == before
        assert refused(served.push(0, chosen=1), "the answer to 'losses' is missing")
        assert served.digest() == before
        assert served.push(0, chosen=1, answers={"losses": [2.0, 1.0]}).WhichOneof("kind") == "task"


def test_what_a_task_does_not_train_may_be_left_out_and_is_not_taken(tmp_path: Path) -> None:
    with hosted(tmp_path, "test_host:BiasOnly") as served:
        begun(served, 1)
        before = served.host.service.strategy.model.weights.clone()
        ones = {"bias": np.ones(2, np.float32), "weight": np.full((2, 2), 1e9, np.float32)}
        for tensors in ({"bias": ones["bias"]}, ones):
            assert served.push(0, tensors=tensors).WhichOneof("kind") == "task"
        after = served.host.service.schema.views(served.host.service.strategy.model.weights)
        assert torch.equal(after["weight"], served.host.service.schema.views(before)["weight"])
        assert torch.equal(after["bias"], torch.ones(2))


@pytest.mark.parametrize("head", [Head(ready=Ready()), Head(push=Push()), Head(pull=Pull())])
def test_whoever_has_not_said_hello_is_refused(head: Head, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begun(served)
        before = served.digest()
        served.sessions[0] = FakeSession(0)
        assert refused(served.ask(0, head), "say hello first")
        served.sessions[7] = FakeSession(7)
        assert refused(served.ask(7, head), "say hello first")
        assert served.digest() == before
        assert sum(served.shared.meters.refusals.values()) == 2


def test_whoever_has_left_is_refused_until_it_says_hello(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begun(served)
        push = served.pushed(0)
        served.leave(0)
        assert refused(served.ask(0, *push), "say hello first")
        served.hello(0)
        assert refused(served.ask(0, *push), "withdrawn")


def test_answers_of_all_plain_kinds_reach_the_strategy_and_survive_a_crash(tmp_path: Path) -> None:
    said = {"a": torch.arange(3), "b": [1, 2.5, None, True, "text"], "c": {"d": (1, np.float64(2.0))}}
    with hosted(tmp_path, "test_host:Listens") as served:
        begun(served, 1)
        served.push(0, answers=said)
        (heard,) = served.host.service.strategy.heard
        assert digest(heard) == digest(said)
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


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
