"""The same model twice: with a frozen encoder, and with that encoder as a constant function outside of the module."""

import torch
from torch import Tensor, nn

from polytempo.core.events import Update
from polytempo.core.orders import Train
from polytempo.learn.models import Inputs
from polytempo.strategies import Strategy

SCALE = 1.0
"""Of the encoder's batch norm."""


class WithEncoder(nn.Module):
    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        size = inputs.shape[0] if len(inputs.shape) == 1 else 64
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(size, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.5))
        nn.init.constant_(encoder[2].weight, SCALE)
        self.place(encoder.requires_grad_(False))
        self.hidden = nn.Linear(12, 8)
        self.normal = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8, inputs.classes)

    def place(self, encoder: nn.Module) -> None:
        self.encoder = encoder

    def encoded(self, x: Tensor) -> Tensor:
        encoded: Tensor = self.encoder(x)
        return encoded

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.drop(self.normal(self.hidden(self.encoded(x))).relu()))
        return outputs


class Outside(WithEncoder):
    def place(self, encoder: nn.Module) -> None:
        self.constant = [encoder.eval()]

    def encoded(self, x: Tensor) -> Tensor:
        encoded: Tensor = self.constant[0](x)
        return encoded


def inside(inputs: Inputs) -> nn.Module:
    return WithEncoder(inputs)


def outside(inputs: Inputs) -> nn.Module:
    return Outside(inputs)


class Partly(Strategy):
    """Every second number of two layers trains, and half of a client's result counts."""

    def order_for(self, client: int, now: float) -> Train:
        mask = torch.arange(len(self.model.weights)) % 2 == 0
        return self.train(client, self.model, mask=mask, trainable=("normal", "head"))

    def updated(self, update: Update, now: float) -> None:
        self.model.mix(update.weights, 0.5)
