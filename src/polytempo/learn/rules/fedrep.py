"""The rule ``fedrep``, the client's half of FedRep: exploiting shared representations for personalized federated
learning (Collins et al., ICML 2021), Algorithm 1."""

from dataclasses import replace

from torch import Tensor

from polytempo.core.orders import Objective
from polytempo.learn.job import Job, Listen, Refresh
from polytempo.learn.rules.rule import Rule


class FedRepRule(Rule):
    """The client first trains its private layers alone, the head h, for a share of its local steps: ``h <- h - eta
    grad_h f(phi, h)``. Then it trains the shared layers alone, the body phi, for the others: ``phi <- phi - eta
    grad_phi f(phi, h)``. Each part has an optimiser of its own."""

    def anchored(self, objective: Objective, served: Tensor) -> Objective:
        """The second part does not start from the served model: the anchor has to be named."""
        return objective if objective.plain or objective.anchor is not None else replace(objective, anchor=served)

    def train(self, job: Job) -> Tensor:
        private, count = self._learner.layers.private, head_steps(self._given["head_share"], len(job.batches))
        if private is None:
            return super().train(job)
        told = _Told(job.listen)
        head = replace(
            job,
            batches=job.batches.first(count),
            mask=_both(private, job.mask),
            refreshes=tuple(refresh for refresh in job.refreshes if refresh.at_step < count),
            listen=None if job.listen is None else told.listen,
        )
        after_head = super().train(head)
        if told.to_stop:
            return after_head
        body = replace(
            job,
            start=after_head,
            batches=job.batches.after(count),
            mask=_both(~private, job.mask),
            refreshes=tuple(replace(it, at_step=it.at_step - count) for it in job.refreshes if it.at_step >= count),
            seed=(job.seed + 1) % 2**31,
            listen=None if job.listen is None else lambda done: told.listen(count + done),
        )
        return super().train(body)


def head_steps(share: float, steps: int) -> int:
    """How many of a task's steps the head is trained: where there are two or more, at least one, and not all."""
    return min(max(round(share * steps), 1), max(steps - 1, 0))


class _Told:
    """What a client is told during the first part: was it to stop?"""

    def __init__(self, listen: Listen | None) -> None:
        self._listen = listen
        self.to_stop = False

    def listen(self, done: int) -> list[Refresh] | None:
        assert self._listen is not None
        told = self._listen(done)
        self.to_stop = told is None
        return None if told is None else list(told)


def _both(a: Tensor, b: Tensor | None) -> Tensor:
    return a if b is None else a & b
