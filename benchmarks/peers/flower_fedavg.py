"""FedAvg with Flower's simulation, one client per core at a time: python flower_fedavg.py MODEL ROUNDS DIR"""

import functools
import os
import time

import common
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

OPTIONS = common.arguments()
client_app = ClientApp()
server_app = ServerApp()


@functools.cache
def training_data() -> tuple[Tensor, Tensor]:
    return common.mnist(OPTIONS.data_dir, "train")


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    x, y = training_data()
    rows = torch.from_numpy(common.rows_of(len(x))[int(context.node_config["partition-id"])])
    module = nn.Sequential(*common.layers(OPTIONS.model))
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    common.train(module, x[rows], y[rows])
    metrics = MetricRecord({"num-examples": len(rows)})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*common.layers(OPTIONS.model))
    test = common.mnist(OPTIONS.data_dir, "t10k")
    began = time.perf_counter()
    common.accuracy(module, *test)
    share = common.PER_ROUND / common.CLIENTS
    result = FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=common.CLIENTS).start(
        grid, ArrayRecord(module.state_dict()), OPTIONS.rounds
    )
    module.load_state_dict(result.arrays.to_torch_state_dict())
    common.tell(began, common.accuracy(module, *test))


if __name__ == "__main__":
    cores = os.cpu_count() or 1
    run_simulation(
        server_app,
        client_app,
        common.CLIENTS,
        backend_config={"init_args": {"num_cpus": cores}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
