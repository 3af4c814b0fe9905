"""One wearer: softmax regression on features of the last minutes, with nothing but polytempo-client.

python wearer.py HOST:PORT wearer-3.npz client-3.token ca.pem --day 120 --ask every:12|loss:3
"""

import argparse
import time
from pathlib import Path

import numpy as np

from polytempo_client import AskWhen, Client

WINDOW = 60
"""Rows that the device keeps: the newest ones."""


class Wearer:
    """Its recordings arrive one by one in the course of a day."""

    def __init__(self, recordings: Path, day: float) -> None:
        with np.load(recordings) as file:
            self.x, self.y, self.classes = file["x"], file["y"], int(file["classes"])
        self.day, self.began = day, time.monotonic()
        self.rng = np.random.default_rng(len(self.y))

    @property
    def left(self) -> float:
        """Seconds of the day."""
        return max(0.0, self.began + self.day - time.monotonic())

    def data(self):
        """The rows that it has now."""
        end = max(WINDOW, round((1 - self.left / self.day) * len(self.y)))
        return self.x[end - WINDOW : end], self.y[end - WINDOW : end]

    def score(self, tensors, x, y):
        """Of each row: the loss, and whether the model is right."""
        shares = likely(tensors, x)
        return -np.log(shares[np.arange(len(y)), y] + 1e-9), shares.argmax(1) == y

    def train(self, task):
        x, y = self.data()
        accuracy = self.score(task.held, x, y)[1].mean()  # of the model that it worked with until now
        for model in task.refreshes():
            task.tensors = dict(model.tensors)
        tensors = {name: array.copy() for name, array in task.tensors.items()}
        steps = task.work.steps_for(len(y))
        for _ in range(steps):
            rows = self.rng.choice(len(y), min(task.work.batch_size, len(y)), replace=False)
            error = (likely(tensors, x[rows]) - np.eye(self.classes)[y[rows]]) / len(rows)
            tensors["weight"] -= np.float32(task.work.lr) * (error.T @ x[rows]).astype(np.float32)
            tensors["bias"] -= np.float32(task.work.lr) * error.sum(0).astype(np.float32)
        return tensors, {"samples": len(y), "steps": steps, "accuracy": float(accuracy)}


def likely(tensors, x):
    outputs = x @ tensors["weight"].T + tensors["bias"]
    outputs = np.exp(outputs - outputs.max(1, keepdims=True))
    return outputs / outputs.sum(1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    for name in ("recordings", "token", "ca"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--day", type=float, required=True)
    parser.add_argument("--ask", required=True)
    given = parser.parse_args()
    with Client(given.server, given.token, given.ca) as client:
        number, _, seed = client.wait_for_welcome()
        wearer = Wearer(given.recordings, given.day)
        ask = AskWhen(given.ask, wearer.data, wearer.score)

        def hold(task, seconds):
            """Keep the model and use it, until it is time to look again, or night."""
            return client.hold(task, min(seconds, wearer.left)) and wearer.left > 0

        while wearer.left:
            task = client.task()
            ask.wait(task, number, seed, hold)
            if not task.withdrawn:
                tensors, counts = wearer.train(task)
                client.push(task, tensors, **counts, ready=wearer.left > 0)
        client.leave()


if __name__ == "__main__":
    main()
