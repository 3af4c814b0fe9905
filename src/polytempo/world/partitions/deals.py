"""Dealing rows out: every deal is one array that says who owns each row, so no row can be given out twice."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from polytempo.core.errors import UserError
from polytempo.world.dataset import Dataset
from polytempo.world.federation import Federation
from polytempo.world.tables import apportioned
from polytempo_client.streams import stream

CASA_SHARES = (0.2, 0.2, 0.3, 0.3)
MOST_GROUPS = 1000

Proxies = int | Literal["default"]
"""Rows that each cluster sets aside for the server; 0: none."""


class PartitionRequest(NamedTuple):
    """What every partition is asked for."""

    dataset: Dataset
    clients: int
    seed: int
    test_share: float
    min_samples: int
    proxies: Proxies = 0

    @property
    def rng(self) -> np.random.Generator:
        """The stream of the deal, from its beginning."""
        return stream(self.seed, "partition")


class Deal(NamedTuple):
    """The owner of each row of the data set (-1: nobody), and the true group of each client."""

    owner: np.ndarray
    groups: np.ndarray | None = None


def iid(request: PartitionRequest, _: None) -> Deal:
    """Sizes differ by at most one."""
    return Deal(request.rng.permutation(np.arange(len(request.dataset)) % request.clients))


def parse_dirichlet(text: str) -> float:
    alpha = float(text)
    if not 0 < alpha < float("inf"):
        raise ValueError
    return alpha


def dirichlet(request: PartitionRequest, alpha: float) -> Deal:
    """The rows of each label are cut by shares ~ Dirichlet(alpha, ..., alpha); all rows are given out. Clients left
    with too few get random rows of clients that have more than the minimum."""
    rng = request.rng
    everyone = np.arange(request.clients)
    sizes = np.bincount(request.dataset.y, minlength=request.dataset.classes)
    counts = np.stack([cut(size, rng.dirichlet(np.full(request.clients, alpha))) for size in sizes], axis=1)
    owner = deal(request.dataset.y, counts, rng)
    feed_the_starving(owner, everyone, request.min_samples, rng)
    return Deal(owner)


def parse_labels(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count


def labels(request: PartitionRequest, per_client: int) -> Deal:
    """Every client holds exactly ``per_client`` labels. Each label goes to equally many clients (within one), who share
    its rows evenly."""
    rng, classes = request.rng, request.dataset.classes
    if per_client > classes:
        raise UserError(f"labels:{per_client} is more than the {classes} labels of {request.dataset.name}. Take fewer.")
    holds = np.zeros((request.clients, classes), bool)
    for client, hand in enumerate(_hands(request.clients, per_client, classes, rng)):
        holds[client, hand] = True
    counts = np.zeros(holds.shape, np.int64)
    for label, size in enumerate(np.bincount(request.dataset.y, minlength=classes)):
        holders = rng.permutation(np.flatnonzero(holds[:, label]))
        if size < len(holders):
            raise UserError(
                f"labels:{per_client} gives label {label} to {len(holders)} clients, and {request.dataset.name} has "
                f"{size} samples of it. Take fewer clients or more data."
            )
        if len(holders):
            counts[holders, label] = apportioned(int(size), np.ones(len(holders)))
    return Deal(deal(request.dataset.y, counts, rng))


def parse_groups(text: str) -> tuple[float, ...] | None:
    if not text:
        return None
    if text.isdecimal():
        if not 1 <= int(text) <= MOST_GROUPS:
            raise ValueError
        return (1 / int(text),) * int(text)
    shares = tuple(float(share) for share in text.split(","))
    if not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise ValueError
    return shares


def groups(request: PartitionRequest, given: Sequence[float] | None) -> Deal:
    """CASA, App. A.2.4: clients and labels are divided in the same shares, labels in their order, so that no two groups
    have a label in common; inside a group each label is cut by Dirichlet(1). Who is in which group is drawn."""
    rng, classes = request.rng, request.dataset.classes
    most = min(request.clients, classes)
    shares = given or (CASA_SHARES if most >= len(CASA_SHARES) else (1 / most,) * most)
    clients_of, labels_of = (apportioned(total, np.array(shares)) for total in (request.clients, classes))
    for what, counts in (("clients", clients_of), ("labels", labels_of)):
        if counts.min() == 0:
            raise UserError(
                f"{counts.sum()} {what} in {len(shares)} groups leave a group without {what}. "
                "Take fewer groups (groups:2), more even shares (groups:0.5,0.5), or no groups (iid)."
            )
    group = rng.permutation(np.repeat(np.arange(len(shares)), clients_of))
    label_group = np.repeat(np.arange(len(shares)), labels_of)
    counts = np.zeros((request.clients, classes), np.int64)
    for label, size in enumerate(np.bincount(request.dataset.y, minlength=classes)):
        members = np.flatnonzero(group == label_group[label])
        counts[members, label] = cut(size, rng.dirichlet(np.ones(len(members))))
    owner = deal(request.dataset.y, counts, rng)
    for number in range(len(shares)):
        feed_the_starving(owner, np.flatnonzero(group == number), request.min_samples, rng)
    return Deal(owner, group)


def cut(size: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers that sum to ``size``, in proportion to the shares (rounding the cumulated shares)."""
    ends = np.rint(np.cumsum(shares) / shares.sum() * size).astype(np.int64)
    return np.diff(ends, prepend=0)


