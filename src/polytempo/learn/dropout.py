"""Dropout that draws from a generator of its own: torch's global one is shared by all threads, and a run that used it
would depend on who trains beside whom."""

import torch
from torch import Tensor, nn

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class SeededDropout(nn.Module):
    """Inverted dropout, elementwise or (``channels``) per channel. It draws on the CPU, so that every device drops the
    same."""

    def __init__(self, p: float, channels: bool) -> None:
        super().__init__()
        self.p = p
        self.channels = channels
        self.generator = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = x.shape[:2] + (1,) * (x.dim() - 2) if self.channels else x.shape
        keep = (torch.rand(shape, generator=self.generator) >= self.p).to(x.device)
        return x * keep / (1 - self.p)


def seeded_dropout(module: nn.Module) -> tuple[nn.Module, list[SeededDropout]]:
    """Replace every dropout layer of a module that is in training mode, in place; the replacements in order."""
    replaced: list[SeededDropout] = []
    for parent in list(module.modules()):
        for name, child in parent._modules.items():  # named_children() leaves out a layer's second place
            if child is not None and child.training and isinstance(child, DROPOUTS):
                replaced.append(SeededDropout(child.p, not isinstance(child, nn.Dropout)))
                setattr(parent, name, replaced[-1])
    return module, replaced
