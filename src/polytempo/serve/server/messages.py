"""The server's messages, made of what the service orders."""

from collections.abc import Collection, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from polytempo.core.disk.tensor_file import NAMES
from polytempo.core.errors import UserError
from polytempo.core.model.vectors import half
from polytempo.core.orders import Report, Send, Train, Work
from polytempo.core.schedules import rate_at
from polytempo.serve.state.service import Dispatched
from polytempo_client.model.encodings import parse_encoding
from polytempo_client.model.schema import Schema
from polytempo_client.personal.told import Personal
from polytempo_client.protocol import wire_pb2 as pb
from polytempo_client.protocol.bodies import Entry, entries_of, make_body
from polytempo_client.protocol.framing import Buffer
from polytempo_client.protocol.personal import personal_message
from polytempo_client.protocol.welcome import make_welcome

Message = tuple[pb.Head, Sequence[Buffer]]
Named = tuple[str, Tensor]
"""A vector of the model's shape, and what its tensors' names begin with."""
WISHES = 8
"""Of one client that are looked at."""


def agreed(hello: pb.Hello, allowed: Collection[str]) -> tuple[str, str]:
    """How the client is to encode updates, and how models are for it: the first of its wishes whose kind is allowed;
    empty for float32. Models are rounded only for clients whose updates are differences: those that push whole models
    would hand the rounding in with every update."""
    upload = next((wish for wish in hello.uploads[:WISHES] if _kind(wish) in allowed), "")
    half_precision = upload and "fp16" in hello.downloads[:WISHES] and "fp16" in allowed
    return upload, "fp16" if half_precision else ""


def _kind(wish: str) -> str:
    try:
        return parse_encoding(wish).kind
    except UserError:  # of a newer version
        return ""


def welcome(client: int, schema: Schema, seed: int, task: int, upload: str = "", download: str = "") -> Message:
    return pb.Head(welcome=make_welcome(client, schema, seed, task, upload, download)), ()


def accepted() -> Message:
    return pb.Head(accepted=pb.Accepted()), ()


def refusal(
    reason: str,
    again: bool = False,
    replaced: bool = False,
    void: bool = False,
    failed: bool = False,
    ends: bool = False,
) -> Message:
    """A client that is to come again, or whose session is another's, has no session any more."""
    ends = ends or again or replaced
    made = pb.Refusal(reason=reason, again=again, replaced=replaced, void=void, failed=failed, ends=ends)
    return pb.Head(refusal=made), ()


def model(weights: Tensor, version: int, schema: Schema, download: str = "") -> Message:
    """A model to use, not to train from."""
    return pb.Head(model=pb.Model(version=version)), _body([("", weights)], schema, download)


def add_personal(message: Message, personal: Personal, answered: int) -> None:
    """Tell a client that pulls its model how to mix it with its own."""
    sent = message[0].model
    sent.personal.CopyFrom(personal_message(personal))
    sent.answered = answered


def membership(branch: int, version: int, members: int) -> Message:
    """Which branch a client belongs to."""
    return pb.Head(membership=pb.Membership(branch=branch, version=version, members=members)), ()


def order_message(sent: Dispatched, schema: Schema, download: str = "") -> Message:
    """``download``: how models are encoded for this client."""
    order = sent.order
    if isinstance(order, Report):
        return pb.Head(report=pb.Report(number=sent.number, task=sent.task)), ()
    if isinstance(order, Send):
        refresh = pb.Model(number=sent.number, version=order.version, task=sent.task, rebase=order.rebase)
        return pb.Head(model=refresh), _body([("", order.weights)], schema, download)
    return pb.Head(task=_task(sent, order)), _body(_vectors(order), schema, download)


def _task(sent: Dispatched, order: Train) -> pb.Task:
    work, objective, offered = order.work, order.objective, order.candidates
    return pb.Task(
        number=sent.number,
        version=order.version,
        count=sent.count,
        work=_work(work, rate_at(work.lr, sent.count)),
        objective=None
        if objective.plain
        else pb.Objective(proximal=objective.proximal, cosine=objective.cosine, l2=objective.l2),
        candidate_versions=() if offered is None else offered.versions,
        candidate_use="" if offered is None else offered.use,
        questions=order.questions,
        trainable=order.trainable,
        personal=None if order.personal is None else personal_message(order.personal),
        answered=sent.answered,
    )


@lru_cache(maxsize=64)
def _work(work: Work, rate: float) -> pb.Work:
    return pb.Work(
        steps=work.steps,
        epochs=work.epochs,
        batch_size=work.batch_size,
        optimizer=work.optimizer,
        lr=rate,
        momentum=work.momentum,
        weight_decay=work.weight_decay,
        stream=work.stream,
    )


def _vectors(order: Train) -> list[Named]:
    offered = () if order.candidates is None else order.candidates.models
    optional = (("anchor/", order.objective.anchor), ("linear/", order.objective.linear), ("mask/", order.mask))
    return [
        ("", order.weights),
        *((prefix, vector) for prefix, vector in optional if vector is not None),
        *((f"candidate/{i}/", candidate) for i, candidate in enumerate(offered)),
    ]


def _body(vectors: Sequence[Named], schema: Schema, download: str) -> list[Buffer]:
    entries: tuple[Entry, ...] = ()
    data = []
    for prefix, vector in vectors:
        if download and vector.dtype == torch.float32:
            vector = _half(vector)
        entries += entries_of(schema, prefix, NAMES[vector.dtype])
        data.append(vector.numpy())
    return make_body(entries, data)


_halves = WeakTensorKeyDictionary()
"""One copy of a model for all clients that it is on its way to, with torch's count of changes in the model (a method
should not change a vector in place, but clients should see it when it does)."""


def _half(vector: Tensor) -> Tensor:
    changes, found = _halves.get(vector, (None, vector))  # type: ignore[no-untyped-call]
    if changes != vector._version:
        found = half(vector)
        if found is not vector:  # it would keep itself for ever
            _halves[vector] = vector._version, found
    return found
