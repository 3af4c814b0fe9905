"""A service with proxy sets: they decide its first model, outlive the file that they came from, and are what recovery
and replay compute with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.state import load
from polytempo.learn.models import Inputs
from polytempo.serve.journal.opening import code_versions, open_service
from polytempo.serve.journal.replay import replay, what_if
from polytempo.serve.journal.settings import ServiceSettings, make_settings
from polytempo.serve.storage.errors import JournalError
from polytempo.strategies import Strategy
from polytempo.strategies.settings import StrategySettings
from polytempo.world.proxies import read_proxies
from support.postgres import in_files, in_postgres, in_schema
from support.serving import copied, hosted, nudge, restarted, running, some_events, tiny_settings

pytestmark = pytest.mark.usefixtures("store")


class Judge(Strategy):
    """Takes over more of a model the better it does on the first proxy set."""

    needs_proxies = True

    def updated(self, update: Update, now: float) -> None:
        losses = self.setting.objects["proxies"].losses(update.weights)
        self.model.mix(update.weights, float(losses[0] / losses.sum()))


JUDGE, PLANE = "test_serve_proxies:Judge", "test_serve_proxies:plane"


def plane(inputs: Inputs) -> nn.Module:
    """Has the tensors of ``tiny_model``, in another order."""
    return nn.Linear(2, 2)


@pytest.fixture
def proxied(tmp_path: Path) -> Callable[..., ServiceSettings]:
    """Settings of a tiny service with two proxy sets."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 2)).astype(np.float32), np.arange(40) % 2
    np.savez(tmp_path / "data.npz", x=x, y=y)
    np.savez(tmp_path / "proxies.npz", x=x[:12], y=y[:12], cluster=np.arange(12) % 3)

    def settings(strategy: str = JUDGE, **given: Any) -> ServiceSettings:
        made = {"data": str(tmp_path / "data.npz"), "model": PLANE, "batch_size": 4}
        return tiny_settings(tmp_path, strategy, **{**made, "proxies": tmp_path / "proxies.npz", **given})

    return settings


def first_model(directory: Path) -> torch.Tensor:
    weights: torch.Tensor = load(directory / "journal" / "initial.safetensors")["weights"]
    return weights


def regrouped(directory: Path, name: str, cluster: np.ndarray) -> Path:
    """The same samples as other proxy sets."""
    given = read_proxies(directory / "proxies.npz")
    np.savez(directory / f"{name}.npz", x=given.x, y=given.y, cluster=cluster)
    return directory / f"{name}.npz"


def test_a_service_is_recovered_and_replayed_without_the_file_that_was_given(tmp_path, proxied) -> None:
    settings = proxied()
    with hosted(tmp_path, settings=settings) as host:
        some_events(host)
        (tmp_path / "proxies.npz").unlink()
        (tmp_path / "data.npz").unlink()
        crashed = host.copied(tmp_path / "crashed")
        assert restarted(crashed, settings) == host.digest()
        assert restarted(crashed, settings.model_copy(update={"proxies": None})) == host.digest()
        assert replay(host.directory, allowed=(JUDGE, PLANE)).service.digest() == host.digest()


