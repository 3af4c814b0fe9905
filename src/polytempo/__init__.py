"""Polytempo: asynchronous, personalised federated learning, simulated on a virtual clock and served to real clients."""

from polytempo.api import simulate
from polytempo.learn.privacy import Privacy
from polytempo.report.run import Run
from polytempo.serve.client.client import Client
from polytempo.serve.client.ledger import Ledger

__all__ = ["Client", "Ledger", "Privacy", "Run", "simulate"]
