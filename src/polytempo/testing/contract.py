"""The contract that every strategy keeps, as one call: ``check_strategy``."""

import builtins
import io
import os
import random
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from polytempo.core.errors import StrategyError
from polytempo.core.state import digest, pack, unpack
from polytempo.serve.journal.settings import make_settings
from polytempo.strategies import Strategy, strategies
from polytempo.strategies.base.contract import check_packable
from polytempo.strategies.base.strategy import as_strategy
from polytempo.testing.hosting import hosted, restarted
from polytempo.testing.scripts import WORLDS, Call, Simulation, as_served, play, simulated, told


class ContractError(AssertionError):
    """A strategy breaks the contract. The message says which rule, and where."""


def check_strategy(strategy: type[Strategy], **parameters: Any) -> None:
    """Check a strategy, with these parameters, against the contract. Five clients train a small model in three worlds
    (slow clients, clients that drop out, a quota), simulated and served. Raise ``ContractError`` unless

    - its state can be saved, and a strategy that is loaded from it goes on as the first would have;
    - the same events lead to the same orders and the same state whenever they are told;
    - it opens no file, waits for nothing and draws from no global random generator;
    - it changes no vector in place that it was given or has handed out;
    - a service ends in the same state as the simulator, and recovers that state after a crash.
    """
    if not isinstance(strategy, type):
        raise TypeError(f"check_strategy takes a class and its parameters, not an object: {type(strategy).__name__}.")
    name = f"{strategy.__module__}.{strategy.__qualname__}"
    with strategies.lent(name, as_strategy(strategy, name)):
        for world in WORLDS:
            check_in_world(name, world, parameters)


def check_in_world(name: str, world: str, parameters: Mapping[str, Any] | None = None, personal: bool = False) -> None:
    """Check a strategy by its name in one of the worlds, with the personal rule around it if that is wanted."""
    with tempfile.TemporaryDirectory() as directory, _explained(name, world):
        simulation = simulated(name, world, Path(directory), parameters, personal)
        check_packable(simulation.strategy)
        _check_vectors(simulation.calls)
        _check_replay(simulation)
        _check_reload(simulation)
        _check_service(simulation, Path(directory))


@contextmanager
def _explained(name: str, world: str) -> Iterator[None]:
    where = f"{name}, in the world {world!r}: "
    try:
        yield
    except ContractError as error:
        raise ContractError(f"{where}{error}") from error
    except StrategyError as error:
        if error.__cause__ is None:
            raise ContractError(f"{where}{error}") from error
        raised = error.__cause__
        raise ContractError(f"{where}it raised {type(raised).__name__}: {raised}") from raised
    except Exception as error:
        raise ContractError(f"{where}it raised {type(error).__name__}: {error}") from error


def _check_vectors(calls: Sequence[Call]) -> None:
    for call in calls:
        if digest(call.subject) != call.subject_digest:
            raise ContractError(f"the update of {call} was changed in place. Copy its vectors before you change them.")
        if digest(call.orders) != call.orders_digest:
            raise ContractError(
                f"a vector that was handed out by {call} was changed in place later. Keep models in a Branch, or copy "
                "them before you change them."
            )


def _check_replay(simulation: Simulation) -> None:
    strategy = _fresh(simulation)
    _replay(strategy, simulation.calls, "It depends on more than its events and its seed: a clock, a random generator?")
    _check_same(strategy, simulation.strategy, "told the same events again, it ends in another state")


def _check_reload(simulation: Simulation) -> None:
    half = len(simulation.calls) // 2
    first, second = _fresh(simulation), _fresh(simulation)
    _replay(first, simulation.calls[:half], "")
    second.load_state(unpack(*pack(first.save_state())))
    _replay(second, simulation.calls[half:], "Before it, its state was saved and loaded: is everything in save_state?")
    _check_same(second, simulation.strategy, "saved and loaded on the way, it ends in another state")