def test_losses_on_the_proxies_decide_the_state(tmp_path, proxied) -> None:
    digests = []
    for name, cluster in (("one", np.arange(12) % 3), ("other", np.arange(12) // 4)):
        given = regrouped(tmp_path, name, cluster)
        with hosted(tmp_path / name, settings=proxied(proxies=given, warm_up=0)) as host:
            some_events(host)
            digests.append(host.digest())
    assert digests[0] != digests[1]


def test_the_first_model_is_warmed_on_the_proxies(tmp_path, proxied) -> None:
    for name, given in (("cold", {"warm_up": 0}), ("default", {}), ("five", {"warm_up": 5}), ("one", {"warm_up": 1})):
        open_service(tmp_path / name / "journal", proxied(**given)).journal.close()
    cold, default, five, one = (first_model(tmp_path / name) for name in ("cold", "default", "five", "one"))
    assert cold.tolist() == [0, 1, 2, 3, 0, 0]  # the tensors of the file in the order of the model
    assert torch.equal(default, five)
    assert not torch.equal(five, one)
    assert not torch.equal(one, cold)


def test_a_strategy_that_needs_no_proxies_can_begin_with_a_model_warmed_on_some(tmp_path, proxied) -> None:
    with hosted(tmp_path, settings=proxied("fedasync")) as host:
        some_events(host)
        assert replay(host.directory, allowed=(JUDGE, PLANE)).service.digest() == host.digest()
        assert what_if(host.directory, StrategySettings(strategy=JUDGE, steps=4), allowed=[PLANE]).other.updates == 6


def test_the_first_model_of_data_and_of_a_flat_file_are_warmed_too(tmp_path, proxied) -> None:
    np.save(tmp_path / "flat.npy", np.arange(6, dtype=np.float32))
    for name, init in (("data", None), ("flat", tmp_path / "flat.npy")):
        open_service(tmp_path / name / "journal", proxied(init=init)).journal.close()
        assert first_model(tmp_path / name).tolist() not in ([0, 1, 2, 3, 4, 5], [0] * 6)


# What is refused.


@pytest.mark.parametrize("strategy", [JUDGE, "cdfl"])
def test_a_strategy_that_needs_proxies_says_so_before_anything_is_written(tmp_path, strategy: str) -> None:
    with pytest.raises(UserError, match="polytempo data proxies"):
        open_service(tmp_path / "journal", make_settings(strategy=strategy))
    assert not (tmp_path / "journal").exists()


def test_a_journal_without_proxies_is_not_replayed_by_a_strategy_that_needs_some(tmp_path) -> None:
    with hosted(tmp_path) as host:
        some_events(host)
        with pytest.raises(UserError, match=r"needs proxy sets.*begun without --proxies"):
            what_if(host.directory, StrategySettings(strategy="cdfl"))


def test_tensors_that_are_not_the_models_are_refused(tmp_path, proxied) -> None:
    with pytest.raises(UserError, match="are not those of the model mlp"):
        open_service(tmp_path / "journal", proxied(model="mlp"))


def test_proxies_of_other_data_are_refused_before_anything_is_written(tmp_path, proxied) -> None:
    with pytest.raises(UserError, match="shape"):
        open_service(tmp_path / "journal", proxied(data="digits"))
    assert not (tmp_path / "journal").exists()


def test_warming_up_needs_proxies(tmp_path, proxied) -> None:
    with pytest.raises(UserError, match="Give --proxies too"):
        open_service(tmp_path / "journal", proxied("fedasync", proxies=None, warm_up=3))


def test_a_service_goes_on_with_the_proxies_that_it_was_begun_with(tmp_path, proxied) -> None:
    open_service(tmp_path / "journal", proxied()).journal.close()
    open_service(tmp_path / "without", proxied("fedasync", proxies=None)).journal.close()
    other = regrouped(tmp_path, "other", np.arange(12) % 2)
    with pytest.raises(UserError, match="holds a service with other proxy sets"):
        open_service(tmp_path / "journal", proxied(proxies=other))
    with pytest.raises(UserError, match="or with none"):
        open_service(tmp_path / "without", proxied("fedasync"))
    with pytest.raises(UserError, match="warm_up is None there, 2 here"):
        open_service(tmp_path / "journal", proxied(warm_up=2))
    open_service(tmp_path / "journal", proxied()).journal.close()


@in_files
@pytest.mark.parametrize("harm", ["gone", "cut", "other"])
def test_proxies_that_the_journal_has_lost_are_noticed(tmp_path, proxied, harm: str) -> None:
    with hosted(tmp_path, settings=proxied()) as host:
        some_events(host)
    copy = tmp_path / "journal" / "proxies.npz"
    if harm == "gone":
        copy.unlink()
    elif harm == "cut":
        copy.write_bytes(copy.read_bytes()[:-30])
    else:
        copy.write_bytes(regrouped(tmp_path, "other", np.arange(12) % 2).read_bytes())
    journal, allowed = tmp_path / "journal", (JUDGE, PLANE)
    for read in (lambda: replay(journal, allowed=allowed), lambda: open_service(journal, proxied())):
        with pytest.raises(JournalError, match="Restore it from a backup"):
            read()


@in_postgres
@pytest.mark.parametrize("harm", ["DELETE FROM files WHERE name = 'proxies.npz'", "UPDATE parts SET data = 'cut'"])
def test_proxies_that_the_database_has_lost_are_noticed(tmp_path, proxied, harm: str) -> None:
    with hosted(tmp_path, settings=proxied()) as host:
        some_events(host)
    in_schema(tmp_path, harm)
    with pytest.raises(JournalError, match="Restore it from a backup"):
        open_service(tmp_path / "journal", proxied())


def test_a_journal_of_a_strategy_with_proxies_knows_the_code_that_trains(tmp_path, proxied, monkeypatch) -> None:
    own = tmp_path / "own.py"
    own.write_text("from torch import nn\n\n\ndef plane(inputs):\n    return nn.Linear(2, 2)\n")
    with_proxies, without = (proxied(strategy, model=f"{own}:plane") for strategy in (JUDGE, "fedasync"))
    before = code_versions(with_proxies), code_versions(without)
    own.write_text(own.read_text() + "\n\nCHANGED = True\n")
    assert code_versions(with_proxies) != before[0]
    assert code_versions(without) == before[1]


# With real clients.


def test_clients_of_cdfl_get_one_model_for_each_push_and_a_killed_server_goes_on(tmp_path, proxied) -> None:
    given = {name: getattr(proxied(), name) for name in ("data", "model", "batch_size", "proxies")}
    with running(tmp_path, "cdfl", **given) as server:
        service = server.host.service
        with server.client(0) as one, server.client(1) as other:
            held = [client.task(30) for client in (one, other)]
            for turn in range(8):
                number, client = turn % 2, (one, other)[turn % 2]
                client.push(held[number], nudge(held[number], 0.1 * (turn + 1)), samples=5, timeout=30)
                held[number] = client.task(30)
                served = service.schema.views(service.strategy.model_for(number))
                assert {name: array.tolist() for name, array in held[number].tensors.items()} == {
                    name: tensor.tolist() for name, tensor in served.items()
                }
            digest = service.digest()
            killed = copied(tmp_path, tmp_path / "killed") / "journal"
        (tmp_path / "proxies.npz").unlink()
        assert restarted(killed.parent, server.settings) == digest
    assert replay(killed, allowed=[PLANE]).service.digest() == digest
    assert what_if(killed, StrategySettings(strategy=JUDGE, steps=4), allowed=[PLANE]).other.updates == 8
