"""Differences in fewer bytes: what arrives of them, and what is kept for the next one."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polytempo.core.errors import UserError
from polytempo.core.model.vectors import half
from polytempo_client.model.encodings import Encoding, EncodingError, ErrorFeedback, added, nbytes_of, parse_encoding
from polytempo_client.streams import stream

FP16 = parse_encoding("fp16")
EXACT_TO = 2.0**-11
"""Relative error of a float16 that is not subnormal."""


def vectors(largest: float) -> st.SearchStrategy[np.ndarray]:
    numbers = st.floats(-largest, largest, width=32)
    return arrays(np.float32, st.integers(1, 60), elements=numbers)


def normal(size: int, name: str = "", scale: float = 1.0) -> np.ndarray:
    return stream(0, f"test {name}").normal(0, scale, size).astype(np.float32)


def sent(encoding: Encoding, difference: np.ndarray) -> np.ndarray:
    return encoding.decode(encoding.encode(difference), difference.size)


@given(vectors(2.0**100))
def test_half_precision_loses_at_most_its_last_bit(difference: np.ndarray) -> None:
    error = np.abs(sent(FP16, difference) - difference)
    # Entries more than 2**28 times smaller than the largest lose more of themselves, but nothing to speak of.
    floor = max(float(np.abs(difference).max()) * 2.0**-39, 2.0**-149)
    assert bool((error <= np.abs(difference) * EXACT_TO + floor).all())


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e8, 1e30])
def test_small_and_large_differences_neither_underflow_nor_overflow(scale: float) -> None:
    difference = normal(500, scale=scale)
    assert np.allclose(sent(FP16, difference), difference, rtol=EXACT_TO, atol=0)


@given(arrays(np.uint32, st.integers(1, 60), elements=st.integers(0, 2**32 - 1)))
def test_half_precision_has_the_bits_of_torch(bits: np.ndarray) -> None:
    difference = bits.view(np.float32)
    encoded = FP16.encode(difference)
    scale = 2.0 ** -float(encoded["exponent"][0])
    expected = (torch.from_numpy(difference) * scale).half().numpy()
    assert np.array_equal(encoded["values"], expected, equal_nan=True)
    assert np.array_equal(np.signbit(encoded["values"]), np.signbit(expected))


@given(vectors(1e6), st.floats(0.001, 1.0))
def test_top_k_sends_the_largest_entries_and_nothing_else(difference: np.ndarray, share: float) -> None:
    encoding = Encoding("topk", share)
    encoded, arrived = encoding.encode(difference), sent(encoding, difference)
    count = math.ceil(share * difference.size)
    places = np.cumsum(encoded["gaps"].astype(int) + 1) - 1
    left_out = np.setdiff1d(np.arange(difference.size), places)
    assert len(places) == count
    assert np.array_equal(arrived[places], sent(FP16, difference[places]))
    assert not arrived[left_out].any()
    assert np.abs(difference[left_out]).max(initial=0.0) <= np.abs(difference[places]).min()


def test_of_equal_entries_the_first_are_sent() -> None:
    assert sent(parse_encoding("topk:0.5"), row(1.0, -2.0, 2.0, 2.0, dtype=np.float32)).tolist() == [0, -2, 2, 0]


def test_wide_gaps_are_sent_too() -> None:
    difference = np.zeros(200_000, np.float32)
    difference[[3, 150_000]] = 1.0, -0.5
    assert np.array_equal(sent(Encoding("topk", 1e-5), difference), difference)


@given(st.integers(1, 5000), st.sampled_from(["fp16", "topk:0.01", "topk:0.5", "topk:1"]))
def test_the_number_of_bytes_is_known_beforehand(entries: int, words: str) -> None:
    encoding = parse_encoding(words)
    assert nbytes_of(encoding.encode(normal(entries))) == encoding.nbytes(entries)


@pytest.mark.parametrize("words", ["fp16", "topk:0.01"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_is_sent_as_such(words: str, bad: float) -> None:
    difference = normal(300)
    difference[7] = bad
    assert not np.isfinite(sent(parse_encoding(words), difference)).all()


@pytest.mark.parametrize("words", ["fp16", "topk:0.05"])
def test_with_error_feedback_everything_arrives_in_the_end(words: str) -> None:
    feedback = ErrorFeedback(parse_encoding(words))
    produced = [normal(400, f"{i}") for i in range(30)]
    arrived = np.zeros(400, np.float32)
    for difference in produced:
        encoded, left = feedback.encode(difference)
        feedback.keep(left)
        arrived += feedback.encoding.decode(encoded, 400)
    assert feedback.residual is not None
    assert np.allclose(arrived + feedback.residual, np.sum(produced, 0), atol=1e-4)
    assert words == "fp16" or np.linalg.norm(feedback.residual) > 1.0


def test_what_was_not_taken_is_neither_sent_nor_held_back() -> None:
    feedback = ErrorFeedback(parse_encoding("topk:0.1"))
    _, left = feedback.encode(normal(50, "taken"))
    feedback.keep(left)
    first, _ = feedback.encode(normal(50, "refused"))
    again, _ = feedback.encode(normal(50, "refused"))
    assert feedback.residual is left
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_entries_that_are_not_trained_are_not_sent_and_what_is_left_of_them_stays() -> None:
    feedback = ErrorFeedback(FP16, row(0.5, 0.25, 0.0, dtype=np.float32))
    trained = np.array([True, False, True])
    encoded, left = feedback.encode(row(1.0, 9.0, 2.0, dtype=np.float32), trained)
    difference = FP16.decode(encoded, 2)
    assert added(np.ones(3, np.float32), difference, trained).tolist() == [2.5, 1.0, 3.0]
    assert left.tolist() == [0.0, 0.25, 0.0]


def row(*numbers: float, dtype: type = np.float16) -> np.ndarray:
    return np.array(numbers, dtype)


ONE = row(0, dtype=np.int32)
MALFORMED = {
    "values is missing": {"exponent": ONE, "gaps": row(0, dtype=np.uint16)},
    "gaps is missing": {"values": row(1), "exponent": ONE},
    "gaps is int64": {"values": row(1), "exponent": ONE, "gaps": row(0, dtype=np.int64)},
    "values is float32": {"values": row(1, dtype=np.float32), "exponent": ONE, "gaps": row(0, dtype=np.uint16)},
    "values is float16 of shape": {"values": row(1).reshape(1, 1), "exponent": ONE, "gaps": row(0, dtype=np.uint16)},
    "have 2 and 1": {"values": row(1, 2), "exponent": ONE, "gaps": row(0, dtype=np.uint16)},
    "have 1 and 0": {"values": row(1), "exponent": ONE[:0], "gaps": row(0, dtype=np.uint16)},
    "the exponent is 999": {"values": row(1), "exponent": row(999, dtype=np.int32), "gaps": row(0, dtype=np.uint16)},
    "lead to entry 4294967295": {"values": row(1), "exponent": ONE, "gaps": row(2**32 - 1, dtype=np.uint32)},
    "lead to entry 11": {"values": row(1, 2), "exponent": ONE, "gaps": row(9, 1, dtype=np.uint16)},
    "gaps has 11 entries": {"values": row(*range(11)), "exponent": ONE, "gaps": np.zeros(11, np.uint16)},
}


@pytest.mark.parametrize("problem", MALFORMED)
def test_arrays_that_are_no_difference_are_refused(problem: str) -> None:
    with pytest.raises(EncodingError, match=problem):
        parse_encoding("topk").decode(MALFORMED[problem], 10)


@pytest.mark.parametrize("words", ["", "fp8", "topk:", "topk:0", "topk:1.5", "topk:nan", "topk:x", "fp16:0.1", "TOPK"])
def test_an_encoding_that_is_not_known_is_an_error_that_names_those_that_are(words: str) -> None:
    with pytest.raises(UserError, match=r"Expected fp16, or topk:SHARE"):
        parse_encoding(words)


def test_the_usual_share_is_a_hundredth() -> None:
    assert parse_encoding("topk") == parse_encoding("topk:0.01") == Encoding("topk", 0.01)


def test_a_model_that_is_too_large_for_half_precision_stays_as_it_is() -> None:
    assert half(torch.tensor([1.0, 65504.0])).dtype == torch.float16
    assert half(torch.tensor([1.0, 65600.0])).tolist() == [1.0, 65600.0]
