"""Compression between a server and its clients: what is agreed, what travels, what arrives."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from polytempo.core.errors import UserError
from polytempo.core.orders import Candidates, Orders
from polytempo.serve.server import messages
from polytempo.serve.server.operations import Operations
from polytempo.strategies import Strategy
from polytempo_client.client import Client
from polytempo_client.model.encodings import Encodings, ErrorFeedback, parse_encoding
from polytempo_client.model.schema import Schema
from polytempo_client.protocol.bodies import read_body
from polytempo_client.protocol.tasks import Task
from polytempo_client.protocol.wire_pb2 import Head, Hello
from polytempo_client.streams import stream
from support.serving import Running, nudge, running, until

pytestmark = pytest.mark.usefixtures("short_pauses")

EXACT = {"mixing": 1.0, "staleness": "constant"}
"""The server's model is the last update."""


@contextmanager
def client_of(server: Running, number: int = 0, upload: str = "", download: str = "", **given: Any) -> Iterator[Client]:
    with server.client(number, encodings=Encodings(upload, download), **given) as client:
        client.wait_for_welcome(30)
        yield client


def model_of_thirds(directory: Path, size: int = 60) -> Path:
    """Numbers that half precision has to round."""
    path = directory / "thirds.safetensors"
    save_file({"weight": np.full((size,), 1 / 3, np.float32), "bias": np.full((4,), 2 / 3, np.float32)}, path)
    return path


def flat(server: Running) -> torch.Tensor:
    return server.host.service.first_model().clone()


# What is agreed.


@pytest.mark.parametrize(
    ("uploads", "downloads", "allowed", "agreed"),
    [
        (["topk:0.01"], ["fp16"], ("fp16", "topk"), ("topk:0.01", "fp16")),
        (["topk:0.01", "fp16"], [], ("fp16",), ("fp16", "")),
        (["of-a-newer-version", "fp16"], [], ("fp16", "topk"), ("fp16", "")),
        (["topk:0.01"], ["fp16"], ("topk",), ("topk:0.01", "")),
        (["topk:0.01"], ["fp16"], (), ("", "")),
        ([], ["fp16"], ("fp16", "topk"), ("", "")),
        (["topk:-3", "fp16:2"], [], ("fp16", "topk"), ("", "")),
    ],
)
def test_the_server_grants_the_first_wish_that_it_allows(
    uploads: list[str], downloads: list[str], allowed: Sequence[str], agreed: tuple[str, str]
) -> None:
    assert messages.agreed(Hello(uploads=uploads, downloads=downloads), allowed) == agreed


@pytest.mark.parametrize("old", [False, True])
def test_where_the_server_does_not_agree_updates_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if old:  # it does not know the fields of the greeting
        monkeypatch.setattr(messages, "agreed", lambda hello, allowed: ("", ""))
    allowed = ("fp16", "topk") if old else ()
    with (
        running(tmp_path, parameters=EXACT, encodings=allowed) as server,
        client_of(server, upload="topk:0.1", download="fp16") as client,
    ):
        client.run(lambda task: (nudge(task, 0.3), 5), updates=2)
        assert torch.allclose(flat(server), torch.tensor([0.6, 0.6, 0.6, 1.6, 2.6, 3.6]))
    said = [record for record in caplog.records if "not compressed" in record.getMessage()]
    assert len(said) == 1


def test_rounded_models_are_only_for_clients_that_push_differences(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="beside an encoding of updates"):
        Encodings(download="fp16")
    with pytest.raises(UserError, match="Expected fp16, or topk"):
        Encodings("zip")


# What arrives.


def test_the_server_adds_the_difference_to_the_exact_start(tmp_path: Path) -> None:
    init = model_of_thirds(tmp_path)
    with running(tmp_path, init=init, parameters=EXACT) as server:
        before = flat(server)
        with client_of(server, upload="fp16", download="fp16") as client:
            task = client.task(30)
            assert task.tensors["weight"][0] == np.float32(np.float16(1 / 3)) != np.float32(1 / 3)
            client.push(task, nudge(task, 0.25), samples=5, timeout=30)
        assert torch.equal(flat(server), before + 0.25)


def test_what_top_k_holds_back_is_sent_in_later_updates(tmp_path: Path) -> None:
    wanted = stream(0, "test steps").normal(0, 1e-2, (5, 64)).astype(np.float32)
    twin, arrived = ErrorFeedback(parse_encoding("topk:0.1")), []
    with (
        running(tmp_path, init=model_of_thirds(tmp_path), parameters=EXACT) as server,
        client_of(server, upload="topk:0.1") as client,
    ):
        for step in wanted:
            before, task = flat(server), client.task(30)
            start = np.concatenate([task.tensors[name].reshape(-1) for name in server.host.service.schema.names])
            schema = server.host.service.schema
            client.push(task, schema.views(start + step), samples=5, timeout=30)
            encoded, left = twin.encode(start + step - start)
            twin.keep(left)
            assert torch.equal(flat(server), before + torch.from_numpy(twin.encoding.decode(encoded, 64)))
            arrived.append(flat(server) - before)
    assert all(int((step != 0).sum()) == 7 for step in arrived)
    assert len(set(torch.stack(arrived).nonzero()[:, 1].tolist())) > 7


