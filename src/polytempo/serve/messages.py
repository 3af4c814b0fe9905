"""The server's messages, made of what the service orders."""

from collections.abc import Sequence
from functools import lru_cache

from torch import Tensor

from polytempo.core.orders import Report, Send, Train, Work
from polytempo.core.schedules import rate_at
from polytempo.core.vectors import Schema
from polytempo.serve import wire_pb2 as pb
from polytempo.serve.service import Dispatched
from polytempo.serve.wire import Buffer, Entry, entries_of, make_body

Message = tuple[pb.Head, Sequence[Buffer]]


def welcome(client: int, schema: Schema, seed: int, task: int) -> Message:
    said = pb.Welcome(
        client=client,
        names=schema.names,
        shapes=[pb.Shape(sizes=shape) for shape in schema.shapes],
        parameters=schema.parameter_count,
        seed=seed,
        task=task,
    )
    return pb.Head(welcome=said), ()


def accepted() -> Message:
    return pb.Head(accepted=pb.Accepted()), ()


def refusal(reason: str, again: bool = False) -> Message:
    return pb.Head(refusal=pb.Refusal(reason=reason, again=again)), ()


def model(weights: Tensor, version: int, schema: Schema) -> Message:
    """A model to use, not to train from."""
    return pb.Head(model=pb.Model(version=version)), make_body(entries_of(schema), [weights])


def place(branch: int, version: int, members: int) -> Message:
    """Where a client belongs."""
    return pb.Head(place=pb.Place(branch=branch, version=version, members=members)), ()


def order_message(sent: Dispatched, schema: Schema) -> Message:
    order = sent.order
    if isinstance(order, Report):
        return pb.Head(report=pb.Report(number=sent.number, task=sent.task)), ()
    if isinstance(order, Send):
        said = pb.Model(number=sent.number, version=order.version, task=sent.task, rebase=order.rebase)
        return pb.Head(model=said), make_body(entries_of(schema), [order.weights])
    return pb.Head(task=_task(sent.number, order, sent.count)), _vectors(order, schema)


def _task(number: int, order: Train, count: int) -> pb.Task:
    work, objective, offered = order.work, order.objective, order.candidates
    return pb.Task(
        number=number,
        version=order.version,
        count=count,
        work=_work(work, rate_at(work.lr, count)),
        objective=None
        if objective.plain
        else pb.Objective(proximal=objective.proximal, cosine=objective.cosine, l2=objective.l2),
        candidate_versions=() if offered is None else offered.versions,
        candidate_use="" if offered is None else offered.use,
        questions=order.questions,
        trainable=order.trainable,
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
    )


def _vectors(order: Train, schema: Schema) -> list[Buffer]:
    entries: tuple[Entry, ...] = entries_of(schema)
    vectors = [order.weights]
    for prefix, vector in (("anchor/", order.objective.anchor), ("linear/", order.objective.linear)):
        if vector is not None:
            entries += entries_of(schema, prefix)
            vectors.append(vector)
    for i, candidate in enumerate(() if order.candidates is None else order.candidates.models):
        entries += entries_of(schema, f"candidate/{i}/")
        vectors.append(candidate)
    if order.mask is not None:
        entries += entries_of(schema, "mask/", "BOOL")
        vectors.append(order.mask)
    return make_body(entries, vectors)
