"""The answers that ride with a push: JSON text, and the arrays that it refers to by number."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from polytempo_client.disk.packing import Packer, as_text


def pack_answers(answers: Mapping[str, Any]) -> tuple[str, list[np.ndarray]]:
    """Plain data, arrays and tensors as a push carries them."""
    packer = _AnswerPacker()
    return as_text(packer.pack(dict(answers))), packer.arrays


class _AnswerPacker(Packer):
    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._numbers: dict[int, int] = {}  # id of an array or tensor -> its number

    def _pack_other(self, value: object) -> Any:
        if isinstance(value, np.ndarray):
            return self._array("array", value, value)
        if hasattr(value, "detach") and hasattr(value, "numpy"):  # torch's, without torch
            return self._array("tensor", value, value.numpy())
        return super()._pack_other(value)

    def _array(self, kind: str, owner: object, array: np.ndarray) -> dict[str, Any]:
        if id(owner) not in self._numbers:
            self._numbers[id(owner)] = len(self.arrays)
            self.arrays.append(array)
        return {kind: self._numbers[id(owner)], "type": f"torch.{array.dtype}", "shape": list(array.shape)}
