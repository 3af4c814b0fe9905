"""FedPer (Arivazhagan et al., 2019), FedRep (Collins et al., 2021) and LG-FedAvg (Liang et al., 2020), written from
their papers alone, for clients that take full-batch gradient steps on a perceptron with one hidden layer. The body phi
is the hidden layer, the head h makes the outputs."""

from typing import NamedTuple

import numpy as np


class Layer(NamedTuple):
    weights: np.ndarray
    bias: np.ndarray

    def minus(self, other: "Layer", rate: float) -> "Layer":
        return Layer(self.weights - rate * other.weights, self.bias - rate * other.bias)


Client = tuple[np.ndarray, np.ndarray]
"""Its samples and labels."""


def gradients(body: Layer, head: Layer, client: Client) -> tuple[Layer, Layer]:
    """Of the mean cross-entropy."""
    x, y = client
    before = x @ body.weights.T + body.bias
    hidden = np.maximum(before, 0)
    scores = np.exp(hidden @ head.weights.T + head.bias)
    away = (scores / scores.sum(1, keepdims=True) - np.eye(len(head.bias))[y]) / len(y)
    back = (away @ head.weights) * (before > 0)
    return Layer(back.T @ x, back.sum(0)), Layer(away.T @ hidden, away.sum(0))


def mean(layers: list[Layer], samples: list[int]) -> Layer:
    shares = np.array(samples) / sum(samples)
    return Layer(
        sum(share * layer.weights for share, layer in zip(shares, layers, strict=True)),
        sum(share * layer.bias for share, layer in zip(shares, layers, strict=True)),
    )


def together(body: Layer, head: Layer, client: Client, steps: int, rate: float) -> tuple[Layer, Layer]:
    """FedPer and LG-FedAvg: every step moves both."""
    for _ in range(steps):
        of_body, of_head = gradients(body, head, client)
        body, head = body.minus(of_body, rate), head.minus(of_head, rate)
    return body, head


def head_first(
    body: Layer, head: Layer, client: Client, head_steps: int, steps: int, rate: float
) -> tuple[Layer, Layer]:
    """FedRep: first ``tau`` steps of the head, then the others of the body."""
    for _ in range(head_steps):
        head = head.minus(gradients(body, head, client)[1], rate)
    for _ in range(steps - head_steps):
        body = body.minus(gradients(body, head, client)[0], rate)
    return body, head


def run(
    method: str, body: Layer, head: Layer, clients: list[Client], rounds: int, steps: int, head_steps: int, rate: float
) -> tuple[Layer, list[Layer]]:
    """The shared layer and everybody's private one, after so many rounds in which all clients take part."""
    samples = [len(y) for _, y in clients]
    shared, private = (head, [body] * len(clients)) if method == "lg-fedavg" else (body, [head] * len(clients))
    for _ in range(rounds):
        trained = []
        for client, own in zip(clients, private, strict=True):
            if method == "fedrep":
                trained.append(head_first(shared, own, client, head_steps, steps, rate))
            elif method == "fedper":
                trained.append(together(shared, own, client, steps, rate))
            else:
                trained.append(together(own, shared, client, steps, rate)[::-1])
        shared = mean([of_shared for of_shared, _ in trained], samples)
        private = [own for _, own in trained]
    return shared, private
