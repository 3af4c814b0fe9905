"""The world of an experiment: its clients with their data, and what the server has of its own."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.learn.learner import Learner
from polytempo.learn.proxies import WARM_UP_EPOCHS, ProxySets
from polytempo.sim.experiment import Experiment
from polytempo.strategies.base.strategy import strategy_class
from polytempo.world.dataset import Dataset
from polytempo.world.federation import Federation
from polytempo.world.partitions import clients_in, make_federation
from polytempo.world.proxies import check_proxies, proxies_of, proxy_file, read_proxies


def federation_of(experiment: Experiment, dataset: Dataset) -> Federation:
    """The clients with their data. Proxy sets are set aside where they are asked for, or where the strategy needs some
    and no file has them."""
    e = experiment
    words = e.proxies or ("default" if strategy_class(e.strategy).needs_proxies else "0")
    return make_federation(
        dataset,
        e.partition,
        e.clients or clients_in(e.partition, dataset, e.min_samples) or 20,
        e.seed,
        e.test_share,
        e.min_samples,
        e.drift,
        "default" if words == "default" else 0 if proxy_file(words) else int(words),
    )


def proxy_sets_of(experiment: Experiment, federation: Federation, learner: Learner) -> ProxySets | None:
    """The server's proxy sets: from a file, or what the federation set aside; None if it has none."""
    dataset, file = federation.dataset, proxy_file(experiment.proxies or "")
    if file is not None:
        data = read_proxies(file)
        check_proxies(data, dataset.x.shape[1:], dataset.classes, dataset.vocabulary)
    elif federation.clusters:
        data = proxies_of(federation)
    else:
        return None
    return ProxySets(learner, data.x, data.y, data.offsets, experiment.work(), experiment.seed)


def begun_with(
    experiment: Experiment, proxies: ProxySets | None, initial: Tensor, objects: Mapping[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """The first model, warmed up on the proxy sets where there are some, and what the strategy is handed."""
    if proxies is None:
        if experiment.warm_up:
            raise UserError("warm_up trains the first model on proxy sets, and there are none. Give --proxies too.")
        return initial, dict(objects)
    return proxies.warmed(initial, warm_up(experiment)), {"proxies": proxies, **objects}


def warm_up(experiment: Experiment) -> int:
    """Epochs that the first model is trained on the proxy sets, where there are some."""
    return WARM_UP_EPOCHS if experiment.warm_up is None else experiment.warm_up
