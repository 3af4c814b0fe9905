"""A strategy whose orders have everything in them."""

from typing import Any

import torch

from polytempo.methods import Candidates, Objective, Orders, Strategy, Train, Update


class Choosy(Strategy):
    """Orders with candidates, an anchor, a linear term, a mask, layers and questions. It keeps the answers."""

    def setup(self) -> None:
        self.answered: list[tuple[int, int | None, dict[str, Any]]] = []

    def order_for(self, client: int, now: float) -> Train:
        model = self.model.weights
        candidates = Candidates(
            (model, model * 0.5, model + 0.1), (self.model.version, -1, -2), "best" if client % 2 else "mixture"
        )
        return self.train(
            client,
            self.model,
            steps=3,
            objective=Objective(proximal=0.1, cosine=0.01, anchor=model * 0.9, linear=model * 0.1),
            candidates=candidates,
            questions=("loss-statistics",),
            mask=torch.arange(len(model)) % 5 != client,
            trainable=("0.weight",) if client == 3 else (),
        )

    def updated(self, update: Update, now: float) -> Orders:
        self.answered.append((update.client, update.chosen, update.answers))
        self.model.step(update.delta, 0.3)
