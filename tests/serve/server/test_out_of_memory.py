"""A state that grows without bound, until memory runs out."""

from pathlib import Path
from typing import Any

import pytest
import torch

from polytempo.core.events import Update
from polytempo.serve.journal import snapshots as snapshots_module
from polytempo.serve.journal.journal import Journal
from polytempo.serve.state.service import Service
from polytempo.strategies import Strategy
from support.serving import hosted, join_all, refused, restarted, tiny_settings

TORCH = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 400000000 bytes.")
HOARDER = "test_out_of_memory:Hoarder"
EITHER = pytest.mark.parametrize("error", [MemoryError(), TORCH], ids=["python", "torch"])


class Hoarder(Strategy):
    """Keeps every update, and has no memory for the one that says so."""

    def setup(self) -> None:
        self.all: list[torch.Tensor] = []

    def updated(self, update: Update, now: float) -> None:
        self.all.append(update.weights.clone())
        self.model.mix(update.weights, 0.5)
        if "too much" in update.answers:
            raise MemoryError


def test_an_update_for_which_there_is_no_memory_is_rolled_back_and_the_service_goes_on(tmp_path: Path) -> None:
    with hosted(tmp_path, HOARDER) as served:
        join_all(served)
        served.push(0)
        before = served.digest()
        assert refused(served.push(1, answers={"too much": 1.0}), "MemoryError")
        assert served.digest() == before
        join_all(served)
        served.push(0)
        assert len(served.host.service.strategy.all) == 2  # type: ignore[attr-defined]
        digest = served.digest()
    assert restarted(tmp_path, tiny_settings(tmp_path, HOARDER)) == digest


@EITHER
@pytest.mark.parametrize("where", ["freezing", "writing"])
def test_a_snapshot_for_which_there_is_no_memory_is_left_out_and_the_service_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    with hosted(tmp_path) as served:
        join_all(served)
        with monkeypatch.context() as patch:
            patch.setattr(snapshots_module, "SNAPSHOT_EVENTS", 1)
            patch.setattr(*((Service, "frozen") if where == "freezing" else (Journal, "write_snapshot")), fail)
            served.push(0)
            served.push(1)
            served.host.snapshots.finish(served.host.service)  # as at SIGTERM
        assert served.host.journal.snapshots() == [0]
        digest = served.digest()
    assert restarted(tmp_path, tiny_settings(tmp_path)) == digest


def test_a_growing_state_survives_a_restart_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "SNAPSHOT_EVENTS", 5)
    with hosted(tmp_path, HOARDER) as served:
        join_all(served)
        for i in range(40):
            served.push(i % 2)
        digest = served.digest()
        assert len(served.host.journal.snapshots()) == 2
    assert restarted(tmp_path, tiny_settings(tmp_path, HOARDER)) == digest
