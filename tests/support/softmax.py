"""Softmax regression in plain numpy, to compute by hand what rules do: a linear layer of ``tiny_dataset``'s inputs."""

import numpy as np
import torch
from torch import nn

from polytempo.core.orders import Train, Work
from polytempo.learn.learner import Assignment, CarriedOut, Learner
from polytempo.testing import tiny_dataset
from polytempo_client.personal.rule import ClientMemory
from polytempo_client.personal.told import Personal

CLASSES, INPUTS = 3, 4
SIZE = CLASSES * INPUTS + CLASSES
DATA = tiny_dataset()
ROWS = np.array([3, 7, 11, 20, 21, 22, 40])
"""Of one client."""
RATE = 0.25


def make_learner(engine: str = "eager") -> Learner:
    return Learner(nn.Sequential(nn.Linear(INPUTS, CLASSES)), engine)


def some_vector(seed: int, scale: float = 0.5) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=SIZE) * scale).astype(np.float32)


def gradient(vector: np.ndarray, rows: np.ndarray = ROWS) -> np.ndarray:
    """Of the mean cross-entropy on these rows."""
    v, x, y = vector.astype(np.float64), DATA.x[rows].astype(np.float64), DATA.y[rows]
    outputs = x @ v[: CLASSES * INPUTS].reshape(CLASSES, INPUTS).T + v[CLASSES * INPUTS :]
    shares = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    away = (shares - np.eye(CLASSES)[y]) / len(rows)
    return np.concatenate([(away.T @ x).reshape(-1), away.sum(0)])


def descended(vector: np.ndarray, steps: int) -> np.ndarray:
    """After so many steps of gradient descent on all rows."""
    for _ in range(steps):
        vector = vector - RATE * gradient(vector)
    return vector


def carried_out(
    learner: Learner,
    served: np.ndarray,
    personal: Personal,
    memory: ClientMemory | None = None,
    steps: int = 3,
    work: Work | None = None,
    count: int = 0,
) -> CarriedOut:
    """One task of the client. Unless told otherwise, a step is on all its rows: nothing is random."""
    work = work or Work(steps=steps, epochs=None, batch_size=len(ROWS), lr=RATE)
    order = Train(0, torch.from_numpy(served), 0, work, personal=personal)
    x, y = torch.from_numpy(DATA.x), torch.from_numpy(DATA.y)
    return learner.carry_out(Assignment(order, x, y, ROWS, steps, count, seed=0, memory=memory))