def test_training_may_write_into_the_tensors_of_a_task(tmp_path: Path) -> None:
    with running(tmp_path, parameters=EXACT) as server, client_of(server, upload="fp16") as client:
        before, task = flat(server), client.task(30)
        for array in task.tensors.values():
            array += np.float32(0.5)
        client.push(task, task.tensors, samples=5, timeout=30)
        assert torch.equal(flat(server), before + 0.5)


@pytest.mark.parametrize("upload", ["topk:0.5", ""])
def test_only_what_is_encoded_is_sent_again_as_it_was_though_another_model_has_come(
    tmp_path: Path, upload: str
) -> None:
    with (
        running(tmp_path, "support.serving:Refresher") as server,
        client_of(server, upload=upload) as slow,
        client_of(server, 1) as fast,
    ):
        task, schema = slow.task(30), server.host.service.schema
        made = slow._uploads.make(task, nudge(task), None, schema)
        fast.run(lambda given: (nudge(given), 5), updates=1)
        until(lambda: bool(task.refreshes()))
        again = slow._uploads.make(task, nudge(task, 0.3), None, schema)
        assert made.base == task.number != task.base
        assert again.base == (task.number if upload else task.base)
        assert (again is made) is bool(upload)
        slow.push(task, nudge(task, 0.3), samples=5, timeout=30)
        assert server.host.service.members[0].updates == 1


def test_a_refused_update_is_not_held_back_and_leaves_what_was(tmp_path: Path) -> None:
    with running(tmp_path, parameters=EXACT) as server, client_of(server, upload="topk:0.5") as client:
        steps = iter([0.25, 1e6, float("nan"), 0.0])

        def train(task: Task) -> tuple[dict[str, np.ndarray], int]:
            step = next(steps)
            by = np.arange(4, 0, -1, dtype=np.float32).reshape(2, 2) * np.float32(step)
            return {"weight": task.tensors["weight"] + by, "bias": task.tensors["bias"]}, 5

        before = flat(server)
        client.run(train, updates=2)
        assert server.host.service.updates == 2
        names = server.host.service.schema.names
        expected = {"weight": torch.tensor([1.0, 0.75, 0.5, 0.25]), "bias": torch.zeros(2)}
        assert torch.allclose(flat(server), before + torch.cat([expected[name] for name in names]))


class Picky(Strategy):
    """Offers two models, and lets only the weights move."""

    def ready(self, client: int, now: float) -> Orders:
        models = (self.model.weights + 10, self.model.weights)
        offered = Candidates(models, (self.model.version, self.model.version))
        yield self.train(client, self.model, candidates=offered, trainable=("weight",))

    def updated(self, update: Any, now: float) -> None:
        self.last = update


def test_the_difference_counts_from_the_chosen_candidate_and_holds_what_is_trained(tmp_path: Path) -> None:
    with (
        running(tmp_path, "test_compression:Picky") as server,
        client_of(server, upload="fp16", download="fp16") as client,
    ):
        task = client.task(30)
        chosen = {name: task.extras[f"candidate/0/{name}"] for name in task.tensors}
        more = {"chosen": 0, "answers": {"losses": [0.1, 0.2]}}
        client.push(task, {"weight": chosen["weight"] + np.float32(0.5)}, samples=5, timeout=30, **more)
        update = server.host.service.strategy.last
    moved = server.host.service.schema.views(update.delta)
    assert torch.equal(moved["weight"], torch.full((2, 2), 0.5))
    assert not moved["bias"].any()


def test_the_difference_counts_from_the_last_refresh(tmp_path: Path) -> None:
    with (
        running(tmp_path, "support.serving:Refresher") as server,
        client_of(server, 0, upload="fp16", download="fp16") as client,
        client_of(server, 1) as other,
    ):
        task, theirs = client.task(30), other.task(30)
        other.push(theirs, nudge(theirs, 0.3), samples=5, timeout=30)
        client.pull(30)  # what was sent before this answer has arrived
        fresh = task.refreshes()[-1]
        assert task.base == fresh.number
        start = flat(server)
        moved = {name: array + np.float32(1.0) for name, array in fresh.tensors.items()}
        client.push(task, moved, samples=5, timeout=30)
        assert torch.allclose(flat(server), start + 0.5, atol=1e-3)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"weight": np.zeros((2, 2))}, "no tensor 'bias'"),
        ({"weight": np.zeros((2, 2)), "bias": np.zeros(3)}, "has shape"),
        ({"weight": np.zeros((2, 2)), "bias": np.zeros(2), "more": np.zeros(2)}, "none of the model's"),
    ],
)
def test_a_result_that_does_not_fit_the_model_is_an_error(
    tmp_path: Path, tensors: dict[str, np.ndarray], problem: str
) -> None:
    with (
        running(tmp_path) as server,
        client_of(server, upload="fp16") as client,
        pytest.raises(UserError, match=problem),
    ):
        client.push(client.task(30), tensors, samples=5, timeout=30)


