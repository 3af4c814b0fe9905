"""A request comes to an Event, a Reply or a Refusal, as data: whoever decides sends nothing."""

from pathlib import Path
from typing import Any, get_args

import pytest

from polytempo.serve.server.decisions import Refusal, Reply
from polytempo.serve.server.requests import AnyKind
from polytempo.serve.state.events import Event
from polytempo_client.protocol.wire_pb2 import Branch, Head, Hello, Leave, Pull, Ready
from support.serving import FakeSession, Hosted, hosted


def decide(served: Hosted, client: int, head: Head, body: Any = ()) -> Any:
    """The decision; nothing was journalled and nobody was sent anything."""
    last = served.host.journal.last
    sent = {number: len(session.sent) for number, session in served.sessions.items()}
    decision = served.host.handlers.decide(served.request(client, head, body), served.host.service, 7.0)
    assert served.host.journal.last == last
    assert {number: len(session.sent) for number, session in served.sessions.items()} == sent
    return decision


def test_every_kind_of_request_has_a_handler(tmp_path: Path) -> None:
    kinds = {word for part in get_args(AnyKind) for word in (get_args(part) or (part,))}
    with hosted(tmp_path) as served:
        assert set(served.host.handlers.table) == kinds


def test_what_happens_to_the_service_is_an_event(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        served.sessions[0] = FakeSession(0)
        assert decide(served, 0, Head(hello=Hello())) == Event("joined", 7.0, 0)
        served.hello(0)
        assert decide(served, 0, Head(pull=Pull())) == Event("pulled", 7.0, 0)
        assert decide(served, 0, Head(ready=Ready())) == Event("ready", 7.0, 0)
        assert decide(served, 0, Head(leave=Leave())) == Event("left", 7.0, 0)
        served.ready(0)
        head, body = served.pushed(0)
        updated = decide(served, 0, head, body)
        assert (updated.kind, updated.client, updated.push.task) == ("updated", 0, served.task(0))


def test_a_question_and_a_repeat_are_replies(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        served.hello(0)
        served.ready(0)
        head, body = served.pushed(0)
        served.ask(0, head, body)
        for again, answer in ((head, "task"), (Head(branch=Branch()), "membership"), (Head(hello=Hello()), "welcome")):
            reply = decide(served, 0, again, body if again is head else ())
            assert isinstance(reply, Reply)
            assert reply.has_direct_reply()
            assert [outgoing.message[0].WhichOneof("kind") for outgoing in reply] == [answer]


@pytest.mark.parametrize(("greeted", "reason"), [(False, "say hello first"), (True, "is not yours")])
def test_what_cannot_be_done_is_a_refusal(tmp_path: Path, greeted: bool, reason: str) -> None:
    with hosted(tmp_path) as served:
        served.hello(0)
        served.ready(0)
        head, body = served.pushed(0, task=999)
        if not greeted:
            served.sessions[0] = FakeSession(0)
        refusal = decide(served, 0, head, body)
        assert isinstance(refusal, Refusal)
        assert reason in refusal.reason
        assert refusal.blames


def test_a_session_that_another_displaces_is_told_once(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        served.hello(0)
        before = served.sessions[0]
        served.reconnect(0)
        served.hello(0)
        assert [head.refusal.replaced for head, _ in before.sent if head.HasField("refusal")] == [True]
        assert before.ended
        assert not served.sessions[0].ended
