"""How far the fused and the eager engine are from exact arithmetic, and why: from random starts, 30 steps at batch 64
with momentum and weight decay.

    python benchmarks/micro/exactness.py [--starts 3]

Where a number before a ReLU is almost zero, or two numbers of a pooling window are almost equal, rounding decides what
the gradient passes through: a flip. Each gradient on the way is compared with float64's: "off" are those that differ by
more than OFF of their largest entry, "flips" says for how many decisions that rounding could turn (their margin in
float64 is below MARGIN of the layer's mean size) float64 took the other way, and "left" is the largest difference when
float64 decides these as the engine did.
"""

import argparse
import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polytempo.core.model.vectors import flatten, schema_of
from polytempo.core.orders import Work
from polytempo.learn.engines import make_engine
from polytempo.learn.fused.layers import WHOLE, Layer, layers_of
from polytempo.learn.job import Batches, Engine, Job, make_batches
from polytempo.learn.models import Inputs, build_model
from polytempo_client.streams import stream

STEPS, BATCH, SAMPLES = 30, 64, 640
VOCABULARY = 1000
WORK = Work(batch_size=BATCH, momentum=0.9, weight_decay=1e-3)
LR = 0.05
OFF = 1e-5
MARGIN = 1e-5
CASES = {"cnn": (1, 28, 28), "lenet": (3, 32, 32), "cnn1d": (9, 128), "textcnn": (64,)}


@dataclass
class Decision:
    """One that rounding could turn: of this layer's output, this window (or number) has this choice instead."""

    layer: int
    window: int
    winner: int
    alive: bool


class Exact:
    """A module's gradient in float64, with some decisions taken the other way."""

    def __init__(self, module: nn.Module) -> None:
        self._module = copy.deepcopy(module)
        self._layers = layers_of(self._module)
        self._module.double()
        self._close: list[Decision] = []

    def gradient(self, start: Tensor, x: Tensor, y: Tensor, turned: tuple[Decision, ...] = ()) -> Tensor:
        """In float64; what is close is found on the way."""
        nn.utils.vector_to_parameters(start.double(), self._module.parameters())
        self._module.zero_grad()
        self._close = []
        F.cross_entropy(self._outputs(x if x.dtype == torch.int64 else x.double(), turned), y).backward()
        return torch.cat([parameter.grad.reshape(-1) for parameter in self._module.parameters()])

    def close(self) -> list[Decision]:
        return self._close

    def _outputs(self, x: Tensor, turned: tuple[Decision, ...]) -> Tensor:
        outputs: list[Tensor] = []
        for number, layer in enumerate(self._layers):
            given = torch.cat([outputs[source] for source in layer.sources], 1) if layer.sources else x
            outputs.append(self._through(number, layer, given, [d for d in turned if d.layer == number]))
        return outputs[-1]

    def _through(self, number: int, layer: Layer, x: Tensor, turned: list[Decision]) -> Tensor:
        module = layer.module
        if isinstance(module, nn.Embedding):
            return module(x).transpose(1, 2)
        if isinstance(module, nn.Linear):
            x = x.flatten(1)
        elif isinstance(module, nn.Conv1d) and x.dim() == 2:
            x = x.unsqueeze(1)
        out = module(x)
        if not layer.relu:
            return out
        rows, columns = (1, out.shape[-1]) if layer.pool == WHOLE else layer.pool
        windows = windows_of(out, rows, columns)
        flat = windows.reshape(-1, rows * columns)
        best, winner = flat.detach().max(1)
        alive = best > 0
        self._close += close_ones(number, flat.detach(), best, winner)
        for decision in turned:
            winner[decision.window] = decision.winner
            alive[decision.window] = decision.alive
        passed = flat.gather(1, winner[:, None])[:, 0] * alive
        shape = windows.shape[:-1] if out.dim() == 4 else (*windows.shape[:2], windows.shape[-2])
        passed = passed.reshape(shape)
        return passed[..., 0] if layer.pool == WHOLE else passed if out.dim() > 2 else passed.reshape(out.shape)


def windows_of(out: Tensor, rows: int, columns: int) -> Tensor:
    """Samples x channels x rows x columns x what is in a window."""
    while out.dim() < 4:
        out = out.unsqueeze(2)
    tall, wide = out.shape[2] // rows, out.shape[3] // columns
    cut = out[:, :, : tall * rows, : wide * columns].reshape(*out.shape[:2], tall, rows, wide, columns)
    return cut.transpose(3, 4).reshape(*out.shape[:2], tall, wide, rows * columns)