# Connections that break, clients that were off.


def test_a_push_is_repeated_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[bytes] = []
    with running(tmp_path, parameters=EXACT) as server, client_of(server, upload="topk:0.2") as client:
        check = server.host.handlers.table["push"]

        def watch(request: Any, service: Any, now: float) -> Any:
            pushed.append(request.head.push.SerializeToString() + bytes(request.body))
            if len(pushed) == 1:
                request.session.end()  # the answer to this one is lost, or it is not taken at all
            return check(request, service, now)

        monkeypatch.setitem(server.host.handlers.table, "push", watch)
        client.push(client.task(30), nudge(client.task(30), 0.3), samples=5, timeout=30)
        assert server.host.service.updates == 1
    assert len(pushed) == 2
    assert pushed[0] == pushed[1]


def test_a_kept_task_in_half_precision_is_gone_on_with(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    wishes: dict[str, Any] = {"upload": "fp16", "download": "fp16", "keep": keep}
    with running(tmp_path, init=model_of_thirds(tmp_path), parameters=EXACT) as server:
        before = flat(server)
        with client_of(server, **wishes) as client:
            number = client.task(30).number
        with client_of(server, **wishes) as client:
            task = client.task(30)
            assert task.number == number
            client.push(task, nudge(task, 0.25), samples=5, timeout=30)
        assert torch.equal(flat(server), before + 0.25)


def test_a_service_that_stops_allowing_an_encoding_takes_what_was_agreed_on_until_the_client_comes_again(
    tmp_path: Path,
) -> None:
    with running(tmp_path, parameters=EXACT) as server:
        with client_of(server, upload="fp16") as client:
            task = client.task(30)
            server.shared.operations = Operations(encodings=())
            client.push(task, nudge(task), samples=5, timeout=30)
            assert server.host.service.updates == 1
        with client_of(server, upload="fp16") as again:
            again.run(lambda task: (nudge(task), 5), updates=1)
            assert not again._uploads._encodes


# Bytes.


def test_on_the_wire_compressed_messages_are_as_small_as_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 200_000
    sizes: dict[str, tuple[int, int]] = {}
    with running(tmp_path, init=model_of_thirds(tmp_path, size), parameters=EXACT) as server:
        for number, upload in enumerate(("", "fp16", "topk:0.01")):
            up: list[int] = []
            take, check = Client._take, server.host.handlers.table["push"]
            down: list[int] = []

            def watched(self: Client, head: Head, body: bytearray, take: Any = take, down: Any = down) -> None:
                if head.HasField("task"):
                    down.append(len(body) + head.ByteSize())
                take(self, head, body)

            def counted(request: Any, service: Any, now: float, check: Any = check, up: Any = up) -> Any:
                up.append(len(request.body) + request.head.ByteSize())
                return check(request, service, now)

            with monkeypatch.context() as patch:
                patch.setattr(Client, "_take", watched)
                patch.setitem(server.host.handlers.table, "push", counted)
                with client_of(server, number, upload=upload, download="fp16" if upload else "") as client:
                    client.run(lambda task: (nudge(task), 5), updates=1)
            sizes[upload] = up[0], down[0]
    whole = 4 * (size + 4)
    assert all(abs(bytes_ - whole) < 500 for bytes_ in sizes[""])
    assert all(abs(bytes_ - whole / 2) < 500 for bytes_ in sizes["fp16"])
    assert abs(sizes["topk:0.01"][0] - whole / 100) < 500
    assert sizes["topk:0.01"][1] == pytest.approx(whole / 2, abs=500)


def test_one_rounded_copy_of_a_model_serves_all_clients() -> None:
    schema = Schema(("weight",), ((3,),), 3)
    weights = torch.tensor([0.1, 0.2, 0.3])
    (_, one), (_, two) = (messages.model(weights, 0, schema, "fp16") for _ in range(2))
    assert one[1].obj is not None
    assert np.shares_memory(np.frombuffer(one[1], np.uint8), np.frombuffer(two[1], np.uint8))
    assert read_body(b"".join(one))["weight"].dtype == np.float16


def test_a_model_that_a_method_changed_in_place_is_rounded_anew() -> None:
    schema, weights = Schema(("weight",), ((2,),), 2), torch.tensor([1.0, 2.0])
    for expected in ([1.0, 2.0], [4.0, 5.0], [4.0, 65600.0], [7.0, 8.0]):
        weights.copy_(torch.tensor(expected))
        _, body = messages.model(weights, 0, schema, "fp16")
        assert read_body(b"".join(body))["weight"].tolist() == expected
