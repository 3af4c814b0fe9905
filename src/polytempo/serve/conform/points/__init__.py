"""The script, point by point. Each point is a life of its own: servers, and a fresh start of the program."""

from polytempo.serve.conform.points import connections, offers, refusals, training
from polytempo.serve.conform.points.point import NotOfferedError

__all__ = ["NotOfferedError", "points"]

points = {one.name: one for one in (*training.POINTS, *connections.POINTS, *refusals.POINTS, *offers.POINTS)}
