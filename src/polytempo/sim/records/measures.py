"""The figures of one evaluation. Clients that share a model are scored in one pass."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polytempo.learn.forward import CHUNK
from polytempo.learn.scoring import mean_per_part
from polytempo.sim.executors.executor import Executor
from polytempo.sim.executors.work import Scoring
from polytempo.strategies import Strategy
from polytempo.world.dataset import Dataset
from polytempo.world.devices import Devices
from polytempo.world.federation import ClientData, Cluster


class ClientScores(NamedTuple):
    """The scores of the clients that are evaluated."""

    served: np.ndarray
    trained: np.ndarray
    used: np.ndarray
    sample: np.ndarray | None
    """Their numbers; None where these are all clients."""


def evaluation_row(
    now: float,
    updates: int,
    scores: ClientScores,
    idle: np.ndarray,
    strategy: Strategy,
    groups: Sequence[int] | None,
    devices: Devices,
) -> dict[str, Any]:
    """Accuracy over clients of the models that they are served, own and use; of those in use also spread, slowest and
    fastest fifth, and device types where there are some (``devices`` are those of the evaluated clients). Idle share
    and clusters are those of all clients."""
    from sklearn.metrics import adjusted_rand_score  # here, because it takes a second to import

    served, trained, used, sample = scores
    clusters = np.array([strategy.cluster_of(client) for client in range(len(idle))])
    known = trained[~np.isnan(trained)]
    shown = sample is None or bool(clusters.any())  # a million clients on one model: nobody asks in which cluster
    return {
        "time": now,
        "updates": updates,
        "accuracy": float(served.mean()),
        "accuracy_trained": float(known.mean()) if len(known) else None,
        "accuracy_used": float(used.mean()),
        "accuracy_std": float(used.std()),
        "accuracy_slowest_fifth": float(used[devices.slowest_fifth()].mean()),
        "accuracy_fastest_fifth": float(used[devices.fastest_fifth()].mean()),
        "idle_share": float(idle.mean()),
        "clusters": len(np.unique(clusters)),
        "purity": None if groups is None else purity(clusters, np.array(groups)),
        "ari": None if groups is None else float(adjusted_rand_score(groups, clusters)),
        "accuracy_per_cluster": accuracy_per_cluster(clusters if sample is None else clusters[sample], served),
        **({"accuracy_per_device": accuracy_per_device(used, devices)} if devices.kinds else {}),
        **({} if sample is None else {"sample": sample}),
        "per_client": served,
        "per_client_trained": trained,
        "per_client_used": used,
        "per_client_idle": idle if sample is None else idle[sample],
        "per_client_cluster": clusters.astype(np.float64) if shown else None,
        "per_client_group": np.array(groups, np.float64) if shown and groups is not None else None,  # drifts change it
    }


def purity(clusters: np.ndarray, groups: np.ndarray) -> float:
    """The share of clients that are in the largest true group of their cluster: ``sum_k max_g |C_k and g| / n``."""
    _, cluster = np.unique(clusters, return_inverse=True)
    _, group = np.unique(groups, return_inverse=True)
    counts = np.zeros((cluster.max() + 1, group.max() + 1))
    np.add.at(counts, (cluster, group), 1)
    return float(counts.max(axis=1).sum() / len(clusters))


def accuracy_per_cluster(clusters: np.ndarray, served: np.ndarray) -> dict[str, float] | None:
    """Cluster -> mean accuracy of its clients, None where every client is a cluster of its own. The keys are text, as
    they are in a row that was read back from its file."""
    numbers, cluster, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    if len(numbers) == len(clusters):
        return None
    means = np.bincount(cluster, served) / sizes
    return {str(number): mean for number, mean in zip(numbers.tolist(), means.tolist(), strict=True)}


def accuracy_per_device(served: np.ndarray, devices: Devices) -> dict[str, float] | None:
    """Device type -> mean accuracy of its clients, the fastest type first; None where clients have no types."""
    means = {name: float(served[clients].mean()) for name, clients in devices.clients_by_kind().items()}
    return means or None


def device_figures(served: np.ndarray, devices: Devices) -> dict[str, Any]:
    """The accuracy of each device type, and of the slowest and the fastest one (without types: client)."""
    return {
        "accuracy_slowest_device": float(served[devices.slowest_device()].mean()),
        "accuracy_fastest_device": float(served[devices.fastest_device()].mean()),
        "accuracy_per_device": accuracy_per_device(served, devices),
    }


def cluster_figures(evaluation: dict[str, Any]) -> dict[str, Any]:
    """How well the models of clusters do on their own clusters' samples; None for a method without such models."""
    each = evaluation.get("cluster_accuracy")
    return {
        "cluster_accuracy": None if each is None else float(np.mean(each)),
        "cluster_accuracies": None if each is None else [float(accuracy) for accuracy in each],
    }


