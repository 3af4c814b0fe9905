"""For those who test a method: builders and a small simulator."""

from polytempo.testing.building import Planted, begun, simulator, tiny_dataset, tiny_proxies, update, vector

__all__ = ["Planted", "begun", "simulator", "tiny_dataset", "tiny_proxies", "update", "vector"]
