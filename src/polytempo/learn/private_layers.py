"""Private layers: layers of a model that stay at the client (``personal_layers``). They do not travel. The server, its
strategy and its journal know the shared layers only; a client puts its own private layers beside them before it does
anything with a model, and takes them away from what it hands in."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.model.vectors import tensor_of, trained_entries
from polytempo.core.orders import Send
from polytempo_client.model.schema import Schema
from polytempo_client.personal.rule import ClientMemory

if TYPE_CHECKING:  # a learner has private layers
    from polytempo.learn.learner import Assignment

HEAD = "head"
"""The layer of this name or, where there is none, the one with the last parameter."""
BODY = "body"
"""The layer of this name or, where there is none, all but the head."""


class PrivateLayers:
    """How a model is divided: the layers with these ``names`` are private, all others shared. ``initial`` are the
    weights that the model begins with: a client that has never trained has their private layers."""

    def __init__(self, model: Schema, names: Sequence[str] = (), initial: Tensor | None = None) -> None:
        self.names = tuple(names)
        self.model = model
        """The schema of the whole model."""
        private = private_tensors(model, names)
        self.shared = _without(model, private)
        """The schema of the layers that travel."""
        self.private: Tensor | None = None
        """The entries of the whole model that are private, as a mask; None if none are."""
        if private:
            assert initial is not None
            self.private = torch.from_numpy(model.layers(private))
            self._initial = initial[self.private]

    def whole(self, shared: Tensor, memory: ClientMemory | None) -> Tensor:
        """The model that a client with this memory makes of shared layers."""
        if self.private is None:
            return shared
        own = self._initial if memory is None else tensor_of(memory.private)
        if own.shape != self._initial.shape:
            raise UserError(
                f"The client remembers {own.numel()} numbers of private layers, and the model has "
                f"{self._initial.numel()}. Use the model and the personal_layers that it has trained, or begin without "
                "what it remembers."
            )
        return self._joined(shared, own)

    def shared_of(self, whole: Tensor) -> Tensor:
        """The layers of a whole model that travel."""
        return whole if self.private is None else whole[~self.private]

    def at_client(self, a: "Assignment") -> "Assignment":
        """The assignment with the client's private layers in every model of it. They are always trained: what an order
        trains is said of the shared ones."""
        if self.private is None:
            return a
        order, objective, offered = a.order, a.order.objective, a.order.candidates
        trained = trained_entries(self.shared, order.mask, order.trainable)

        def whole(shared: Tensor) -> Tensor:
            return self.whole(shared, a.memory)

        def whole_send(send: Send) -> Send:
            return replace(send, weights=whole(send.weights))

        changed = replace(
            objective,
            anchor=None if objective.anchor is None else whole(objective.anchor),
            linear=None if objective.linear is None else self._joined(objective.linear, 0),
        )
        return replace(
            a,
            order=replace(
                order,
                weights=whole(order.weights),
                objective=changed,
                candidates=None if offered is None else replace(offered, models=tuple(map(whole, offered.models))),
                mask=None if trained is None else self._joined(trained, True),
                trainable=(),
            ),
            sends=tuple((step, whole_send(send)) for step, send in a.sends),
            listen=None if a.listen is None else _each(whole_send, a.listen),
        )

    def shared_update(self, update: Update) -> Update:
        """What leaves the client of what came of a whole model."""
        if self.private is None:
            return update
        return replace(update, start=self.shared_of(update.start), weights=self.shared_of(update.weights))

    def kept(self, memory: ClientMemory | None, trained: Tensor) -> ClientMemory | None:
        """What the client remembers, with the private layers that it has trained."""
        if self.private is None:
            return memory
        return replace(memory or ClientMemory(), private=trained[self.private].numpy())

    def _joined(self, shared: Tensor, private: Tensor | float) -> Tensor:
        assert self.private is not None
        whole = torch.empty(self.model.size, dtype=shared.dtype)
        whole[~self.private] = shared
        whole[self.private] = private
        return whole


def private_tensors(model: Schema, names: Sequence[str]) -> list[str]:
    """The names of the tensors in these layers, in the model's order."""
    chosen = {tensor for name in names for tensor in _tensors_of(model, name)}
    trained = [name for name, span in model.spans.items() if span.stop <= model.parameter_count]
    if chosen.issuperset(trained):
        raise UserError(
            f"personal_layers is {', '.join(names)}, which are all layers of the model. Nothing would travel: name "
            "fewer, or take the strategy standalone."
        )
    return [name for name in model.names if name in chosen]


def _tensors_of(model: Schema, layer: str) -> list[str]:
    found = _inside(model, layer)
    if found:
        return found
    if layer not in (HEAD, BODY):
        layers = dict.fromkeys(name.rpartition(".")[0] or name for name in model.names)
        raise UserError(
            f"personal_layers names {layer!r}, which is no layer of the model that trains. Expected {HEAD}, {BODY}, "
            f"or some of its layers: {', '.join(layers)}."
        )
    head = _inside(model, HEAD) or _inside(model, model.last_layer)
    return head if layer == HEAD else [name for name in model.names if name not in head]


def _inside(model: Schema, layer: str) -> list[str]:
    return [name for name in model.names if name == layer or name.startswith(layer + ".")]


def _without(model: Schema, private: Sequence[str]) -> Schema:
    if not private:
        return model
    shared = [name for name in model.names if name not in private]
    shapes = dict(zip(model.names, model.shapes, strict=True))
    spans = [model.spans[name] for name in shared]
    parameters = sum(span.stop - span.start for span in spans if span.stop <= model.parameter_count)
    return replace(
        model, names=tuple(shared), shapes=tuple(shapes[name] for name in shared), parameter_count=parameters
    )


def _each(
    change: Callable[[Send], Send], listen: Callable[[int], Sequence[Send] | None]
) -> Callable[[int], Sequence[Send] | None]:
    """What is listened to, each message changed."""

    def changed(done: int) -> Sequence[Send] | None:
        sends = listen(done)
        return None if sends is None else [change(send) for send in sends]

    return changed
