"""What a client that joins with privacy does otherwise: nothing of its data leaves it but privatised updates, and those
are counted."""

import logging
from dataclasses import asdict

from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.model.vectors import tensor_of
from polytempo.serve.client.own_data import JoinSettings
from polytempo_client.asking.policies import Asking, check_private
from polytempo_client.logs import log
from polytempo_client.privacy import privatised
from polytempo_client.protocol.tasks import Task
from polytempo_client.updates.ledger import Ledger


def open_ledger(settings: JoinSettings, asking: Asking | None) -> Ledger | None:
    """What counts the updates of a client with privacy; None for one without."""
    privacy = settings.privacy
    if privacy is None:
        return None
    check_private(asking)
    ledger = Ledger(privacy, settings.ledger, settings.epsilon, new=settings.new_ledger)
    if settings.ledger is None:
        reason = "Epsilon leaves out the updates of earlier and later processes. Give --ledger FILE to count them all."
        log("no ledger", level=logging.WARNING, reason=reason)
    log("private", **asdict(privacy), updates=ledger.updates, epsilon=ledger.epsilon, updates_left=ledger.left)
    ledger.check()
    return ledger


def check_asks_nothing(task: Task) -> None:
    """A method that needs to know more than the update cannot have it."""
    asked = [*task.ordered.questions, *(["losses"] if task.ordered.candidate_use else [])]
    if asked:
        raise UserError(
            f"The server's method asks about this client's data: {', '.join(map(repr, asked))}. The answer would leave "
            "without noise. With --noise a client takes part only in methods that ask nothing, such as fedasync, "
            "fedbuff or fedavg."
        )


def released(task: Task, update: Update, trained: Tensor | None, ledger: Ledger) -> Tensor:
    """The update that may leave, counted before it does."""
    ledger.count()
    log("released", task=task.number, updates=ledger.updates, epsilon=round(ledger.epsilon, 4))
    mask = None if trained is None else trained.numpy()
    return tensor_of(privatised(update.start.numpy(), update.weights.numpy(), ledger.privacy, trained=mask))
