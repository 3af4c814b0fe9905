"""Ray's actors: processes of a cluster that hold a worker each, with the data set and the compiled model.

The driver hands them computations in calls, several at once where they are short. A process or a node that dies costs
time only: what it was given is given to others, and Ray makes it anew where there is room."""

import math
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayActorError, RayTaskError
from torch import Tensor

from polytempo.core.errors import PassingError, UserError
from polytempo.core.versions import machine
from polytempo.sim.executors import idle
from polytempo.sim.executors.executor import Computation, Computed, Executor, Worker
from polytempo.sim.executors.lookahead import Kind, Queued
from polytempo.sim.executors.models import OpenModel, OpenModels
from polytempo.sim.executors.remote import Introduction, RemoteWorker
from polytempo.sim.executors.travel import named, pack, unpack
from polytempo_client.imports import OWN_FILES

CALLS = 2
"""At once per process: one that it works on, and the next."""
CALL_SECONDS = 0.05
"""What a call should take: some twenty times what it costs."""
MOST_PER_CALL = 64
AHEAD = 2
"""Results that are held at most for each computation that the processes are given at once."""
ATTEMPTS = 3
"""A computation in which so many processes died is not tried again."""
PATIENCE = 60.0
"""Seconds without a process after which the user is told what the run waits for."""
INERTIA = 0.9
"""Of the average duration, when a new one comes."""


Answer = tuple[Callable[[Any], None], Future[Any]]
"""Of a process, with what is to be done about it."""


@dataclass(eq=False)
class Process:
    """One of the cluster's processes, as the driver sees it."""

    actor: Any
    calls: int = 0
    """That it has not answered."""
    is_ready: bool = False
    was_ready: bool = False


@dataclass(eq=False)
class Held:
    """A computation, with the models that it holds."""

    computation: Computation
    models: list[OpenModel]
    deaths: int = 0
    """Of processes that were given it."""

    def tensors(self) -> list[Tensor]:
        return self.computation.tensors()


@dataclass(frozen=True, eq=False)
class OpenCall:
    """What a process was given."""

    process: Process
    queued: list[Queued]
    known: dict[str, Tensor]
    """What the answer may name."""


