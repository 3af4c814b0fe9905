"""Columns of frames as samples and labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polytempo.core.given import type_name
from polytempo.world.dataset import Labels

LABELS = ("label", "y")
"""Columns that are the label where the user names none."""
SHOWN = 20
"""Names of columns in a message."""


@dataclass(frozen=True)
class Columns:
    """How columns, and numbers, are to be read."""

    label: str | tuple[str, ...] | None = None
    features: str | tuple[str, ...] | None = None
    vocabulary: int | None = None
    """Samples are tokens, whole numbers below this."""
    labels: Labels = "classes"

    @property
    def named(self) -> str:
        """The first word that is about columns by name; empty if there is none."""
        return next((word for word in ("label", "features") if getattr(self, word) is not None), "")


def of_columns(found: Mapping[str, np.ndarray], columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Samples and labels of a frame's columns."""
    labels = _label_columns(list(found), columns)
    chosen = columns.features if columns.features is not None else tuple(n for n in found if n not in labels)
    features = (chosen,) if isinstance(chosen, str) else tuple(chosen)
    _check_there(found, [*labels, *features])
    if not features:
        raise ValueError("there is no column of features. Expected at least one beside the label")
    read = {name: _numbers(name, found[name]) for name in features}
    alone = len(features) == 1 and read[features[0]].ndim > 1  # an image or a list per row
    x = read[features[0]] if alone else np.stack([read[name].astype(np.float32) for name in features], axis=1)
    each = [as_labels(found[name], f"column {name!r}") for name in labels]
    return x, each[0] if len(each) == 1 else np.stack(each, axis=1)


def as_labels(y: np.ndarray, what: str) -> np.ndarray:
    """Labels as numbers or text, so that they can be sorted. A missing one is an error, and so are labels of several
    types."""
    if y.dtype.kind not in "fO":
        return y
    flat = y.reshape(-1).tolist()
    missing = sum(map(_is_missing, flat))
    if missing:
        raise ValueError(f"{what} lacks {missing:,} of {len(flat):,} labels. Expected one per sample")
    if y.dtype != object:
        return y
    kinds = {str if isinstance(label, str) else type(label) for label in flat}
    if len(kinds) > 1 or not all(issubclass(kind, str | bool | int | float | np.generic) for kind in kinds):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"{what} has labels of type {names}. Expected numbers only or text only")
    return np.array(flat).reshape(y.shape)


def _is_missing(label: object) -> bool:
    """None, NaN, and the like of pandas."""
    return (
        label is None or type(label).__name__ in ("NAType", "NaTType") or (isinstance(label, float) and label != label)
    )


def _numbers(name: str, column: np.ndarray) -> np.ndarray:
    """A column of numbers, or of lists of numbers that are equally long."""
    if column.dtype == object and len(column) and all(isinstance(cell, list | np.ndarray) for cell in column):
        lengths = {np.shape(cell) for cell in column}
        if len(lengths) > 1:
            raise ValueError(f"column {name!r} holds lists of several lengths. Expected one length: pad or cut them")
        column = np.stack(list(column))
    if column.dtype.kind not in "biuf":
        held = type_name(column.flat[0]) if column.dtype == object and column.size else str(column.dtype)
        raise ValueError(
            f"column {name!r} holds {held}. Expected numbers: encode it, leave it out of features, or name it as label"
        )
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        raise ValueError(f"column {name!r} has values that are missing or not finite. Expected finite numbers")
    return column


def _label_columns(found: Sequence[str], columns: Columns) -> tuple[str, ...]:
    if columns.label is not None:
        return (columns.label,) if isinstance(columns.label, str) else tuple(columns.label)
    usual = [name for name in LABELS if name in found]
    if not usual:
        raise ValueError(f"no column is called label or y. Expected label=... with one of {_shown(found)}")
    return (usual[0],)


def _check_there(found: Mapping[str, object], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"there is no column {missing[0]!r}. Expected one of {_shown(list(found))}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
