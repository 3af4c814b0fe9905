"""Models and updates that travel in fewer bytes, as between a server and its clients: a client trains from what
arrives, and the server adds the difference that arrives to the model that it sent."""

from dataclasses import replace

from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.flight import Flight
from polytempo.core.model.vectors import half, tensor_of
from polytempo.learn.learner import Assignment
from polytempo_client.model.encodings import Encoding, ErrorFeedback, added


class Compression:
    """How all clients encode updates, and whether their models are rounded to half precision. The state is what each
    client has not sent yet."""

    def __init__(self, upload: Encoding | None = None, halves: bool = False) -> None:
        self.upload, self.halves = upload, halves
        self.residuals: dict[int, Tensor] = {}

    def model_bytes(self, size: int) -> int:
        return (2 if self.halves else 4) * size

    def update_bytes(self, entries: int) -> int:
        """Of an update in which so many entries are trained."""
        return 4 * entries if self.upload is None else self.upload.nbytes(entries)

    def received(self, assignment: Assignment) -> Assignment:
        """The order and the refreshes as the client gets them."""
        if not self.halves:
            return assignment
        order = assignment.order
        objective, offered = order.objective, order.candidates
        return replace(
            assignment,
            order=replace(
                order,
                weights=_rounded(order.weights),
                objective=replace(
                    objective,
                    anchor=None if objective.anchor is None else _rounded(objective.anchor),
                    linear=None if objective.linear is None else _rounded(objective.linear),
                ),
                candidates=None if offered is None else replace(offered, models=tuple(map(_rounded, offered.models))),
            ),
            sends=tuple((step, replace(send, weights=_rounded(send.weights))) for step, send in assignment.sends),
        )

    def deliver(self, update: Update, flight: Flight, trained: Tensor | None) -> Update:
        """What the server makes of what a client sends: counted from the model as it was before it travelled."""
        if self.upload is None:
            return update
        residual, mask = self.residuals.get(update.client), None if trained is None else trained.numpy()
        feedback = ErrorFeedback(self.upload, None if residual is None else residual.numpy())
        arrays, left = feedback.encode(update.delta.numpy(), mask)
        self.residuals[update.client] = tensor_of(left)
        entries = update.weights.numel() if trained is None else int(trained.sum())
        base = flight.base(flight.latest, update.chosen)
        assert base is not None
        arrived = added(base.weights.numpy(), self.upload.decode(arrays, entries), mask)
        return replace(update, start=base.weights, weights=tensor_of(arrived))


def _rounded(vector: Tensor) -> Tensor:
    return half(vector).float()