class Actors(Executor):
    """Processes of the Ray cluster that is connected. They start with the first computation."""

    def __init__(self, worker: Worker, workers: int, ahead: int | None = None) -> None:
        super().__init__(workers, AHEAD * CALLS * workers if ahead is None else ahead)
        self._worker, self._ahead_is_given = worker, ahead is not None
        self._processes: list[Process] = []
        self._needed: list[Any] = []
        """What processes need to begin: where modules are, and the worker with its data, which lie in the cluster's
        memory."""
        self._models = OpenModels(worker.data.values())
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._failure: BaseException | None = None
        self._seconds: dict[Kind, float] = {}
        """That a computation takes, on average."""

    def close(self) -> None:
        if not self._processes:
            return
        self._answers.put(None)
        self._listener.join()
        for process in self._processes:
            if not process.is_ready:
                ray.kill(process.actor)
        idle.give_back(self.workers, [process.actor for process in self._processes if process.is_ready])
        self._processes, self._needed = [], []

    def _add(self, key: object, arrival: float, computation: Computation, kind: Kind) -> None:
        super()._add(key, arrival, Held(computation, self._models.of(computation)), kind)

    def _stir(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._processes:
            self._start()
        self._hand_out(self._per_call())

    def _wait(self, queued: Queued) -> None:
        """While the driver waits, nobody else is to: calls need not be full."""
        with self._changed:
            self._hand_out(1)
        queued.finished.wait()

    # Processes begin and die.

    def _start(self) -> None:
        for name, module in sys.modules.items():
            if name.startswith(OWN_FILES):  # nobody else could import it
                cloudpickle.register_pickle_by_value(module)
        worker, data = ray.put(pack(self._worker, self._worker.data)[0]), self._worker.data
        path = [directory or os.getcwd() for directory in sys.path]
        self._needed = [path, worker, list(data), *(ray.put(tensor.numpy()) for tensor in data.values())]
        self._processes = [Process(actor) for actor in idle.take(self.workers)]
        actor = ray.remote(RemoteWorker).options(num_cpus=1, max_restarts=-1, scheduling_strategy="SPREAD")
        self._processes += [Process(actor.remote()) for _ in range(self.workers - len(self._processes))]
        for process in self._processes:
            self._introduce(process)
        self._listener.start()

    def _introduce(self, process: Process) -> None:
        """Ask a process to begin: again and again, should it die."""
        begun = process.actor.begin.options(max_task_retries=-1).remote(*self._needed)
        self._expect(begun, partial(self._introduced, process))

    def _introduced(self, process: Process, answer: Future[Introduction]) -> None:
        error = answer.exception()
        if error is not None:
            raise _cannot_begin(error) from None
        told = answer.result()
        unlike = _unlike(told.machine)
        if not unlike:
            process.is_ready = process.was_ready = True
            return
        refusal = (
            f"The node {told.node} has {unlike}: its results would differ in their last bits. Install the same "
            "versions there, or take nodes with the same kind of CPU."
        )
        if not process.was_ready:
            raise UserError(refusal)
        warnings.warn(f"{refusal} A worker that was to begin there is left out.", stacklevel=2)
        ray.kill(process.actor)

    def _lost(self, call: OpenCall, error: BaseException) -> None:
        """The computations of a call are given to others."""
        for queued in call.queued:
            self._stop_working()
            held: Held = queued.computation
            held.deaths += 1
            if held.deaths == ATTEMPTS and queued.state != "dropped":
                raise PassingError(
                    f"{ATTEMPTS} workers died one after the other in the same computation ({_in_short(error)}). If "
                    "they were out of memory, take fewer workers per node; the run goes on from its last checkpoint."
                )
            self._ahead.repeat(queued)
        if isinstance(error, RayActorError) and call.process.is_ready:
            call.process.is_ready = False
            self._introduce(call.process)

    # Calls.

    def _hand_out(self, least: int) -> None:
        """Give computations to processes, evenly, as long as there are this many."""
        while self._ahead.waiting >= least:
            free = [process for process in self._processes if process.is_ready and process.calls < CALLS]
            if not free:
                return
            share = math.ceil(self._ahead.waiting / sum(CALLS - process.calls for process in free))
            queued = self._begin_several(share)
            if not queued:
                return
            self._call(min(free, key=lambda process: process.calls), queued)

    def _begin_several(self, most: int) -> list[Queued]:
        """The next computations, up to what a call should take."""
        found: list[Queued] = []
        seconds = 0.0
        while len(found) < min(most, MOST_PER_CALL) and seconds < CALL_SECONDS:
            queued = self._begin()
            if queued is None:
                break
            found.append(queued)
            seconds += self._seconds.get(queued.kind, CALL_SECONDS)
        return found

    def _per_call(self) -> int:
        """How many trainings a full call holds."""
        return min(math.ceil(CALL_SECONDS / max(self._seconds.get("training", CALL_SECONDS), 1e-6)), MOST_PER_CALL)

    def _call(self, process: Process, queued: list[Queued]) -> None:
        held: list[Held] = [one.computation for one in queued]
        models = self._models.referred_to(model for one in held for model in one.models)
        known = self._worker.data | {model.name: model.tensor for model in models}
        parcel, memory = pack([one.computation for one in held], known)
        names, references = [model.name for model in models], [model.reference for model in models]
        answer = process.actor.work.remote(parcel, names, *references)
        process.calls += 1
        self._expect(answer, partial(self._answered, OpenCall(process, queued, known | named(memory))))

    def _answered(self, call: OpenCall, answer: Future[Any]) -> None:
        call.process.calls -= 1
        error = answer.exception()
        if isinstance(error, RayTaskError):
            raise error
        if error is not None:
            self._lost(call, error)
            return
        done: list[Computed] = unpack(answer.result(), call.known)[0]
        for queued, one in zip(call.queued, done, strict=True):
            self._end(queued, one)
            before = self._seconds.get(queued.kind, one.wall)
            self._seconds[queued.kind] = INERTIA * before + (1 - INERTIA) * one.wall
        if not self._ahead_is_given:
            self._ahead.ahead = AHEAD * CALLS * self.workers * self._per_call()

    def _expect(self, reference: Any, react: Callable[[Any], None]) -> None:
        reference.future().add_done_callback(lambda answer: self._answers.put((react, answer)))

    def _listen(self) -> None:
        """Take the answers as they come, in a thread of its own, so that processes get more while the driver thinks."""
        while (answer := self._next_answer()) is not None:
            react, future = answer
            with self._changed:
                try:
                    react(future)
                    self._hand_out(1)
                except BaseException as error:
                    self._failure = error
                    self._ahead.fail(error)

    def _next_answer(self) -> Answer | None:
        while True:
            try:
                return self._answers.get(timeout=PATIENCE)
            except queue.Empty:
                if not any(process.is_ready for process in self._processes):
                    warnings.warn("No worker of the Ray cluster has begun, or is left: the run waits.", stacklevel=2)


def _unlike(there: dict[str, str]) -> str:
    """What differs there from here, in words."""
    here = machine()
    different = [name for name in here if there.get(name) != here[name]]
    if different == ["cpu features"]:
        return "a CPU with other features than this machine's"
    told = (name for name in different if name != "cpu features")
    return ", ".join(f"{name} {there.get(name)} where this machine has {here[name]}" for name in told)


def _cannot_begin(error: BaseException) -> BaseException:
    """Why a process cannot make its worker."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, UserError):
        return cause
    return UserError(
        f"A worker of the Ray cluster cannot begin ({_in_short(cause)}). Expected the same packages on every node as "
        "here, your own among them."
    )


def _in_short(error: BaseException) -> str:
    """The kind of an error, and the first line of what it says."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
