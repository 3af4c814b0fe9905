"""Rotation clusters with per-client mixtures (CDFL, experimental set-up).

Cluster k is the whole data set rotated by ``k 360/K`` degrees. Each client draws 500 to 2000 samples, 40 to 90 % of
them from its dominant cluster, and draws anew when its mixture drifts: samples repeat across clients and time. The
images are divided into a train and a test pool before they are rotated, so no image is ever in both. Images of proxy
sets, each of one cluster only, lie at the end of the train pools, and no client draws them under any rotation.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from polytempo.core.errors import UserError
from polytempo.world.dataset import Dataset
from polytempo.world.federation import Cluster, Draw, Federation
from polytempo.world.partitions.aside import TEST_ROWS, aside_stream, proxy_rows, stratified
from polytempo.world.partitions.deals import PartitionRequest, offsets
from polytempo.world.tables import apportioned
from polytempo_client.streams import stream

MOST_SAMPLES = 2000
MOST_CLUSTERS = 36
DOMINANT = (0.4, 0.9)


@dataclass(frozen=True)
class RotationPools:
    """The pools of the rotated data set: rows ``k train_images ...`` are cluster k's train pool, and after all train
    pools come the test pools in the same order."""

    seed: int
    clusters: int
    train_images: int
    test_images: int
    fewest: int
    most: int
    test_share: float
    reserved: int = 0
    """Images at the end of every train pool that no client draws."""

    def draw(self, client: int, generation: int) -> Draw:
        """The client's rows and mixture of one generation; distinct rows within the client."""
        return _draw(self, client, generation)


def parse(text: str) -> int:
    clusters = int(text)
    if not 1 <= clusters <= MOST_CLUSTERS:
        raise ValueError
    return clusters


