"""What a method asks of the server's proxy sets. ``polytempo.learn.proxies`` has them; a strategy, which does no
forward passes itself, is handed them as the object ``proxies``."""

from typing import Protocol

import numpy as np
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.strategies.base.strategy import Setting


class ProxySets(Protocol):
    """K sets D_k of samples of the server's own. F(w; D_k) is the mean loss of a model on one of them."""

    @property
    def clusters(self) -> int:
        """K"""

    def specialised(self, weights: Tensor, epochs: int) -> list[Tensor]:
        """For each cluster, the model after so many epochs on its set."""

    def losses(self, weights: Tensor) -> np.ndarray:
        """``F(w; D_k)`` for every k."""

    def loss(self, weights: Tensor, cluster: int) -> float:
        """``F(w; D_k)`` for one k."""


def proxy_sets(setting: Setting) -> ProxySets:
    """The proxy sets that the driver handed over."""
    if "proxies" not in setting.objects:
        raise UserError(
            "This method needs proxy sets, a few samples at the server for each cluster: --proxies with a number of "
            "samples or an .npz file (docs/guides/client-driven.md)."
        )
    given: ProxySets = setting.objects["proxies"]
    return given
