"""The collaboration graph: who learns from whom."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Graph:
    """The collaboration graph at one evaluation. ``rows`` holds, for each client for whom it was estimated (by its
    number as text), its ``neighbours``, itself among them, and their ``weights``."""

    time: float
    updates: int
    clients: int
    rows: Mapping[str, Mapping[str, Any]]

    def matrix(self) -> np.ndarray:
        """Clients x clients: the weight of client j in the model of client i; NaN in rows that were never estimated."""
        matrix = np.full((self.clients, self.clients), np.nan)
        for client, row in self.rows.items():
            matrix[int(client)] = 0.0
            matrix[int(client), np.asarray(row["neighbours"], int)] = row["weights"]
        return matrix

    def foreign(self) -> np.ndarray:
        """The matrix without what clients keep of themselves: 0 on the diagonal, NaN in rows never estimated."""
        matrix = self.matrix()
        matrix[np.diag_indices_from(matrix)] *= 0.0
        return matrix

    def estimated(self) -> np.ndarray:
        """For every client, has it a row?"""
        known = np.zeros(self.clients, bool)
        known[[int(client) for client in self.rows]] = True
        return known
