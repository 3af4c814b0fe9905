"""Polytempo: asynchronous, personalised federated learning, simulated on a virtual clock."""

from polytempo.api import simulate
from polytempo.report.run import Run

__all__ = ["Run", "simulate"]
