"""Every refusal: nothing bad gets past the checks, and nobody is refused without a reason."""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from polytempo.core.events import Update
from polytempo.core.orders import Candidates, Train
from polytempo.core.state import digest
from polytempo.serve.server.operations import Operations
from polytempo.strategies import Strategy
from polytempo_client.protocol.wire_pb2 import Head, Pull, Push, Ready
from support.serving import FakeSession, Hosted, hosted, join_all, refused, restarted

INF, NAN = float("inf"), float("nan")


class Offers(Strategy):
    """Two candidates."""

    def order_for(self, client: int, now: float) -> Train:
        model = self.model.weights
        return self.train(client, self.model, candidates=Candidates((model, model + 1), (self.model.version, -1)))


class BiasOnly(Strategy):
    """Trains and takes one tensor."""

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.model, trainable=("bias",))

    def updated(self, update: Update, now: float) -> None:
        self.model.replace(update.weights)


class Listens(Strategy):
    """Keeps the answers."""

    def setup(self) -> None:
        self.heard: list[dict[str, Any]] = []

    def updated(self, update: Update, now: float) -> None:
        self.heard.append(update.answers)


def changed(**said: Any) -> Callable[[Hosted], tuple[Head, list[Any]]]:
    return lambda served: served.pushed(0, **said)


def named(**tensors: Any) -> Callable[[Hosted], tuple[Head, list[Any]]]:
    fitting = {"bias": np.zeros(2, np.float32), "weight": np.zeros((2, 2), np.float32)}
    kept = {name: array for name, array in {**fitting, **tensors}.items() if array is not None}
    return lambda served: served.pushed(0, tensors=kept)


def bad_number(number: float) -> Callable[[Hosted], tuple[Head, list[Any]]]:
    return lambda served: served.pushed(0, weights=torch.tensor([0.0, 0.0, number, 0.0, 0.0, 0.0]))


def garbled_body(served: Hosted) -> tuple[Head, list[Any]]:
    head, body = served.pushed(0)
    return head, [b"".join(body)[:-3]]


def deep(levels: int) -> str:
    return '{"dict":[["a",' + "[" * levels + "]" * levels + "]]}"


def answering(value: Any) -> Callable[[Hosted], tuple[Head, list[Any]]]:
    """Answers as a stranger may write them."""
    text = value if isinstance(value, str) else json.dumps(value)

    def make(served: Hosted) -> tuple[Head, list[Any]]:
        head, body = served.pushed(0)
        head.push.answers = text
        return head, body

    return make


