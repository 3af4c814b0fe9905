"""FedAvg with pfl-research's simulator in one process, with torch's own threads:

python pfl_fedavg.py MODEL ROUNDS DIR
"""

import time

import common
import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F


class Model(nn.Sequential):
    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


def main() -> None:
    options = common.arguments()
    np.random.seed(0)  # noqa: NPY002, which clients are drawn
    torch.manual_seed(0)
    x, y = common.mnist(options.data_dir, "train")
    test = common.mnist(options.data_dir, "t10k")
    parts = [Dataset(raw_data=[x[rows], y[rows]]) for rows in map(torch.from_numpy, common.rows_of(len(x)))]
    users = FederatedDataset(parts.__getitem__, get_user_sampler("random", list(range(common.CLIENTS))))
    module = Model(*common.layers(options.model))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    work = NNTrainHyperParams(
        local_num_epochs=None,
        local_num_steps=common.STEPS,
        local_learning_rate=common.LR,
        local_batch_size=common.BATCH,
    )
    rounds = NNAlgorithmParams(
        central_num_iterations=options.rounds,
        evaluation_frequency=options.rounds + 1,
        train_cohort_size=common.PER_ROUND,
        val_cohort_size=0,
    )
    began = time.perf_counter()
    common.accuracy(module, *test)
    FederatedAveraging().run(rounds, SimulatedBackend(users, users), model, work, send_metrics_to_platform=False)
    common.tell(began, common.accuracy(module, *test))


if __name__ == "__main__":
    main()
