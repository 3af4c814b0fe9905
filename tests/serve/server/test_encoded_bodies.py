"""Encoded bodies that cannot be are refused with a reason."""

from pathlib import Path

import numpy as np
import pytest

from polytempo_client.protocol.bodies import entry_of, make_body
from polytempo_client.protocol.framing import Buffer
from support.serving import hosted, refused


def encoded(**arrays: np.ndarray) -> list[Buffer]:
    return make_body(tuple(entry_of(name, array) for name, array in arrays.items()), list(arrays.values()))


def halves(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float16)


EXPONENT = np.zeros(1, np.int32)
RUBBISH: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "Encoding 'zip' is not known": ("zip", {"values": halves(1)}),
    "Encoding 'topk:0000000000": ("topk:" + "0" * 10_000, {"values": halves(1)}),
    "Encoding 'topk:9'": ("topk:9", {"values": halves(1)}),
    "values is missing": ("fp16", {}),
    "have 5 and 1 entries; expected 6 and 1": ("fp16", {"values": halves(*range(5)), "exponent": EXPONENT}),
    "the exponent is 128": ("fp16", {"values": halves(*range(6)), "exponent": EXPONENT + 128}),
    "holds NaN or Inf": ("fp16", {"values": halves(*[float("nan")] * 6), "exponent": EXPONENT}),
    "its distance from the start": ("fp16", {"values": halves(*[60000] * 6), "exponent": EXPONENT + 3}),
    "'weight' is none of the model's": (
        "fp16",
        {"values": halves(*range(6)), "exponent": EXPONENT, "weight": np.zeros((2, 2), np.float32)},
    ),
    "gaps lead to entry 4294967294": (
        "topk:0.1",
        {"values": halves(1), "exponent": EXPONENT, "gaps": np.array([2**32 - 2], np.uint32)},
    ),
    "gaps has 7 entries": (
        "topk:0.1",
        {"values": halves(*range(7)), "exponent": EXPONENT, "gaps": np.zeros(7, np.uint16)},
    ),
}


@pytest.mark.parametrize("reason", RUBBISH)
def test_an_encoded_body_that_cannot_be_is_refused_with_a_reason(tmp_path: Path, reason: str) -> None:
    name, arrays = RUBBISH[reason]
    with hosted(tmp_path) as served:
        served.hello(0)
        served.ready(0)
        before = served.digest()
        head, _ = served.pushed(0, encoding=name)
        assert refused(served.ask(0, head, encoded(**arrays)), reason)
        assert served.digest() == before


def test_a_number_too_large_for_float32_is_refused(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        served.hello(0)
        served.ready(0)
        head, _ = served.pushed(0, encoding="fp16")
        body = encoded(values=halves(*[60000] * 6), exponent=EXPONENT + 127)
        assert refused(served.ask(0, head, body), "NaN or Inf")


@pytest.mark.parametrize(
    ("said", "reason"),
    [({"accuracy": 1.5}, "accuracy is 1.5"), ({"accuracy": float("nan")}, "nan"), ({"loss": float("inf")}, "inf")],
)
def test_a_score_that_is_none_is_refused(tmp_path: Path, said: dict[str, float], reason: str) -> None:
    with hosted(tmp_path) as served:
        served.hello(0)
        served.ready(0)
        assert refused(served.push(0, **said), reason)
        served.push(0, accuracy=0.75, loss=0.5)
        assert (served.host.service.members[0].accuracy, served.host.service.members[0].loss) == (0.75, 0.5)
