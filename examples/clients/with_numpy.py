"""Softmax regression in plain numpy: a device with nothing but polytempo-client.

python with_numpy.py HOST:PORT client-0.token ca.pem
"""

import sys
from pathlib import Path

import numpy as np

from polytempo_client import Client

rng = np.random.default_rng(0)
x = rng.normal(size=(300, 4)).astype(np.float32)  # your own data
y = (x @ rng.normal(size=(4, 3))).argmax(1)


def likely(tensors, x):
    outputs = np.exp(x @ tensors["weight"].T + tensors["bias"])
    return outputs / outputs.sum(1, keepdims=True)


def train(task):
    accuracy = (likely(task.tensors, x).argmax(1) == y).mean()
    tensors, steps = dict(task.tensors), 0
    for _ in range(task.work.steps_for(len(x))):
        for model in task.refreshes():  # the server has sent a newer model: go on from it
            tensors = dict(model.tensors)
        if task.reported or task.withdrawn:  # it wants what there is, or nothing any more
            break
        rows = rng.choice(len(x), task.work.batch_size)
        error = likely(tensors, x[rows]) - np.eye(3)[y[rows]]
        tensors["weight"] = tensors["weight"] - task.work.lr * error.T @ x[rows] / len(rows)
        tensors["bias"] = tensors["bias"] - task.work.lr * error.mean(0)
        steps += 1
    return tensors, len(x), {"steps": steps, "accuracy": accuracy}


with Client(sys.argv[1], Path(sys.argv[2]), sys.argv[3]) as client:
    client.run(train, updates=5)
