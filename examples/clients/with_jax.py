"""A JAX training loop. The server begins with a model of zeros: weight (64, 10), bias (10,).

python with_jax.py HOST:PORT client-0.token ca.pem
"""

import sys
from pathlib import Path

import jax
import numpy as np

from polytempo_client import Client

rng = np.random.default_rng(0)
x = rng.normal(size=(500, 64)).astype(np.float32)  # your own data
y = (x @ rng.normal(size=(64, 10))).argmax(1)


@jax.jit
def step(tensors, x, y, lr):
    def loss(tensors):
        return -jax.nn.log_softmax(x @ tensors["weight"] + tensors["bias"])[np.arange(len(y)), y].mean()

    return jax.tree.map(lambda w, g: w - lr * g, tensors, jax.grad(loss)(tensors))


def train(task):
    tensors = task.tensors
    for done in range(task.work.steps_for(len(x))):
        for model in task.refreshes():
            tensors = model.tensors
        if task.reported or task.withdrawn:
            return tensors, len(x), {"steps": done}
        rows = rng.choice(len(x), task.work.batch_size)
        tensors = step(tensors, x[rows], y[rows], task.work.lr)
    return tensors, len(x)


with Client(sys.argv[1], Path(sys.argv[2]), sys.argv[3]) as client:
    client.run(train, updates=5)
