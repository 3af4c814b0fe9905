"""Polytempo: asynchronous, personalised federated learning, simulated on a virtual clock and served to real clients."""

from polytempo.api import simulate
from polytempo.report.run import Run
from polytempo.serve.client import Client

__all__ = ["Client", "Run", "simulate"]