def _check_service(simulation: Simulation, directory: Path) -> None:
    with hosted(directory, settings=make_settings(**simulation.settings)) as service:
        play(simulation.script, simulation.sim, service)
        _check_events(told(service), [(happened.kind, happened.client, happened.at) for happened in simulation.script])
        served = service.host.service.strategy
        _check_same(served, simulation.strategy, "served, it ends in another state than simulated")
        if restarted(service.copied(directory / "crashed"), service.settings) != service.digest():
            raise ContractError("after a crash, the service recovers another state than it had")


def _check_events(served: Sequence[tuple[str, int, float]], simulated: Sequence[tuple[str, int, float]]) -> None:
    if served == simulated:
        return
    pairs = zip_longest(served, simulated)
    number, (service, simulator) = next((i, pair) for i, pair in enumerate(pairs, start=1) if pair[0] != pair[1])
    raise ContractError(
        f"event {number} is {_described(service)} in the service and {_described(simulator)} in the simulator. Events "
        "of one moment may come in another order: set timers later than now."
    )


def _described(event: tuple[str, int, float] | None) -> str:
    if event is None:
        return "missing"
    kind, client, at = event
    return f"{kind} at {at:g} s" if kind == "fired" else f"{kind}({client}) at {at:g} s"


def _fresh(simulation: Simulation) -> Strategy:
    settings = simulation.settings
    made = as_served(settings["strategy"], settings["parameters"], settings["personal"])
    made.begin(simulation.strategy.setting)
    return made


def _replay(strategy: Strategy, calls: Sequence[Call], hint: str) -> None:
    """Tell a strategy what another one was told, and expect the same orders."""
    for call in calls:
        with _no_io(call):
            orders = list(getattr(strategy, call.event)(call.subject, call.now) or ())
        if digest(orders) != call.orders_digest:
            raise ContractError(f"told the same events again, {call} orders something else. {hint}")


def _check_same(found: Strategy, expected: Strategy, what: str) -> None:
    states = found.save_state(), expected.save_state()
    if digest(states[0]) != digest(states[1]):
        names = sorted({*states[0], *states[1]})
        differing = [name for name in names if digest(states[0].get(name)) != digest(states[1].get(name))]
        raise ContractError(f"{what}. What differs: {', '.join(differing)}.")


# Not clocks: libraries time themselves, and a time that reaches the state or an order shows in the replay.
_FORBIDDEN: tuple[tuple[Any, str, str], ...] = (
    (builtins, "open", "A strategy opens no files."),
    (io, "open", "A strategy opens no files."),
    (os, "open", "A strategy opens no files."),
    (subprocess, "Popen", "A strategy starts no processes."),
    (socket.socket, "connect", "A strategy talks to nobody."),
    (time, "sleep", "A strategy never waits; order SetTimer."),
)


@contextmanager
def _no_io(call: Call) -> Iterator[None]:
    """Refuse what a strategy must not do, on this thread, and notice draws from global random generators."""
    drawn = _generators()
    with ExitStack() as stack:
        for owner, name, rule in _FORBIDDEN:
            stack.enter_context(patch.object(owner, name, _refusing(getattr(owner, name), call, name, rule)))
        yield
    if _generators() != drawn:
        raise ContractError(
            f"{call} draws from a global random generator. Draw from stream(self.setting.seed, 'purpose', ...)."
        )


def _refusing(function: Any, call: Call, name: str, rule: str) -> Any:
    here = threading.get_ident()

    def refuse(*given: Any, **named: Any) -> Any:
        if threading.get_ident() != here:  # somebody else's business
            return function(*given, **named)
        raise ContractError(f"{call} calls {name}. {rule}")

    return refuse


def _generators() -> tuple[Any, ...]:
    """The states of the global random generators."""
    legacy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002  the one that nobody may draw from
    return random.getstate(), legacy["key"].tobytes(), legacy["pos"], torch.random.get_rng_state().numpy().tobytes()
