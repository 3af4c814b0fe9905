"""What is wrong is one clear exception, and nothing that was acknowledged is lost."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from polytempo.serve.access import certs
from polytempo.serve.access.certs import make_certs
from polytempo.serve.server import messages
from polytempo_client import Client, Servers, errors
from polytempo_client.session import search
from support.serving import nudge, running

pytestmark = pytest.mark.usefixtures("short_pauses")

ONES = np.ones((2, 2), np.float32)


def test_every_error_is_one_of_the_documented_tree() -> None:
    made = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and name != "WireError"}
    assert all(issubclass(kind, errors.UserError) for kind in made.values())
    assert errors.__doc__ is not None
    assert [name for name in made if name not in errors.__doc__] == []


# An update that does not fit its task.


@pytest.mark.parametrize(
    ("tensors", "kind", "message"),
    [
        ({"weight": ONES}, errors.NamesError, "has no tensor 'bias', which the task trains"),
        ({"weight": ONES, "bias": np.ones(2), "b": 1}, errors.NamesError, "'b', which is none of the model's"),
        ({"weight": ONES[0], "bias": np.ones(2)}, errors.ShapeError, r"'weight' has shape \[2\]; expected \[2, 2\]"),
        ({"weight": ONES * 1j, "bias": np.ones(2)}, errors.DtypeError, "'weight' has dtype complex64"),
        ({"weight": ONES, "bias": ["a", "b"]}, errors.DtypeError, "'bias' has dtype <U1"),
        ({"weight": ONES, "bias": [1, [2]]}, errors.DtypeError, "'bias' cannot be read as an array"),
        (
            {"weight": ONES, "bias": torch.ones(2, requires_grad=True)},
            errors.DtypeError,
            "'bias' cannot be read as an array: .*requires grad",
        ),
        ({"weight": ONES, "bias": np.array([1, np.nan])}, errors.NotFiniteError, "'bias' holds NaN or Inf"),
        ({"weight": ONES, "bias": np.array([1, 1e300])}, errors.NotFiniteError, "'bias' holds NaN or Inf"),
        ([ONES, ONES[0]], errors.UpdateError, "a mapping from names to arrays; got list"),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
def test_an_update_that_does_not_fit_is_not_sent_and_its_task_stays_open(
    tmp_path: Path, tensors: Any, kind: type[Exception], message: str
) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        task = client.task(30)
        with pytest.raises(kind, match=message) as caught:
            client.push(task, tensors, samples=5, timeout=30)
        assert type(caught.value) is kind
        assert client.task(30) is task
        client.push(task, nudge(task), samples=5, timeout=30)
        assert server.host.service.updates == 1
        assert not server.shared.meters.refusals


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.uint8])
def test_numbers_of_any_width_are_sent_as_float32(tmp_path: Path, dtype: type) -> None:
    with running(tmp_path, parameters={"mixing": 1.0, "staleness": "constant"}) as server, server.client(0) as client:
        task = client.task(30)
        client.push(task, {"weight": ONES.astype(dtype), "bias": np.ones(2, dtype)}, samples=5, timeout=30)
        assert all((array == 1).all() for array in client.pull(30).tensors.values())


def test_a_training_that_diverges_is_tried_again_and_then_told(tmp_path: Path) -> None:
    trained: list[int] = []

    def diverge(task: Any) -> Any:
        trained.append(task.number)
        return nudge(task, float("nan")), 5

    with running(tmp_path) as server, server.client(0) as client:
        with pytest.raises(errors.NotFiniteError, match="look for NaN in the data"):
            client.run(diverge, updates=1)
        assert len(set(trained)) == 5
        assert not server.shared.meters.refusals
        assert server.shared.access.roster.quarantined == {}


# Servers that cannot be joined.


@contextmanager
def answering(code: grpc.StatusCode, details: str) -> Iterator[str]:
    """The address of a server that ends every call like this."""

    def end(_: Any, context: Any) -> Iterator[bytes]:
        context.abort(code, details)
        yield b""

    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {"Session": grpc.stream_stream_rpc_method_handler(end)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("polytempo.Federation", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, errors.TokenError),
        (grpc.StatusCode.PERMISSION_DENIED, errors.AccessError),
        (grpc.StatusCode.UNIMPLEMENTED, errors.VersionError),
    ],
)
def test_a_server_that_says_no_for_good_is_an_error_at_once(code: grpc.StatusCode, kind: type[Exception]) -> None:
    with answering(code, "it is so") as address, Client(address, "a-token", insecure=True) as client:
        for ask in (client.pull, client.task, client.wait_for_welcome):
            with pytest.raises(kind, match="cannot be joined: it is so") as caught:
                ask(30)
            assert type(caught.value) is kind


def test_a_server_of_a_later_protocol_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    welcome = messages.welcome

    def later(*given: Any) -> Any:
        made = welcome(*given)
        made[0].welcome.protocol = 2
        return made

    monkeypatch.setattr(messages, "welcome", later)
    with (
        running(tmp_path) as server,
        server.client(0) as client,
        pytest.raises(errors.VersionError, match="speaks protocol 2, and this version 1"),
    ):
        client.task(30)


def test_a_certificate_that_has_expired_is_an_error_that_says_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(certs, "_now", lambda: datetime.now(UTC) - timedelta(days=40))
        make_certs(tmp_path, [], days=30)
    pair = tmp_path / "server.pem", tmp_path / "server.key"
    with pytest.raises(errors.CertificateError, match=r"server.pem expired on \d{4}-\d\d-\d\d"):
        Client("127.0.0.1:1", "a-token", tmp_path / "ca.pem", certificate=pair)


def test_another_servers_certificate_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    make_certs(tmp_path, [])
    make_certs(tmp_path / "other", [])
    with (
        running(tmp_path, security="tls") as server,
        Client(server.address, server.token(0), tmp_path / "other/ca.pem") as client,
        pytest.raises(errors.CertificateError, match=r"did not sign the server's certificate, or it has expired"),
    ):
        client.task(60)


@pytest.mark.parametrize("token", [Path("there-is-none.token"), "two words", ""])
def test_a_token_that_is_none_is_an_error(token: Any) -> None:
    with pytest.raises(errors.TokenError):
        Client("127.0.0.1:1", token, insecure=True)


# No network.


def test_a_client_without_a_network_gives_up_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    began, clock = time.monotonic(), time.monotonic
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(search.time, "monotonic", lambda: clock() + (3600 if clock() > began + 0.2 else 0))
    servers = Servers((f"127.0.0.1:{port}",), give_up_after=3599)
    with (
        Client(servers, "a-token", insecure=True) as client,
        pytest.raises(errors.UnreachableError, match="could not be reached for 3599 s, the last time because: "),
    ):
        client.task(120)


def test_a_client_that_gave_up_goes_on_with_its_task_when_it_is_started_again(tmp_path: Path) -> None:
    keep = tmp_path / "task"
    with running(tmp_path) as server:
        token, port = server.token(0), server.port
        client = Client(Servers((server.address,), give_up_after=0.05), token, insecure=True, keep=keep)
        number = client.task(30).number
    with client, pytest.raises(errors.UnreachableError):
        client.push(client.task(), {"weight": ONES, "bias": np.ones(2)}, samples=5, timeout=60)
    with running(tmp_path, port=port) as server, server.client(0, keep) as again:
        task = again.task(60)
        assert task.number == number
        again.push(task, nudge(task), samples=5, timeout=60)
        assert server.host.service.updates == 1