REFUSALS: dict[str, tuple[Callable[[Hosted], tuple[Head, list[Any]]], str]] = {
    "no task": (changed(task=0), "task 0 is not yours"),
    "unknown task": (changed(task=99), "task 99 is not yours"),
    "another's task": (lambda served: served.pushed(0, task=served.task(1)), "is not yours"),
    "wrong base": (changed(base=99), "started from model 99"),
    "another's base": (lambda served: served.pushed(0, base=served.task(1)), "started from model"),
    "no samples": (changed(samples=0), "it claims 0 samples"),
    "too many samples": (changed(samples=10**9 + 1), "1000000001, exceeds most_samples (1000000000)"),
    "too many steps": (changed(steps=5), "it claims 5 steps, and its task has 4"),
    "missing tensor": (named(bias=None), "'bias' is missing"),
    "unknown tensor": (named(extra=np.zeros(1, np.float32)), "'extra' is none of the model's"),
    "stray answer": (named(**{"answer/7": np.zeros(1, np.float32)}), "'answer/7' is none of the model's"),
    "dtype": (named(bias=np.zeros(2)), "dtype float64; expected float32"),
    "shape": (named(bias=np.zeros((1, 2), np.float32)), "shape [1, 2]; expected [2]"),
    "nan": (bad_number(NAN), "NaN or Inf"),
    "inf": (bad_number(INF), "NaN or Inf"),
    "too far": (bad_number(1e4), "exceeds 364.4 (zero_bound 1e+06 / (initial norm 3.742)^6)"),
    "sum overflows": (bad_number(3e38), "its distance from the start, inf, exceeds"),
    "candidate not offered": (changed(chosen=0), "candidate 0 was not offered"),
    "cut body": (garbled_body, "safetensors"),
    "no body": (lambda served: (served.pushed(0)[0], []), "is missing"),
    "garbled answers": (answering("{"), "cannot be read"),
    "answers of objects": (
        answering({"object": "polytempo.core.orders.Report", "state": {"client": 0}}),
        "cannot be read",
    ),
    "objects inside": (answering({"dict": [["a", {"object": "x", "state": {}}]]}), "cannot be read"),
    "again": (answering({"dict": [["a", {"again": 0}]]}), "cannot be read"),
    "no such tensor": (answering({"dict": [["a", {"tensor": 0}]]}), "cannot be read"),
    "huge deque": (answering({"dict": [["a", {"deque": [], "maxlen": 10**30}]]}), "cannot be read"),
    "unhashable": (answering({"dict": [[[], 1]]}), "cannot be read"),
    "huge number": (answering('{"dict":[["a",' + "9" * 5000 + "]]}"), "cannot be read"),
    "answers no table": (answering([1]), "no table of names"),
    "answers with odd names": (answering({"dict": [[1, 2]]}), "no table of names"),
    "nan answer": (answering({"dict": [["a", [NAN]]]}), "NaN or Inf"),
    "nan as a name": (answering({"dict": [["a", {"dict": [[NAN, 1]]}]]}), "NaN or Inf"),
    "deep answer": (answering(deep(200)), "levels deep"),
    "deeper answer": (answering(deep(450)), ""),
    "deepest answer": (answering(deep(100_000)), "cannot be read"),
    "one tensor many times": (
        lambda served: served.pushed(0, answers={"a": [torch.zeros(100_000)] * 11}),
        "the answers hold 110",
    ),
    "endless header": (
        lambda served: (served.pushed(0)[0], [struct.pack("<Q", 2 << 20), b" " * (2 << 20)]),
        "a header of 2097152 bytes; expected at most 1048576",
    ),
    "nan in an answer's tensor": (
        lambda served: served.pushed(0, answers={"a": torch.tensor([NAN])}),
        "an answer holds NaN or Inf",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_bad_update_is_refused_with_a_reason_and_changes_nothing(case: str, tmp_path: Path) -> None:
    make, reason = REFUSALS[case]
    with hosted(tmp_path) as served:
        join_all(served)
        before, written = served.digest(), served.host.journal.last
        assert refused(served.ask(0, *make(served)), reason)
        assert served.digest() == before
        assert served.host.journal.last == written
        assert served.shared.meters.refusals["push"] == 1
        assert served.push(0).WhichOneof("kind") == "task"


def test_a_choice_among_candidates_is_checked(tmp_path: Path) -> None:
    with hosted(tmp_path, "test_checks:Offers") as served:
        join_all(served, 1)
        before = served.digest()
        assert refused(served.push(0, chosen=2, weights=torch.zeros(6)), "candidate 2 was not offered")
        assert refused(served.push(0), "started from model")
        assert served.digest() == before
        assert refused(served.push(0, chosen=1), "the answer to 'losses' is missing")
        assert served.digest() == before
        assert served.push(0, chosen=1, answers={"losses": [2.0, 1.0]}).WhichOneof("kind") == "task"


def test_what_a_task_does_not_train_may_be_left_out_and_is_not_taken(tmp_path: Path) -> None:
    with hosted(tmp_path, "test_checks:BiasOnly") as served:
        join_all(served, 1)
        before = served.host.service.strategy.model.weights.clone()
        ones = {"bias": np.ones(2, np.float32), "weight": np.full((2, 2), 1e9, np.float32)}
        for tensors in ({"bias": ones["bias"]}, ones):
            assert served.push(0, tensors=tensors).WhichOneof("kind") == "task"
        after = served.host.service.schema.views(served.host.service.strategy.model.weights)
        assert torch.equal(after["weight"], served.host.service.schema.views(before)["weight"])
        assert torch.equal(after["bias"], torch.ones(2))


@pytest.mark.parametrize("head", [Head(ready=Ready()), Head(push=Push()), Head(pull=Pull())])
def test_whoever_has_not_said_hello_is_refused(head: Head, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        before = served.digest()
        served.sessions[0] = FakeSession(0)
        assert refused(served.ask(0, head), "say hello first")
        served.sessions[7] = FakeSession(7)
        assert refused(served.ask(7, head), "say hello first")
        assert served.digest() == before
        assert sum(served.shared.meters.refusals.values()) == 2


def test_whoever_has_left_is_refused_until_it_says_hello(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        push = served.pushed(0)
        served.leave(0)
        assert refused(served.ask(0, *push), "say hello first")
        served.hello(0)
        assert refused(served.ask(0, *push), "withdrawn")


def test_answers_of_all_plain_kinds_reach_the_strategy_and_survive_a_crash(tmp_path: Path) -> None:
    said = {"a": torch.arange(3), "b": [1, 2.5, None, True, "text"], "c": {"d": (1, np.float64(2.0))}}
    with hosted(tmp_path, "test_checks:Listens") as served:
        join_all(served, 1)
        served.push(0, answers=said)
        (heard,) = served.host.service.strategy.heard
        assert digest(heard) == digest(said)
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


# How far an update may lead.


ZEROS = {"bias": np.zeros(2, np.float32), "weight": np.zeros((2, 2), np.float32)}


def test_the_norm_bound_does_not_follow_the_model_upwards(tmp_path: Path) -> None:
    with hosted(tmp_path, parameters={"mixing": 1.0, "staleness": "constant"}, norm_bound=100.0) as served:
        join_all(served, 1)
        for _ in range(5):
            assert served.push(0, by=150.0).WhichOneof("kind") == "task"  # 367 of at most 374
        norm = float(served.host.service.strategy.model_for(0).norm())
        assert norm > 4 * 374
        assert refused(served.push(0, by=160.0), "exceeds 374.2 (norm_bound 100 x initial norm 3.742)")


@pytest.mark.parametrize("length", [331.7, 46_645.0])
def test_a_linear_model_that_starts_from_zeros_may_have_coefficients_of_any_usual_size(
    tmp_path: Path, length: float
) -> None:
    save_file(ZEROS, tmp_path / "zeros.safetensors")
    with hosted(tmp_path, init=tmp_path / "zeros.safetensors") as served:
        join_all(served, 1)
        fitted = torch.full((6,), length / 6**0.5)
        assert served.push(0, weights=fitted).WhichOneof("kind") == "task"
        assert refused(served.push(0, weights=1e3 * fitted if length > 1e4 else 1e5 * fitted), "zero_bound 1e+06")


@pytest.mark.parametrize("norm", [0.99, 1.01, 1.5, 2.5])
def test_a_linear_model_that_starts_near_zeros_may_have_coefficients_in_the_hundreds(
    tmp_path: Path, norm: float
) -> None:
    short = {name: array + np.float32(norm / 6**0.5) for name, array in ZEROS.items()}
    save_file(short, tmp_path / "short.safetensors")
    with hosted(tmp_path, init=tmp_path / "short.safetensors") as served:
        join_all(served, 1)
        assert served.push(0, weights=torch.full((6,), 400.0)).WhichOneof("kind") == "task"


@given(st.floats(0, 100), st.floats(0, 1e-3))
def test_the_norm_bound_has_no_cliff(norm: float, more: float) -> None:
    here, there = (Operations().bound(one).distance for one in (norm, norm + more))
    assert there == pytest.approx(here, rel=0.01, abs=0.01)


@given(st.floats(5.2, 1e6))
def test_from_a_usual_networks_norm_on_the_bound_is_a_multiple_of_it(norm: float) -> None:
    assert Operations().bound(norm)[:2] == (10 * norm, "norm_bound")


REASONS = {
    "distance": ({"by": 1e4}, r"2.449e\+04, exceeds 364.4 .*raise zero_bound in service.toml."),
    "samples": ({"samples": 1001}, "1001, exceeds most_samples .* raise most_samples in service.toml."),
    "steps": ({"steps": 5}, "claims 5 steps, and its task has 4 .* --epochs or --steps."),
}


@pytest.mark.parametrize("case", REASONS)
def test_a_refusal_that_a_setting_decides_names_the_setting_its_file_and_what_to_do(case: str, tmp_path: Path) -> None:
    given, said = REASONS[case]
    with hosted(tmp_path, most_samples=1000) as served:
        join_all(served, 1)
        assert re.search(rf"^Update rejected: .*{said}", served.push(0, **given).refusal.reason)
