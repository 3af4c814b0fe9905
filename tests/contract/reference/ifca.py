"""IFCA, written from Ghosh et al. (2020) alone: Algorithm 1 with model averaging, for clients that take full-batch
gradient steps on a softmax regression whose parameters are one vector, weights first."""

import numpy as np


def losses_and_gradient(theta: np.ndarray, x: np.ndarray, y: np.ndarray, classes: int) -> tuple[float, np.ndarray]:
    weights, bias = theta[: classes * x.shape[1]].reshape(classes, -1), theta[classes * x.shape[1] :]
    scores = np.exp(x @ weights.T + bias)
    shares = scores / scores.sum(axis=1, keepdims=True)
    loss = -np.log(shares[np.arange(len(y)), y]).mean()
    away = (shares - np.eye(classes)[y]) / len(y)
    return float(loss), np.concatenate([(away.T @ x).ravel(), away.sum(axis=0)])


def run(
    models: list[np.ndarray],
    data: list[tuple[np.ndarray, np.ndarray]],
    classes: int,
    rounds: int,
    steps: int,
    lr: float,
) -> tuple[list[np.ndarray], list[int]]:
    """The k models after so many rounds in which everybody takes part, and what each client chose last."""
    chosen: list[int] = []
    for _ in range(rounds):
        chosen = [int(np.argmin([losses_and_gradient(theta, x, y, classes)[0] for theta in models])) for x, y in data]
        trained = []
        for j, (x, y) in zip(chosen, data, strict=True):
            theta = models[j]
            for _ in range(steps):
                theta = theta - lr * losses_and_gradient(theta, x, y, classes)[1]
            trained.append(theta)
        models = [
            np.mean([theta for theta, j in zip(trained, chosen, strict=True) if j == k], axis=0) if k in chosen else old
            for k, old in enumerate(models)
        ]
    return models, chosen