def make(request: PartitionRequest, clusters: int) -> Federation:
    """Clients are spread evenly over the clusters as their dominant one (``groups``)."""
    images = len(request.dataset)
    most = min(MOST_SAMPLES, images // 4)  # a small data set: no client holds more than a quarter of a cluster
    fewest = max(most // 4, request.min_samples)
    test_images = min(max(1, round(images * request.test_share)), images - 1)
    if most < fewest:
        raise UserError(
            f"{request.dataset.name} has {images} images; a client draws at most a quarter of them, {most}, fewer than "
            f"the minimum of {request.min_samples}. Take more data."
        )
    train_images = images - test_images
    rows = _proxy_rows(request, clusters, train_images, most) if request.proxies else 0
    pools = RotationPools(
        request.seed, clusters, train_images, test_images, fewest, most, request.test_share, clusters * rows
    )
    draws = [pools.draw(client, 0) for client in range(request.clients)]
    mixtures = np.stack([draw.mixture for draw in draws])
    return Federation(
        dataset=_rotated(request, clusters, test_images, rows),
        train_idx=np.concatenate([draw.train for draw in draws]),
        train_off=offsets(np.array([len(draw.train) for draw in draws])),
        test_idx=np.concatenate([draw.test for draw in draws]),
        test_off=offsets(np.array([len(draw.test) for draw in draws])),
        groups=mixtures.argmax(axis=1),
        mixtures=mixtures,
        pools=pools,
        clusters=tuple(_cluster(pools, cluster, rows) for cluster in range(clusters)) if rows else (),
    )


def _proxy_rows(request: PartitionRequest, clusters: int, train_images: int, most: int) -> int:
    """Rows of each proxy set: as many images as the largest client trains on must remain."""
    largest = most - _test_size(most, request.test_share)
    return proxy_rows(request.proxies, train_images // clusters, (train_images - largest) // clusters)


def _cluster(pools: RotationPools, cluster: int, rows: int) -> Cluster:
    """Its own part of the reserved images, and the first images of its test pool, which are in random order."""
    proxy = (cluster + 1) * pools.train_images - pools.reserved + cluster * rows + np.arange(rows)
    first_test = pools.clusters * pools.train_images + cluster * pools.test_images
    return Cluster(proxy, first_test + np.arange(min(TEST_ROWS, pools.test_images)))


def _rotated(request: PartitionRequest, clusters: int, test_images: int, rows: int) -> Dataset:
    """Every image under every rotation: the train pools of all clusters, then the test pools."""
    source = request.dataset
    if source.x.ndim != 4 or source.x.shape[2] != source.x.shape[3]:
        raise UserError(
            f"rotations:{clusters} turns square images, and the samples of {source.name} have the shape "
            f"{source.x.shape[1:]}. Take a data set of images such as digits or fashion-mnist."
        )
    order = request.rng.permutation(len(source))
    train, test = order[test_images:], order[:test_images]
    pools = (_proxies_last(train, source, clusters, rows, request.seed) if rows else train, test)
    x = np.empty((clusters * len(source), *source.x.shape[1:]), source.x.dtype)
    begin = 0
    for pool in pools:
        images = source.x[pool]
        for cluster in range(clusters):
            x[begin : begin + len(pool)] = rotated(images, cluster * 360 / clusters)
            begin += len(pool)
    y = np.concatenate([np.tile(source.y[pool], clusters) for pool in pools])
    return Dataset(f"{source.name}-rotated", x, y, source.classes, clusters * len(pools[0]))


def _proxies_last(pool: np.ndarray, source: Dataset, clusters: int, rows: int, seed: int) -> np.ndarray:
    """The pool with the images of the proxy sets at its end, cluster by cluster."""
    rng, shares = aside_stream(seed), np.bincount(source.y[pool], minlength=source.classes)
    proxies: list[np.ndarray] = []
    for _ in range(clusters):
        proxies.append(stratified(pool, source.y, rows, shares, rng))
        pool = pool[~np.isin(pool, proxies[-1])]
    return np.concatenate([pool, *proxies])


def rotated(images: np.ndarray, degrees: float) -> np.ndarray:
    """Images (n x channels x side x side) turned counter-clockwise; corners are filled from the nearest edge."""
    if degrees % 90 == 0:
        return np.rot90(images, int(degrees // 90), axes=(2, 3))
    from scipy import ndimage  # here, because it takes a while to import

    turned: np.ndarray = ndimage.rotate(images, degrees, axes=(2, 3), reshape=False, order=1, mode="nearest")
    return turned


@lru_cache(maxsize=512)
def _draw(pools: RotationPools, client: int, generation: int) -> Draw:
    rng = stream(pools.seed, "mixture", client, generation)
    dominant = client % pools.clusters if generation == 0 else int(rng.integers(pools.clusters))
    mixture = _mixture(pools.clusters, dominant, rng)
    size = int(rng.integers(pools.fewest, pools.most + 1))
    test_size = _test_size(size, pools.test_share)
    train, test = np.arange(pools.clusters) * pools.train_images, np.arange(pools.clusters) * pools.test_images
    return Draw(
        _from_pools(size - test_size, mixture, train, pools.train_images - pools.reserved, rng),
        _from_pools(test_size, mixture, pools.clusters * pools.train_images + test, pools.test_images, rng),
        mixture,
    )


def _test_size(size: int, test_share: float) -> int:
    return min(max(1, round(size * test_share)), size - 1)


def _mixture(clusters: int, dominant: int, rng: np.random.Generator) -> np.ndarray:
    """One share of 40 to 90 %, the rest split at random over the other clusters; the dominant one has the largest."""
    if clusters == 1:
        return np.ones(1)
    share = rng.uniform(*DOMINANT)
    mixture = np.concatenate([[share], (1 - share) * rng.dirichlet(np.ones(clusters - 1))])
    largest = int(mixture.argmax())
    mixture[[0, largest]] = mixture[[largest, 0]]
    mixture[[0, dominant]] = mixture[[dominant, 0]]
    return mixture


def _from_pools(size: int, mixture: np.ndarray, first: np.ndarray, images: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of the first so many images of each pool, which begins at ``first``."""
    counts = apportioned(size, mixture)
    return np.concatenate(
        [begin + rng.choice(images, count, replace=False) for begin, count in zip(first, counts, strict=True)]
    )