def score_cluster_models(
    models: Sequence[Tensor], clusters: Sequence[Cluster], dataset: Dataset, executor: Executor
) -> np.ndarray | None:
    """The score of each cluster's model on that cluster's test samples; None if these are not given for each."""
    if not models or len(models) != len(clusters):
        return None
    data = [ClientData(cluster.proxy, cluster.test, dataset.y) for cluster in clusters]
    return score_clients(range(len(models)), models.__getitem__, data.__getitem__, executor)


def score_clients(
    clients: Iterable[int],
    model_for: Callable[[int], Tensor],
    data_of: Callable[[int], ClientData],
    executor: Executor,
) -> np.ndarray:
    """The local test score of each client with the model it is served."""
    clients = list(clients)
    scores = np.empty(len(clients))
    for indices, values, sizes in _row_values(clients, model_for, data_of, executor):
        scores[indices] = mean_per_part(values, sizes)
    return scores


def score_rows(
    clients: Iterable[int],
    model_for: Callable[[int], Tensor],
    data_of: Callable[[int], ClientData],
    executor: Executor,
) -> list[np.ndarray]:
    """For each client what its model comes to on each of its test rows."""
    clients = list(clients)
    found: list[np.ndarray] = [np.empty(0)] * len(clients)
    for indices, values, sizes in _row_values(clients, model_for, data_of, executor):
        for index, part in zip(indices, np.split(values, np.cumsum(sizes)[:-1]), strict=True):
            found[index] = part
    return found


def _row_values(
    clients: list[int],
    model_for: Callable[[int], Tensor],
    data_of: Callable[[int], ClientData],
    executor: Executor,
) -> Iterable[tuple[list[int], np.ndarray, list[int]]]:
    """Clients that share a model in one pass: their places among the clients, the values of all their test rows one
    behind the other, and how many rows each has."""
    shared: dict[int, tuple[Tensor, list[int]]] = {}
    for index, client in enumerate(clients):
        weights = model_for(client)
        shared.setdefault(id(weights), (weights, []))[1].append(index)
    units = [
        (weights, indices[i:j]) for weights, indices in shared.values() for i, j in _cuts(indices, clients, data_of)
    ]
    computations, sizes = [], []
    for weights, indices in units:
        data = [data_of(clients[index]) for index in indices]
        labels = torch.from_numpy(np.concatenate([d.y[d.test] for d in data]))
        computations.append(Scoring(weights, np.concatenate([d.test for d in data]), labels))
        sizes.append([len(d.test) for d in data])
    for (_, indices), values, rows in zip(units, executor.evaluate(computations), sizes, strict=True):
        yield indices, values, rows


def _cuts(indices: list[int], clients: list[int], data_of: Callable[[int], ClientData]) -> Iterable[tuple[int, int]]:
    """Cut the clients of one model into runs of about one forward pass each, so that workers can share them."""
    begin, rows = 0, 0
    for i, index in enumerate(indices):
        rows += len(data_of(clients[index]).test)
        if rows >= CHUNK:
            yield begin, i + 1
            begin, rows = i + 1, 0
    if begin < len(indices):
        yield begin, len(indices)
