"""A PyTorch training loop of one's own. The server begins with this model's state dict (--init model.safetensors).

python with_torch.py HOST:PORT client-0.token ca.pem
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from polytempo_client import Client

x, y = map(torch.tensor, load_digits(return_X_y=True))
net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def use(tensors):
    net.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})


def train(task):
    use(task.tensors)
    optimizer = torch.optim.SGD(net.parameters(), task.work.lr, task.work.momentum)
    steps = 0
    for rows in torch.randint(len(x), (task.work.steps_for(len(x)), task.work.batch_size)):
        for model in task.refreshes():
            use(model.tensors)
        if task.reported or task.withdrawn:
            break
        net.zero_grad()
        nn.functional.cross_entropy(net(x[rows].float() / 16), y[rows]).backward()
        optimizer.step()
        steps += 1
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}, len(x), {"steps": steps}


with Client(sys.argv[1], Path(sys.argv[2]), sys.argv[3]) as client:
    client.run(train, updates=5)
