"""How clusters are refined by what their clients say (EchoPFL, section 4.3): who is expanded out of a cluster, which
two are merged, and into what."""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polytempo.strategies.parts.soft_labels import divergence, fit_in, members_soft_label

FEWEST = 5
"""Clients with a feedback that a cluster must have to be expanded."""
WORST = 1e9
"""No honest feedback is higher: a label of which a client has one sample in a billion."""


def feedback_in(answers: Mapping[str, Any]) -> float | None:
    """The feedback that a client answers; None for anything else, since clients may send what they like."""
    feedback = fit_in(answers).get("feedback")
    return float(feedback) if isinstance(feedback, int | float) and 0 <= feedback <= WORST else None


def worst_fifth(feedback: Mapping[int, float]) -> list[int]:
    """The clients with the highest feedbacks, a fifth of all; nobody if there are fewer than five."""
    ranked = sorted(feedback, key=lambda client: (feedback[client], client))
    return ranked[-max(round(len(ranked) / FEWEST), 1) :] if len(ranked) >= FEWEST else []


class Pair(NamedTuple):
    """Two clusters that are to become one."""

    main: int
    """The one with more members, or the older one."""
    other: int
    divergence: float


def most_alike(members: Mapping[int, Collection[int]], soft_labels: Mapping[int, np.ndarray]) -> Pair | None:
    """The two clusters whose members' mean soft labels diverge least; None where nothing is known of all but one."""
    labels = {cluster: members_soft_label(soft_labels, there) for cluster, there in members.items()}
    pairs = [(divergence(labels[a], labels[b]), a, b) for a, b in combinations(sorted(labels), 2)]
    apart, a, b = min(pairs, default=(float("inf"), 0, 0))
    if apart == float("inf"):
        return None
    return Pair(b, a, apart) if len(members[b]) > len(members[a]) else Pair(a, b, apart)


def merged(merging: Literal["direction", "average"], main: Tensor, other: Tensor, latest: Tensor | None) -> Tensor:
    """The model of two clusters that become one; ``latest`` is the last update of the main one, if there was any."""
    if merging == "average":
        return torch.lerp(main, other, 0.5)
    return along_direction(main, other, main if latest is None else latest)


def along_direction(main: Tensor, other: Tensor, latest: Tensor) -> Tensor:
    """Algorithm 1: ``dir = v_aux - v_main``, ``post = u_main - v_main`` of the latest update, ``x = dir * post``,
    ``alpha = max(x, 0) / max(x)``, ``v = alpha v_aux + (1 - alpha) v_main``, coordinate by coordinate: the other model
    counts where training leads towards it. Where it nowhere does, the main model stays."""
    agreement = (other - main).double() * (latest - main)  # the product of two large floats is too large for one
    most = float(agreement.max())
    return torch.lerp(main, other, (agreement.clamp(min=0) / most).float()) if most > 0 else main


def mean_feedbacks(feedback: Mapping[int, float], worst: Sequence[int]) -> dict[str, float]:
    """Why a cluster is expanded: the mean feedback of the worst served clients, and of the others."""
    theirs = [feedback[client] for client in worst]
    others = [given for client, given in feedback.items() if client not in worst]
    return {"feedback": float(np.mean(theirs)), "of_the_others": float(np.mean(others)) if others else 0.0}
