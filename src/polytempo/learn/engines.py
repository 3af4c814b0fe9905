"""The engines by name."""

from torch import nn
from torch.nn import functional as F

from polytempo.core.errors import UserError
from polytempo.learn.accelerator import CPU, accelerator
from polytempo.learn.eager import EagerEngine, Loss
from polytempo.learn.job import Engine
from polytempo_client.imports import unknown

ENGINES = ("auto", "eager", "fused")


def make_engine(name: str, module: nn.Module, loss: Loss = F.cross_entropy, device: str = "cpu") -> Engine:
    """``eager`` trains any module with any loss; ``fused`` is many times faster and trains what it knows; ``auto`` is
    fused where that is possible. On another device than the CPU it is eager."""
    if name not in ENGINES:
        raise UserError(unknown("engine", name, ENGINES))
    at = accelerator(device)
    if name == "fused" and at != CPU:
        raise UserError(f"The fused engine computes on the CPU only, not on {device}. Use --engine eager (or auto).")
    if name == "eager" or at != CPU or (name == "auto" and not _fusible(module, loss)):
        return EagerEngine(module, loss, at)
    if loss is not F.cross_entropy:
        raise UserError(
            "The fused engine trains with cross-entropy only. For your own loss use --engine eager (or auto)."
        )
    from polytempo.learn.fused.engine import FusedEngine  # here, because numba takes a while to import

    return FusedEngine(module)


def _fusible(module: nn.Module, loss: Loss) -> bool:
    from polytempo.learn.fused.engine import why_unsupported

    return loss is F.cross_entropy and why_unsupported(module) is None
