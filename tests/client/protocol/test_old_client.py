"""A client that knows the protocol as it was before fields were added to it takes part with the server of today."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from support.plain_client import PlainClient
from support.serving import ManualClock, Running, free_port, nudge, running, until

ENDLESS = 10**9
"""Local steps."""


@contextmanager
def old_client(server: Running, upload: str = "", download: str = "", fault: str = "") -> Iterator[PlainClient]:
    """Client 0."""
    client = PlainClient([server.address], server.token(0), fault=fault)
    client.upload, client.download = upload, download
    thread = threading.Thread(target=client.run, daemon=True)
    thread.start()
    try:
        yield client
    finally:
        client.stopping = True
        if client.training is not None:
            client.training.withdrawn = True
        client.call.cancel()
        thread.join(60)
    assert not thread.is_alive()


def updates(server: Running) -> int:
    members = server.host.service.members
    return members[0].updates if 0 in members else 0


def test_an_old_client_trains_and_what_it_hands_in_counts(tmp_path: Path) -> None:
    with running(tmp_path) as server, old_client(server):
        before = server.host.service.first_model().clone()
        until(lambda: updates(server) >= 2, 60)
        assert not torch.equal(server.host.service.first_model(), before)
        assert not server.shared.meters.refusals


@pytest.mark.parametrize("upload", ["fp16", "topk:0.5"])
def test_an_old_client_encodes_updates_and_reads_models_in_half_precision(tmp_path: Path, upload: str) -> None:
    with running(tmp_path) as server, old_client(server, upload, "fp16") as client:
        until(lambda: updates(server) >= 2, 60)
        assert (client.agreed, dict(server.shared.meters.refusals)) == (upload, {})


def test_an_old_client_goes_on_from_a_refresh(tmp_path: Path) -> None:
    given = {"strategy": "support.serving:Refresher", "steps": ENDLESS}
    with running(tmp_path, **given) as server, old_client(server) as client, server.client(1) as other:
        until(lambda: client.training is not None, 60)
        task = other.task(60)
        other.push(task, nudge(task), samples=5, steps=1, timeout=60)
        assert client.training is not None
        until(lambda: client.training.heeded > client.training.task.number, 60)
        client.training.reported = True
        until(lambda: updates(server) == 1, 60)
        assert server.host.service.members[0].version == 1


def test_an_old_client_stops_when_it_is_asked_for_what_it_has(tmp_path: Path) -> None:
    clock = ManualClock()
    given = {"strategy": "support.serving:Impatient", "steps": ENDLESS, "seconds": clock}
    with running(tmp_path, **given) as server, old_client(server) as client:
        until(lambda: client.training is not None, 60)
        clock.now = 7.5
        server.host.tick()
        until(lambda: updates(server) == 1, 60)


def test_an_old_client_comes_back_to_a_server_that_was_restarted(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, port=port, steps=ENDLESS) as server, old_client(server) as client:
        until(lambda: client.training is not None, 60)
        assert client.training is not None
        task = client.training.task.number
        server.stop()
        with running(tmp_path, port=port, steps=ENDLESS) as again:
            until(lambda: 0 in again.host.presence.sessions, 60)
            client.training.reported = True
            until(lambda: updates(again) == 1, 60)
            assert again.host.service.members[0].answered == task


def test_an_old_client_begins_anew_after_a_refusal(tmp_path: Path) -> None:
    with running(tmp_path, norm_bound=1e-9, zero_bound=1e-9) as server, old_client(server):
        until(lambda: server.shared.meters.refusals["push"] >= 2, 60)
        assert server.host.service.updates == 0