def close_ones(layer: int, flat: Tensor, best: Tensor, winner: Tensor) -> list[Decision]:
    margin = MARGIN * float(flat.abs().mean())
    found = [
        Decision(layer, window, int(winner[window]), not bool(best[window] > 0))
        for window in torch.nonzero(best.abs() < margin)[:, 0].tolist()
    ]
    if flat.shape[1] > 1:
        two, places = flat.topk(2, 1)
        gap = two[:, 0] - two[:, 1]  # equal words give equal numbers, and it does not matter which of them wins
        near = (gap < margin) & (gap > 1e-12) & (best > -margin)
        found += [
            Decision(layer, window, int(places[window, 1]), True) for window in torch.nonzero(near)[:, 0].tolist()
        ]
    return found


def explained(exact: Exact, start: Tensor, x: Tensor, y: Tensor, of_engine: Tensor) -> tuple[float, int, float]:
    """The largest difference as a share of the gradient's largest entry, the flips in it, and what they leave."""
    truth = exact.gradient(start, x, y)
    size = truth.abs().max()
    close = exact.close()
    away = of_engine.double() - truth
    share = float(away.abs().max() / size)
    if share <= OFF or not close:
        return share, 0, share
    ways = torch.stack([exact.gradient(start, x, y, (decision,)) - truth for decision in close], 1)
    parts = torch.linalg.lstsq(ways, away[:, None], driver="gelsd").solution[:, 0]
    flips = tuple(decision for decision, part in zip(close, parts, strict=True) if part > 0.5)
    left = of_engine.double() - exact.gradient(start, x, y, flips)
    return share, len(flips), float(left.abs().max() / size)


def gradient_by(engine: Engine, job: Job, rows: np.ndarray, start: Tensor) -> Tensor:
    batches = Batches(rows, np.array([0, len(rows)]))
    return start - engine.train(replace(job, start=start, batches=batches, work=Work(batch_size=BATCH), lr=1.0))


def steps_of(job: Job) -> Iterator[np.ndarray]:
    for begin, end in zip(job.batches.offsets, job.batches.offsets[1:], strict=False):
        yield job.batches.rows[begin:end]


def exact_path(exact: Exact, job: Job) -> list[Tensor]:
    """The weights before each step, and after the last, all in float64."""
    w, moment = job.start.double(), torch.zeros(len(job.start), dtype=torch.float64)
    path = [w]
    for rows in steps_of(job):
        gradient = exact.gradient(w, job.x[rows], job.y[rows]) + WORK.weight_decay * w
        moment = WORK.momentum * moment + gradient
        w = w - LR * moment
        path.append(w)
    return path


def job_from(model: str, shape: tuple[int, ...], number: int) -> tuple[nn.Module, Job]:
    rng = stream(number, "exactness")
    words = model == "textcnn"
    module = build_model(model, Inputs(shape, 10, VOCABULARY if words else None), seed=number)
    x = rng.integers(0, VOCABULARY, (SAMPLES, *shape)) if words else rng.standard_normal((SAMPLES, *shape), np.float32)
    y = torch.from_numpy(rng.integers(0, 10, SAMPLES))
    start = flatten(schema_of(module), dict(module.named_parameters()))
    return module, Job(start, torch.from_numpy(x), y, make_batches(np.arange(SAMPLES), BATCH, STEPS, rng), WORK, LR)


def measure(model: str, number: int) -> None:
    module, job = job_from(model, CASES[model], number)
    exact = Exact(module)
    path = exact_path(exact, job)
    moved = float((path[-1] - path[0]).abs().max())
    for name in ("fused", "eager"):
        engine = make_engine(name, module)
        end = float((engine.train(job).double() - path[-1]).abs().max())
        found = []
        for rows, w in zip(steps_of(job), path, strict=False):
            start = w.float()
            gradient = gradient_by(engine, job, rows, start)
            found.append(explained(exact, start, job.x[rows], job.y[rows], gradient))
        off = [share for share, _, _ in found if share > OFF]
        flips, left = sum(flips for _, flips, _ in found), max(left for _, _, left in found)
        figures = (f"{end:.1e} of {moved:.2f}", f"{len(off)} of {STEPS}", f"{max(share for share, _, _ in found):.1e}")
        print(f"{model:8} {number:5} {name:6} {figures[0]:>15} {figures[1]:>8} {figures[2]:>8} {flips:5} {left:8.1e}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--starts", type=int, default=3)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    print("model    start engine  end differs by      off  largest flips     left")
    for model in CASES:
        for number in range(options.starts):
            measure(model, number)


if __name__ == "__main__":
    main()