def deal(y: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Owners of the rows, such that client i gets ``counts[i, label]`` random rows of each label."""
    owner = np.full(len(y), -1, np.int64)
    for label in range(counts.shape[1]):
        owners = np.repeat(np.arange(len(counts)), counts[:, label])
        owner[rng.permutation(np.flatnonzero(y == label))[: len(owners)]] = owners
    return owner


def feed_the_starving(owner: np.ndarray, members: np.ndarray, minimum: int, rng: np.random.Generator) -> None:
    """Give members with fewer rows than the minimum random rows of members that have more than the minimum."""
    clients = max(int(owner.max()), int(members.max())) + 1
    rows, sizes, rank = _by_owner(owner, clients, rng)
    missing = np.maximum(minimum - sizes[members], 0)
    if not missing.any():
        return
    is_member = np.zeros(clients, bool)
    is_member[members] = True
    spare = rows[(rank >= minimum) & is_member[owner[rows]]]
    if len(spare) < missing.sum():
        raise UserError(
            f"{len(members)} clients share {sizes[members].sum()} samples, too few for the minimum of {minimum} each. "
            "Take fewer clients or more data."
        )
    owner[rng.choice(spare, missing.sum(), replace=False)] = np.repeat(members, missing)


def split_locally(request: PartitionRequest, deal: Deal) -> Federation:
    """Each client keeps a random share of its rows for testing: at least one, and at least one remains to train."""
    rows, sizes, rank = _by_owner(deal.owner, request.clients, stream(request.seed, "local split"))
    poorest = int(sizes.argmin())
    if sizes[poorest] < request.min_samples:
        raise UserError(
            f"Client {poorest} gets {sizes[poorest]} samples, fewer than the minimum of {request.min_samples}. "
            "Take fewer clients, more data or another partition."
        )
    test_sizes = np.clip(np.rint(sizes * request.test_share).astype(np.int64), 1, sizes - 1)
    is_test = rank < np.repeat(test_sizes, sizes)
    return Federation(
        dataset=request.dataset,
        train_idx=rows[~is_test],
        train_off=offsets(sizes - test_sizes),
        test_idx=rows[is_test],
        test_off=offsets(test_sizes),
        groups=deal.groups,
    )


def offsets(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _by_owner(owner: np.ndarray, clients: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows that have an owner, sorted by owner and in random order within; how many each owner has; and the rank
    of each row among those of its owner."""
    rows = rng.permutation(np.flatnonzero(owner >= 0))
    rows = rows[np.argsort(owner[rows], kind="stable")]
    sizes = np.bincount(owner[rows], minlength=clients)
    return rows, sizes, np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _hands(clients: int, size: int, classes: int, rng: np.random.Generator) -> list[list[int]]:
    """Hands of distinct labels from one shuffled deck after the other, so that every label is dealt equally often."""
    hands: list[list[int]] = []
    deck: list[int] = []
    for _ in range(clients):
        if len(deck) < size:
            fresh = rng.permutation(classes).tolist()
            # Labels that are still on the table come last: a hand across two decks holds none of them twice.
            deck += [label for label in fresh if label not in deck] + [label for label in fresh if label in deck]
        hands.append(deck[:size])
        deck = deck[size:]
    return hands
