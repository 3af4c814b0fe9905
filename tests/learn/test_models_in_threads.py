"""Runs in several threads of one process share torch's global generator."""

from concurrent.futures import ThreadPoolExecutor

import torch

from polytempo.learn.flat import initial_vector
from polytempo.learn.models import Inputs, build_model
from polytempo.learn.probe import check_parts


def test_models_that_threads_build_at_once_have_the_weights_of_their_seeds() -> None:
    inputs = Inputs((1, 8, 8), 3)
    x, y = torch.ones(2, 1, 8, 8), torch.tensor([0, 1])

    def weights(seed: int) -> bytes:
        module = build_model("lenet", inputs, seed)
        check_parts(module, torch.nn.functional.cross_entropy, lambda outputs, labels: outputs[:, 0], x, y)
        return initial_vector(module).numpy().tobytes()

    alone = [weights(seed) for seed in range(40)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(weights, range(40))) == alone
