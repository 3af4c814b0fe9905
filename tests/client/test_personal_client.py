"""The personal rule for a device with a training loop of its own: what it starts from, hands in and uses, by hand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytempo.core.errors import UserError
from polytempo_client.keeping.own_memory import OwnMemory, Remembered
from polytempo_client.model.encodings import added, parse_encoding
from polytempo_client.model.schema import Schema
from polytempo_client.personal.jury import jury_key
from polytempo_client.personal.rule import ENOUGH_SOLO_TASKS, SOLO_TASKS, ClientMemory
from polytempo_client.personal.told import TUTTI, JuryScores, Personal
from polytempo_client.protocol import wire_pb2 as pb
from polytempo_client.protocol.bodies import entries_of, make_body
from polytempo_client.protocol.personal import personal_of
from polytempo_client.protocol.tasks import Model, Task, Tensors, model_of, task_of
from polytempo_client.updates.own_rule import OwnRule, judged
from polytempo_client.updates.uploads import OwnUploads
from support.absence import HEAVY, without
from support.serving import running

SCHEMA = Schema(("w", "mean"), ((3,), (1,)), 3)
"""Three parameters and a buffer."""
X, Y = np.arange(200, dtype=np.float32).reshape(100, 2), np.arange(100) % 2
SERVED, OWN, AVERAGE = np.float32([1, 1, 1, 5]), np.float32([3, 3, 3, 7]), np.float32([2, 2, 2, 6])


def vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def body_of(*vectors: tuple[str, np.ndarray]) -> bytearray:
    entries = sum((entries_of(SCHEMA, prefix) for prefix, _ in vectors), ())
    return bytearray(b"".join(make_body(entries, [weights for _, weights in vectors])))


def a_task(number: int = 4, mask: np.ndarray | None = None, tutti: bool = False, **given: Any) -> Task:
    """Of a server that took the result of task 3."""
    vectors = [("", SERVED), *([] if mask is None else [("mask/", mask)])]
    personal = pb.Personal(rule="jury", parameters={TUTTI: 1.0} if tutti else {})
    message = pb.Task(number=number, answered=3, personal=personal, **given)
    return task_of(message, body_of(*vectors), SCHEMA)


def a_rule(memory: bool = True) -> OwnRule:
    """Of a client with a model of its own."""
    kept = OwnMemory()
    if memory:
        kept.prepare(3, Remembered(ClientMemory(OWN, AVERAGE)))
    rule = OwnRule(kept)
    rule.deal(X, Y, jury_key(0, 0), a_task())
    return rule


def much_better(tensors: Tensors, rows: np.ndarray) -> np.ndarray:
    """The more of the served model, the worse: up to 0.15 per row."""
    share = float((2 - tensors["w"][0]) / (2 - 1))  # of the served model in the mixture with the average
    return np.full((len(rows), 2), np.clip(0.15 * share, 0, 1))


BETA = 20 * 0.15**2


# What it starts from and hands in.


def test_a_client_starts_from_a_mixture_and_hands_in_its_progress_from_what_it_was_served() -> None:
    rule, task = a_rule(), a_task()
    start = rule.start(task, much_better, None, SCHEMA)
    assert start == pytest.approx(SERVED + BETA * (OWN - SERVED))
    trained = start + vector(0.5, 0, -1, 2)
    out = rule.result(task, SCHEMA.views(trained), None, SCHEMA)
    assert out.tensors["w"] == pytest.approx([1.5, 1, 0])
    assert np.array_equal(out.tensors["mean"], trained[3:])  # a buffer goes as it is
    assert out.kept is not None
    assert out.kept.memory is not None
    assert np.array_equal(out.kept.memory.own, trained)
    assert np.array_equal(out.kept.memory.average, AVERAGE + np.float32(0.5) * (trained - AVERAGE))
    assert len(out.kept.memory.known) == len(rule.deal(X, Y, jury_key(0, 0), a_task()))


def test_the_report_is_what_the_jury_said_of_four_mixtures() -> None:
    rule, task = a_rule(), a_task()
    rule.start(task, much_better, None, SCHEMA)
    report = rule.result(task, task.tensors, None, SCHEMA).jury
    rows = len(X) - len(rule.deal(X, Y, jury_key(0, 0), a_task()))
    assert 0 < rows < 25
    assert isinstance(report, JuryScores)
    assert (report.rows, report.changed) == (rows, False)
    assert report.errors == report.briers == pytest.approx([0.15 * share * rows for share in (0, 0.25, 0.5, 1)])


def test_whoever_writes_into_the_start_does_not_change_the_clients_own_model() -> None:
    rule, task = a_rule(), a_task()
    start = rule.start(task, lambda tensors, rows: 5 * much_better(tensors, rows), None, SCHEMA)  # all its own
    assert np.array_equal(start, OWN)
    start += 1
    assert np.array_equal(OWN, vector(3, 3, 3, 7))


@pytest.mark.parametrize("own_is_better", [True, False])
def test_after_a_rehearsal_a_client_has_the_better_of_its_own_and_what_it_trained(own_is_better: bool) -> None:
    def score(tensors: Tensors, rows: np.ndarray) -> np.ndarray:
        of_own, of_others = (0.1, 0.2) if own_is_better else (0.2, 0.1)
        return np.full((len(rows), 2), of_own if tensors["w"][0] == OWN[0] else of_others)

    rule, task = a_rule(), a_task(tutti=True)
    start = rule.start(task, score, None, SCHEMA)
    assert np.array_equal(start, SERVED)
    out = rule.result(task, SCHEMA.views(start + 1), None, SCHEMA)
    assert np.array_equal(out.tensors["w"], SERVED[:3] + 1)
    assert out.kept is not None
    assert out.kept.memory is not None
    assert np.array_equal(out.kept.memory.own, OWN if own_is_better else SERVED + 1)
    assert np.array_equal(out.kept.memory.average, AVERAGE if own_is_better else (AVERAGE + SERVED + 1) / 2)


def test_only_coordinates_that_the_task_trains_are_mixed() -> None:
    mask = vector(1, 0, 1, 0)
    rule, task = a_rule(), a_task(mask=mask)
    start = rule.start(task, much_better, None, SCHEMA)
    assert np.array_equal(start[mask == 0], SERVED[mask == 0])
    assert start[0] == start[2] == pytest.approx(1 + 2 * BETA)
    out = rule.result(task, {"w": start[:3] + vector(1, 0, 1)}, None, SCHEMA)  # what is not trained may be left out
    assert list(out.tensors) == ["w"]
    assert out.tensors["w"] == pytest.approx([2, 1, 2])


def test_after_a_refresh_the_start_and_the_update_count_from_the_model_sent() -> None:
    rule, task, asked = a_rule(), a_task(), []

    def score(tensors: Tensors, rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        return much_better(tensors, rows)

    rule.start(task, score, None, SCHEMA)
    refreshed = vector(10, 10, 10, 50)
    task.news.append(model_of(pb.Model(number=9, version=1), body_of(("", refreshed)), SCHEMA))
    task.refreshes()
    start = rule.start(task, score, None, SCHEMA)
    assert start == pytest.approx(refreshed + BETA * (OWN - refreshed))
    assert len(asked) == 4  # the jury is asked once per task
    out = rule.result(task, SCHEMA.views(start + 1), None, SCHEMA)
    assert out.tensors["w"] == pytest.approx([11, 11, 11])
    assert task.base == 9


@pytest.mark.parametrize("encoding", ["fp16", "topk:0.5"])
def test_encodings_encode_the_difference_to_the_served_model(encoding: str) -> None:
    rule, task = a_rule(), a_task()
    start = rule.start(task, much_better, None, SCHEMA)
    out = rule.result(task, SCHEMA.views(start + vector(0.5, 0, -1, 0)), None, SCHEMA)
    uploads = OwnUploads(encoding)
    uploads.agree(encoding)
    upload = uploads.make(task, out.tensors, None, SCHEMA)
    arrived = added(SERVED, parse_encoding(encoding).decode(upload.arrays, 4), None)
    buffer = SERVED[3] + BETA * (OWN[3] - SERVED[3])
    expected = [1.5, 1, 0, buffer] if encoding == "fp16" else [1, 1, 0, buffer]  # the two largest of four
    assert arrived == pytest.approx(expected, abs=1e-3)


def test_a_client_without_a_model_of_its_own_hands_in_what_it_trained_and_remembers_it() -> None:
    rule, task = a_rule(memory=False), a_task()
    start = rule.start(task, much_better, None, SCHEMA)
    assert np.array_equal(start, SERVED)
    out = rule.result(task, SCHEMA.views(start + 1), None, SCHEMA)
    assert (np.array_equal(out.tensors["w"], start[:3] + 1), out.jury) == (True, None)
    assert out.kept is not None
    assert out.kept.memory is not None
    assert np.array_equal(out.kept.memory.average, start + 1)


def test_with_candidates_a_client_starts_from_the_one_that_it_chose() -> None:
    other = vector(4, 4, 4, 8)
    message = pb.Task(number=4, answered=3, personal=pb.Personal(rule="jury"), candidate_use="best")
    body = body_of(("", SERVED), ("candidate/0/", SERVED), ("candidate/1/", other))
    rule, task = a_rule(), task_of(message, body, SCHEMA)
    start = rule.start(task, much_better, 1, SCHEMA)
    assert np.array_equal(start, other)
    assert np.array_equal(rule.result(task, SCHEMA.views(start + 1), 1, SCHEMA).tensors["w"], other[:3] + 1)


def test_a_result_that_diverged_is_not_remembered() -> None:
    rule, task = a_rule(), a_task()
    rule.start(task, much_better, None, SCHEMA)
    out = rule.result(task, SCHEMA.views(vector(np.nan, 0, 0, 0)), None, SCHEMA)
    assert out.kept is not None
    assert out.kept.memory is not None
    assert np.array_equal(out.kept.memory.own, OWN)


def test_a_task_that_was_not_begun_by_the_rule_goes_as_it_is() -> None:
    task = a_task()
    assert a_rule().result(task, task.tensors, None, SCHEMA) == (task.tensors, None, None)


def test_a_client_that_has_not_dealt_its_rows_or_does_not_know_the_rule_is_told_so() -> None:
    with pytest.raises(UserError, match=r"call deal\(x, y\)"):
        OwnRule(OwnMemory()).start(a_task(), much_better, None, SCHEMA)
    task = a_task()
    task.ordered.personal.rule = "other"
    with pytest.raises(UserError, match="'other', which this client does not know"):
        a_rule().start(task, much_better, None, SCHEMA)


# What it uses.


def pulled(pool: JuryScores | None = None) -> Model:
    message = pb.Model(answered=3, personal=pb.Personal(rule="jury"))
    if pool is not None:
        message.personal.pool.CopyFrom(pb.JuryScores(rows=1, errors=pool.errors, briers=pool.briers))
    return model_of(message, body_of(("", SERVED)), SCHEMA)


def test_a_client_uses_the_mixture_that_its_jury_prefers_and_the_pool_has_a_say() -> None:
    rule = a_rule()
    assert rule.used(pulled(), much_better, SCHEMA)["w"] == pytest.approx([2, 2, 2])
    for_served = JuryScores(1, (1.0, 1.0, 1.0, 0.0), (1.0, 1.0, 1.0, 0.0))
    assert rule.used(pulled(for_served), much_better, SCHEMA)["w"] == pytest.approx([1, 1, 1])


def test_a_pool_of_another_form_is_left_out() -> None:
    for errors, rows in (((0.0,) * 3, 1), ((0.0,) * 4, 0), ((), 1)):
        message = pb.Model(
            personal=pb.Personal(rule="jury", pool=pb.JuryScores(rows=rows, errors=errors, briers=errors))
        )
        assert personal_of(message) == Personal()


def test_a_client_without_a_model_of_its_own_uses_the_served_one() -> None:
    assert a_rule(memory=False).used(pulled(), much_better, SCHEMA)["w"] == pytest.approx([1, 1, 1])


def test_scores_of_probabilities_are_errors_and_half_brier_scores() -> None:
    assert judged(np.array([[1.0, 0.0], [0.75, 0.25]]), np.array([0, 1])).tolist() == [[0.0, 0.0], [1.0, 0.5625]]


@pytest.mark.parametrize(
    ("probabilities", "labels", "why"),
    [
        ([[0.5, 0.5]], [0, 1], "a row of probabilities for each label"),
        ([0.5, 0.5], [0, 1], "a row of probabilities for each label"),
        ([[0.5, 0.5]], [2], "got the label 2, and there are probabilities for labels 0 to 1"),
        ([[0.5, 0.5]], [-1], "got the label -1"),
        ([[3.0, -1.0]], [0], "take the softmax of outputs first"),
        ([[2.0, -1.0]], [0], "take the softmax of outputs first"),
    ],
)
def test_what_is_no_probabilities_and_labels_is_refused(probabilities: list[Any], labels: list[int], why: str) -> None:
    with pytest.raises(UserError, match=why):
        judged(np.array(probabilities), np.array(labels))


def test_scores_of_another_shape_are_refused() -> None:
    with pytest.raises(UserError, match=r"has to return an error and half a Brier score for each of \d+ rows"):
        a_rule().start(a_task(), lambda tensors, rows: np.zeros(len(rows)), None, SCHEMA)


@pytest.mark.parametrize("impossible", [7.0, -1.0, np.inf])
def test_scores_beyond_0_and_1_are_refused(impossible: float) -> None:
    with pytest.raises(UserError, match="numbers from 0 to 1"):
        a_rule().start(a_task(), lambda tensors, rows: np.full((len(rows), 2), impossible), None, SCHEMA)


def test_a_jury_is_the_same_for_rows_of_any_type() -> None:
    rule, x = a_rule(), np.random.default_rng(0).normal(size=(80, 2)).astype(np.float32)
    dealt = [rule.deal(np.asarray(x, kind), np.zeros(80), 5, None).tolist() for kind in (np.float32, np.float64)]
    assert dealt[0] == dealt[1] == rule.deal(x.tolist(), np.zeros(80), 5, None).tolist()


def test_rows_and_labels_have_to_be_as_many_and_some() -> None:
    with pytest.raises(UserError, match="x has 4 rows, y 3"):
        a_rule().deal(np.zeros((4, 2)), np.zeros(3), 0, None)
    with pytest.raises(UserError, match="got no rows"):
        a_rule().deal(np.zeros((0, 2)), np.zeros(0), 0, None)


# On a device.

SCRIPT = """
import json
import numpy as np
from polytempo import Client

