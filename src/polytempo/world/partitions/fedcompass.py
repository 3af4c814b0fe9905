"""The partitions of FedCompass (Li et al., ICLR 2024, App. D.1): few classes per client, and dual Dirichlet."""

import numpy as np

from polytempo.core.errors import UserError
from polytempo.world.partitions.deals import Deal, PartitionRequest, cut, deal, feed_the_starving

MEAN, DEVIATION = 10.0, 3.0
ATTEMPTS = 1000


def parse_class(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    fewest, most = map(int, text.split("-"))
    if not 1 <= fewest <= most:
        raise ValueError
    return fewest, most


def class_partition(request: PartitionRequest, bounds: tuple[int, int] | None) -> Deal:
    """Algorithm 4. Client i draws ``n_i ~ U{n_min, n_max}`` classes, again until every class has a client; the rows of
    a class go to its clients in shares ~ N(10, 3^2). The paper takes 5-6 classes for 5 clients, 3-5 for 10 and 20."""
    rng, classes = request.rng, request.dataset.classes
    fewest, most = bounds or ((5, 6) if request.clients < 10 else (3, 5))
    if bounds is None:
        fewest, most = min(fewest, classes), min(most, classes)
    if most > classes:
        raise UserError(f"class:{fewest}-{most} is more than the {classes} labels of {request.dataset.name}.")
    sizes = np.bincount(request.dataset.y, minlength=classes)
    for _ in range(ATTEMPTS):
        wanted = rng.integers(fewest, most + 1, request.clients)
        ranks = rng.random((request.clients, classes)).argsort(axis=1).argsort(axis=1)
        holds = ranks < wanted[:, None]
        if not holds.any(axis=0).all():
            continue
        # A normal share below 0 (one in 2,300) counts as next to nothing.
        shares = np.maximum(rng.normal(MEAN, DEVIATION, holds.shape), 1e-6) * holds
        counts = np.stack([cut(size, shares[:, label]) for label, size in enumerate(sizes)], axis=1)
        if counts.sum(axis=1).min() >= request.min_samples:
            return Deal(deal(request.dataset.y, counts, rng))
    raise UserError(
        f"None of {ATTEMPTS} class partitions of {request.dataset.name} gives each of its {classes} labels a client "
        f"and each of {request.clients} clients {request.min_samples} samples. Take another number of clients or "
        f"more classes per client than class:{fewest}-{most}."
    )


def parse_dual(text: str) -> tuple[float, float | None]:
    parts = [float(part) for part in text.split(",")] if text else [0.5]
    if len(parts) > 2 or not all(0 < part < float("inf") for part in parts):
        raise ValueError
    return parts[0], parts[1] if len(parts) == 2 else None


def dual_dirichlet(request: PartitionRequest, alphas: tuple[float, float | None]) -> Deal:
    """Algorithm 5. Client weights ``u ~ Dir(a1 / m)`` and per client class weights ``v_i ~ Dir(a2 p)``, p the classes'
    shares of the data; client i gets ``u_i v_ic / <u, v_c>`` of class c. a1 defaults to m, a2 to 0.5. Clients left with
    too few get random rows of clients that have more than the minimum."""
    rng, clients = request.rng, request.clients
    label_alpha, size_alpha = alphas[0], alphas[1] or float(clients)
    sizes = np.bincount(request.dataset.y, minlength=request.dataset.classes)
    present = np.flatnonzero(sizes)
    client_weights = rng.dirichlet(np.full(clients, size_alpha / clients))
    class_weights = rng.dirichlet(label_alpha * sizes[present] / sizes.sum(), clients)
    # A tiny floor keeps a class that no client wants from being divided by 0: it then goes by the clients' weights.
    weights = client_weights[:, None] * np.maximum(class_weights, 1e-300)
    counts = np.zeros((clients, request.dataset.classes), np.int64)
    for label, column in zip(present, weights.T, strict=True):
        counts[:, label] = cut(int(sizes[label]), column / column.max())
    owner = deal(request.dataset.y, counts, rng)
    feed_the_starving(owner, np.arange(clients), request.min_samples, rng)
    return Deal(owner)
