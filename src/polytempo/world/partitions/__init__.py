"""Partitions: who gets which rows of a data set.

The train and the test part of the data set are pooled and dealt out to the clients; each client then splits its own
rows at random into train and test. Every row is given out at most once, and never to both train and test.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from polytempo.core.errors import UserError
from polytempo.core.registry import Registry
from polytempo.world.dataset import Dataset
from polytempo.world.drift import Drift, plan_drifts
from polytempo.world.federation import Federation
from polytempo.world.partitions import composition, deals, fedcompass, given, rotations
from polytempo.world.partitions.aside import set_aside
from polytempo.world.partitions.deals import Deal, PartitionRequest, Proxies, split_locally
from polytempo.world.partitions.given import natural_clients


class Partition(NamedTuple):
    """One way to give rows to clients."""

    form: str
    """How it is written on the command line."""
    summary: str
    parse: Callable[[str], Any]
    """The parameter from what follows the colon; ValueError if it is malformed."""
    make: Callable[[PartitionRequest, Any], Federation]
    own_clients: Callable[[Dataset, Any, int], int] | None = None
    """(data set, parameter, min_samples) -> number of clients, where the partition and not the user says it."""
    any_labels: bool = False
    """Does it work where labels are no classes?"""


def make_federation(
    dataset: Dataset,
    partition: str | Partition,
    clients: int,
    seed: int,
    test_share: float = 0.2,
    min_samples: int = 2,
    drifts: Sequence[Drift] = (),
    proxies: Proxies = 0,
) -> Federation:
    """The clients with their data, for a partition in words such as ``dirichlet:0.1`` (docs/guides/partitions.md), or
    for one of the user's own. With ``proxies``, a number or ``"default"``, so many samples of each cluster are the
    server's and no client's."""
    if clients < 1:
        raise UserError(f"There must be at least one client, not {clients}.")
    if not 0 < test_share < 1:
        raise UserError(f"The share of local test samples is {test_share:g}; expected a number between 0 and 1.")
    if min_samples < 2:
        raise UserError(f"min_samples is {min_samples}; expected at least 2, one to train and one to test.")
    if proxies != "default" and proxies < 0:
        raise UserError(f"There cannot be {proxies} proxy samples per cluster. Expected at least 1, or 0 for none.")
    kind, parameter = _parsed(partition)
    if not dataset.has_classes:
        _check_without_classes(kind, drifts, proxies)
    federation = kind.make(PartitionRequest(dataset, clients, seed, test_share, min_samples, proxies), parameter)
    if proxies and not federation.clusters:  # a partition with pools has set its own aside
        federation = set_aside(federation, proxies, min_samples, seed)
    if not drifts:
        return federation
    ringed = federation.pools is None
    return replace(federation, drifts=plan_drifts(drifts, clients, dataset.classes, seed, federation.groups, ringed))


def _check_without_classes(kind: Partition, drifts: Sequence[Drift], proxies: Proxies) -> None:
    """Where labels are numbers, nothing can be dealt out, set aside or swapped by class."""
    others = ", ".join(name for name, other in partitions.items() if other.any_labels)
    if not kind.any_labels:
        raise UserError(f"Partition {kind.form} goes by classes, and labels here are numbers. Take {others}, or rows.")
    if proxies or any(drift.kind == "swap" for drift in drifts):
        what = "A strategy with proxy sets needs" if proxies else "A drift that swaps labels needs"
        raise UserError(f"{what} one class per sample, and labels here are something else. Take another one.")


def clients_in(partition: str | Partition, dataset: Dataset, min_samples: int = 2) -> int | None:
    """How many clients a partition has by itself (``natural``, ``composition``, ``file``), or None: the user says."""
    kind, parameter = _parsed(partition)
    return None if kind.own_clients is None else kind.own_clients(dataset, parameter, min_samples)


def clients_or_refusal(partition: str, dataset: Dataset, given: int | None, min_samples: int = 2) -> int:
    """The number of clients that is given, or that the partition has by itself."""
    clients = given or clients_in(partition, dataset, min_samples)
    if clients is None:
        raise UserError(f"Partition {partition!r} needs the number of clients that the data are dealt to: --clients N.")
    return clients


def _parsed(partition: str | Partition) -> tuple[Partition, Any]:
    if isinstance(partition, Partition):
        return partition, None
    name, _, text = partition.partition(":")
    kind = partitions[name]
    try:
        return kind, kind.parse(text)
    except ValueError:
        raise UserError(f"Partition {partition!r} is not understood. Expected {kind.form}: {kind.summary}") from None


def _dealt(deal: Callable[[PartitionRequest, Any], Deal]) -> Callable[[PartitionRequest, Any], Federation]:
    """A federation from a function that says who owns each row."""

    def make(request: PartitionRequest, parameter: Any) -> Federation:
        needed = request.clients * request.min_samples
        if len(request.dataset) < needed:
            raise UserError(
                f"{request.clients} clients with at least {request.min_samples} samples each need {needed} samples, "
                f"and {request.dataset.name} has {len(request.dataset)}. Take fewer clients or more data."
            )
        return split_locally(request, deal(request, parameter))

    return make


def _nothing(text: str) -> None:
    if text:
        raise ValueError


partitions: Registry[Partition] = Registry("partition")
partitions.add(
    "iid",
    Partition("iid", "every client gets a random share of equal size.", _nothing, _dealt(deals.iid), any_labels=True),
)
partitions.add(
    "dirichlet",
    Partition(
        "dirichlet:0.1",
        "each label is split over the clients by Dirichlet(a); the smaller a, the more unlike the clients.",
        deals.parse_dirichlet,
        _dealt(deals.dirichlet),
    ),
)
partitions.add(
    "labels",
    Partition("labels:2", "every client holds exactly c labels.", deals.parse_labels, _dealt(deals.labels)),
)
partitions.add(
    "groups",
    Partition(
        "groups, groups:4 or groups:0.2,0.2,0.3,0.3",
        "groups of clients with labels of their own, Dirichlet(1) inside a group (CASA).",
        deals.parse_groups,
        _dealt(deals.groups),
    ),
)
partitions.add(
    "class",
    Partition(
        "class or class:3-5",
        "every client holds between so many labels, in normal shares (FedCompass).",
        fedcompass.parse_class,
        _dealt(fedcompass.class_partition),
    ),
)
partitions.add(
    "dual-dirichlet",
    Partition(
        "dual-dirichlet, dual-dirichlet:A2 or dual-dirichlet:A2,A1",
        "A1 spreads the clients' sizes (default: their number), A2 their labels (default 0.5) (FedCompass).",
        fedcompass.parse_dual,
        _dealt(fedcompass.dual_dirichlet),
    ),
)
partitions.add(
    "rotations",
    Partition(
        "rotations:4",
        "1 to 36 clusters of rotated images; each client draws its own mixture from their pools (CDFL).",
        rotations.parse,
        rotations.make,
    ),
)
partitions.add(
    "composition",
    Partition(
        "composition:0-3/0-1/0*1,1*3",
        "client by client the labels and, behind *, their weights; all get equally many samples.",
        composition.parse,
        _dealt(composition.composition),
        lambda _, compositions, __: len(compositions),
    ),
)
partitions.add(
    "natural",
    Partition(
        "natural",
        "one client per user of the data set, where it names users.",
        _nothing,
        _dealt(given.natural),
        lambda dataset, _, min_samples: natural_clients(dataset, min_samples),
        any_labels=True,
    ),
)
partitions.add(
    "file",
    Partition(
        "file:X.npz",
        "explicit rows: train_idx, train_off, test_idx, test_off.",
        given.parse_file,
        given.from_file,
        lambda _, path, __: given.file_clients(path),
        any_labels=True,
    ),
)

__all__ = ["Partition", "clients_in", "clients_or_refusal", "make_federation", "natural_clients", "partitions"]