x = np.random.default_rng(0).normal(size=(80, 2)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int64)

def score(tensors, rows):
    outputs = x[rows] @ tensors["weight"].T + tensors["bias"]
    wrong = (outputs.argmax(1) != y[rows]).astype(float)
    return np.stack([wrong, wrong], 1)

with Client({address!r}, {token!r}, insecure=True, keep={keep!r}) as client:
    rows = client.deal(x, y)

    def train(task):
        start = client.start(task, score)
        return {{"weight": start["weight"] + np.float32([[-1, 0], [1, 0]]), "bias": start["bias"]}}, len(rows)

    client.run(train, updates=3)
    used = client.use(score, timeout=30)
print(json.dumps([len(rows), used["weight"].shape, sorted({heavy!r} & sys.modules.keys())]))
"""


def test_a_device_follows_the_rule_with_numpy_and_grpc_only(tmp_path: Path) -> None:
    with running(tmp_path, personal=True, parameters={"mixing": 0.05}) as server:
        given = {"address": server.address, "token": server.token(0), "heavy": HEAVY, "keep": str(tmp_path / "task")}
        script = without(HEAVY) + SCRIPT.format(**given)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        rows, shape, heavy = json.loads(done.stdout)
        assert (shape, heavy) == ([2, 2], [])
        assert 60 <= rows < 80
        assert server.host.service.updates == 3
        assert list(server.host.service.strategy.reports) == [0]
    assert (tmp_path / "task.memory").exists()


def test_a_soloist_has_all_rows_to_train_on_and_goes_on_from_its_own() -> None:
    rule, task = a_rule(), a_task()
    rule.memory.prepare(3, Remembered(ClientMemory(OWN, AVERAGE, numbers={SOLO_TASKS: ENOUGH_SOLO_TASKS})))
    assert rule.deal(X, Y, jury_key(0, 0), task).tolist() == list(range(len(X)))
    assert np.array_equal(rule.start(task, much_better, None, SCHEMA), OWN)
    out = rule.result(task, task.tensors, None, SCHEMA)
    assert out.kept is not None
    assert out.kept.memory is not None
    assert len(out.kept.memory.known) == len(X)
    assert out.kept.memory.is_soloist


def test_a_soloist_that_was_dealt_rows_for_any_task_keeps_its_jury() -> None:
    rule, task = a_rule(), a_task()
    rule.memory.prepare(3, Remembered(ClientMemory(OWN, AVERAGE, numbers={SOLO_TASKS: ENOUGH_SOLO_TASKS})))
    rows = rule.deal(X, Y, jury_key(0, 0), None)
    rule.start(task, much_better, None, SCHEMA)
    out = rule.result(task, task.tensors, None, SCHEMA)
    assert out.kept is not None
    assert out.kept.memory is not None
    assert len(out.kept.memory.known) == len(rows) < len(X)
