"""A client that joins with privacy: nothing leaves it but clipped, blurred and counted updates."""

import json
import logging
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polytempo.core.errors import UserError
from polytempo.core.orders import Candidates, Train
from polytempo.serve.client.join import Trained, join
from polytempo.serve.client.own_data import make_join_settings
from polytempo.strategies import Strategy
from polytempo.testing import tiny_dataset
from polytempo.world.dataset import Dataset
from polytempo_client.privacy import Privacy, epsilon
from polytempo_client.updates.ledger import Ledger
from support import ROOT
from support.serving import Running, running

LINEAR = {"model": "support.joining:linear", "data": "test_privacy_join:data", "engine": "eager"}
PRIVATE = {"clip_norm": 0.01, "noise": 1e-3}


def data() -> Dataset:
    return tiny_dataset()


class Recording(Strategy):
    """Keeps what it is told; with ``half``, trains only every other weight."""

    half: bool = False

    def order_for(self, client: int, now: float) -> Train:
        mask = torch.arange(len(self.model.weights)) % 2 == 0 if self.half else None
        return self.train(client, self.model, mask=mask, trainable=("0.weight",) if self.half else ())

    def updated(self, update: Any, now: float) -> None:
        self.last = update
        self.model.step(torch.zeros_like(self.model.weights))


class Curious(Strategy):
    """Wants to know how candidates fit."""

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.model, candidates=Candidates((self.model.weights,), (0,)))


class Statistician(Strategy):
    """Wants to know the losses."""

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.model, questions=("loss-statistics",))


@pytest.fixture
def serve(serve: Any) -> Any:
    return partial(serve, data=LINEAR["data"], steps=3)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    Ledger(Privacy(1.0, 1.0), tmp_path / "ledger.json", new=True)
    return tmp_path / "ledger.json"


def join_here(server: Running, updates: int | None = 1, keep: Path | None = None, **given: Any) -> list[Trained]:
    """Join with privacy as client 0, in this thread; what was trained."""
    trained: list[Trained] = []
    progress = given.pop("progress", trained.append)
    settings = make_join_settings(**{**LINEAR, **PRIVATE, **given})
    join(lambda: server.client(0, keep=keep), settings, updates, progress)
    return trained


def counted(ledger: Path) -> int:
    return sum(json.loads(ledger.read_text())["updates_by_noise"].values())


def test_the_update_that_arrives_is_clipped_and_blurred_and_all_that_arrives(serve: Any) -> None:
    server = serve("test_privacy_join:Recording", lr=1.0)
    join_here(server)
    update = server.host.service.strategy.last
    assert float(update.delta.norm()) == pytest.approx(0.01, rel=0.05)
    assert (update.answers, update.chosen, update.steps) == ({}, None, 3)


def test_the_noise_is_another_although_the_seed_is_the_same(serve: Any) -> None:
    server = serve("test_privacy_join:Recording", lr=1.0)
    shown = []
    for _ in range(2):
        join_here(server, noise=1.0, seed=5)
        shown.append(server.host.service.strategy.last.delta)
    assert (shown[0] != shown[1]).all()


def test_what_the_task_does_not_train_is_not_blurred(serve: Any) -> None:
    server = serve("test_privacy_join:Recording", parameters={"half": True})
    join_here(server, noise=1.0)
    moved = server.host.service.strategy.last.delta != 0
    assert moved.tolist() == [i % 2 == 0 and i < 12 for i in range(15)]


def test_every_update_is_counted_and_logged_with_its_epsilon(
    serve: Any, ledger: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "polytempo")
    server = serve("fedasync")
    join_here(server, updates=2, noise=50.0, ledger=ledger)
    join_here(server, updates=1, noise=50.0, ledger=ledger)
    assert counted(ledger) == server.host.service.updates == 3
    told = [record.fields for record in caplog.records if record.message == "released"]
    assert [row["updates"] for row in told] == [1, 2, 3]
    assert told[-1]["epsilon"] == pytest.approx(epsilon(3, 50.0, 1e-5), abs=1e-4)
    assert "no ledger" not in caplog.messages


