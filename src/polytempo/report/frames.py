"""Rows of a run as columns: a pandas DataFrame where pandas is installed, otherwise a dict of numpy arrays."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Row = Mapping[str, Any]
SCALARS = (bool, int, float, str, np.generic)


def frame_of(rows: Sequence[Row]) -> Any:
    """One column per name. Columns with anything but numbers or text are left out. A row that lacks a name has NaN
    there, or None among texts. Whole numbers stay whole where no row lacks them."""
    columns = {name: _column([row.get(name) for row in rows]) for name in _plain_names(rows)}
    try:
        from pandas import DataFrame  # here, because it is optional, and slow to load
    except ImportError:
        return columns
    return DataFrame(columns)


def per_client(columns: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """One row per client from arrays with one number per client. Arrays without any number are left out."""
    known = {name: values.tolist() for name, values in columns.items() if len(values) and not np.isnan(values).all()}
    clients = max(map(len, known.values()), default=0)
    return [
        {"client": client, **{name: values[client] for name, values in known.items() if client < len(values)}}
        for client in range(clients)
    ]


def _plain_names(rows: Iterable[Row]) -> list[str]:
    plain: dict[str, bool] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None:
                plain[name] = plain.get(name, True) and isinstance(value, SCALARS)
    return [name for name, is_plain in plain.items() if is_plain]


def _column(values: list[Any]) -> np.ndarray:
    if any(isinstance(value, str) for value in values):
        return np.array(values, object if None in values else None)
    return np.array([np.nan if value is None else value for value in values])