def test_without_a_ledger_the_client_says_once_what_that_means(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    join_here(serve("fedasync"), updates=3)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [said for said in warnings if said != "connected"] == ["no ledger"]  # the server logs here too


@pytest.mark.parametrize("keeps", [False, True])
def test_a_client_stops_and_leaves_before_the_update_that_would_exceed_its_limit(
    serve: Any, tmp_path: Path, ledger: Path, caplog: pytest.LogCaptureFixture, keeps: bool
) -> None:
    server = serve("fedasync")
    private = {"noise": 10.0, "epsilon": epsilon(3, 10.0, 1e-5), "ledger": ledger}
    assert len(join_here(server, None, tmp_path / "task" if keeps else None, **private)) == 3
    assert counted(ledger) == server.host.service.updates == 3
    assert not server.host.service.is_member(0)
    reasons = [vars(record)["fields"].get("reason", "") for record in caplog.records]
    assert any("3 updates have come to an epsilon of" in reason for reason in reasons)
    server.stop()  # started again it does not even connect
    assert join_here(server, None, **private) == []


def test_what_is_sent_again_after_a_broken_connection_is_counted_once(serve: Any, ledger: Path) -> None:
    server = serve("fedasync")
    again: list[Running] = []
    restarting = threading.Thread(target=lambda: again.append(serve("fedasync", port=server.port)))

    def break_off(_: Trained) -> None:
        server.stop()
        restarting.start()

    join_here(server, ledger=ledger, progress=break_off)
    restarting.join()
    assert counted(ledger) == again[0].host.service.updates == 1


@pytest.mark.parametrize(("strategy", "asked"), [("Curious", "'losses'"), ("Statistician", "'loss-statistics'")])
def test_a_method_that_asks_about_the_data_is_refused(serve: Any, ledger: Path, strategy: str, asked: str) -> None:
    server = serve(f"test_privacy_join:{strategy}")
    with pytest.raises(UserError, match=f"asks about this client's data: {asked}.*without noise"):
        join_here(server, ledger=ledger)
    assert counted(ledger) == 0
    assert server.host.service.updates == 0


@pytest.mark.parametrize("ask", ["labels:60", "loss:60", "accuracy:60"])
def test_a_client_whose_data_decide_when_it_asks_is_refused(ask: str) -> None:
    settings = make_join_settings(**LINEAR, **PRIVATE, ask=ask)
    with pytest.raises(UserError, match="looks at its data"):
        join(lambda: pytest.fail("a session was opened"), settings)


@pytest.mark.parametrize("ask", ["every:0.01", "think:0.01"])
def test_a_client_that_asks_by_the_clock_takes_part(serve: Any, ask: str) -> None:
    assert len(join_here(serve("fedasync"), updates=2, ask=ask)) == 2


def test_noise_beyond_the_servers_bound_costs_one_update_and_an_error_says_what_to_raise(
    serve: Any, ledger: Path
) -> None:
    server = serve("fedasync", norm_bound=1.0, zero_bound=1.0)
    with pytest.raises(UserError, match=r"distance from the start.*raise norm_bound.*noise does, raise the bound"):
        join_here(server, clip_norm=100.0, noise=100.0, ledger=ledger)
    assert counted(ledger) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clip_norm": 1.0}, "both clip_norm and noise"),
        ({"noise": 1.0}, "both clip_norm and noise"),
        ({"clip_norm": 1.0, "noise": 0.0}, "noise: Input should be greater than 0"),
        ({"clip_norm": -1.0, "noise": 1.0}, "clip_norm"),
        ({"clip_norm": 1.0, "noise": 1.0, "delta": 1.0}, "delta"),
        ({"epsilon": 8.0}, "epsilon belongs to privacy"),
        ({"delta": 1e-6}, "delta belongs to privacy"),
        ({"ledger": Path("l.json")}, "ledger belongs to privacy"),
        ({"clip_norm": 1.0, "noise": 1.0, "epsilon": 8.0}, "epsilon and new_ledger need a ledger"),
        ({"clip_norm": 1.0, "noise": 1.0, "new_ledger": True}, "epsilon and new_ledger need a ledger"),
    ],
)
def test_options_that_do_not_go_together_are_errors(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_join_settings(**given)


def test_scores_on_the_clients_own_data_are_withheld(serve: Any) -> None:
    server = serve("fedasync")
    join_here(server)
    scores = [(member.accuracy, member.loss) for member in server.host.service.members.values()]
    assert scores == [(None, None)]


def train(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """In place, as a loop of one's own may."""
    for array in tensors.values():
        array += 1.0
    return tensors


def test_the_training_loop_of_the_docs_releases_what_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs/guides/privacy.md"
    Ledger(Privacy(1.0, 1.0), "ledger.json", new=True)
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    with running(tmp_path, norm_bound=1e3) as server, server.client(0) as client:
        exec(example, {"client": client, "train": train, "number_of_samples": 10})
        assert server.host.service.members[0].updates == counted(tmp_path / "ledger.json") == 3
