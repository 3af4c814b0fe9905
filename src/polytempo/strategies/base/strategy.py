"""A strategy is the server's side of a method. It is told what happened and answers with orders; it never waits, reads
a clock, opens a file or draws from a global random generator. So the same file runs simulated and served."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np
import pydantic.dataclasses
import torch
from pydantic import ConfigDict, Field, PydanticUserError, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ArgsKwargs
from torch import Tensor

from polytempo.core.branch import Branch
from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Candidates, Objective, Order, Orders, Train, Work
from polytempo.core.registry import Registry
from polytempo.core.splits import Regrouping, Split
from polytempo.core.validation import refusal
from polytempo.strategies.base.participation import EVERYONE, Participation, Quota
from polytempo_client.imports import from_import_path, unknown
from polytempo_client.model.schema import Schema
from polytempo_client.personal.told import Personal

Presets = Mapping[str, Mapping[str, Any]]
"""By name: the parameters that a preset sets."""
S = TypeVar("S", bound="Strategy")


@dataclass(frozen=True)
class Setting:
    """What a strategy is told before the first event."""

    initial: Tensor
    schema: Schema
    work: Work = field(default_factory=Work)
    participation: Quota = EVERYONE
    seed: int = 0
    planned_updates: int | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)
    """What a method needs from the world, by name (losses on proxy data, say). They are not part of its state."""

    @cached_property
    def initial_norm(self) -> float:
        """The length of the first model."""
        return float(torch.linalg.vector_norm(self.initial, dtype=torch.float64))


RECONSTRUCTED = (
    "Reconstructed: built from what other papers say of it. Do not read its figures as those of the authors' method."
)


class Strategy:
    """The base of all methods: one global model, given to whoever's turn it is. A method declares its parameters as
    fields, makes its state in ``setup``, and overrides the events that it cares about.

    State is every attribute that is not a parameter; it has to be packable (``polytempo.core.state``)."""

    travels: ClassVar[bool] = True
    """Do models travel between server and clients? If not, they cost no bytes and no network time."""
    reconstructed: ClassVar[bool] = False
    """Is the method known only from how other papers describe it? Tables say so, with ``RECONSTRUCTED``."""
    unmixable: ClassVar[str] = ""
    """Why deltas of several clients cannot be mixed robustly; empty if they can."""
    needs_proxies: ClassVar[bool] = False
    """Does the server need proxy sets, samples of its own for each cluster (``parts/proxies.py``)?"""

    needs_personal: ClassVar[bool] = False
    """Do its clients follow the personal rule (``parts/personal.py``) in any case?"""

    personal_layers: ClassVar[tuple[str, ...]] = ()
    """The layers that stay at the clients (``learn/private_layers.py``), where the settings name none."""

    presets: ClassVar[Presets] = {}
    """The values of the parameter ``preset``, and the parameters that each of them sets. What is given wins."""

    revision: ClassVar[int] = 0
    """How often its results have changed for the same parameters. Benchmarks run it again when they do."""

    model: Branch
    setting: Setting
    participation: Participation

    def begin(self, setting: Setting) -> None:
        """Called once, before the first event."""
        self.setting = setting
        self.participation = Participation(setting.participation, setting.seed)
        self.model = Branch(setting.initial)
        self.setup()

    def setup(self) -> None:
        """Make the method's own state."""

    # Events. Each answers with orders, or with nothing.

    def joined(self, client: int, now: float) -> Orders:
        """A client takes part from now on (again, if it had left)."""
        self.participation.join(client)
        return None

    def ready(self, client: int, now: float) -> Orders:
        """A client is free and asks for work."""
        return self._start(self.participation.release(client), now)

    def updated(self, update: Update, now: float) -> Orders:
        """A client hands in its result. It says ``ready`` afterwards."""
        return None

    def observed(self, update: Update, now: float) -> Orders:
        """A client hands in a result that robust mixing holds back: it moves no model. By default ``updated`` receives
        a copy with a zero delta, since a method may wait for the client. Methods that assign clients do that here."""
        return self.updated(update.as_held_back(self.model_for(update.client)), now)

    def pulled(self, client: int, now: float) -> Orders:
        """A client asks for its model without training. Answer with Send."""
        return None

    def fired(self, key: str, now: float) -> Orders:
        """A timer set by SetTimer is due."""
        return None

    def left(self, client: int, now: float) -> Orders:
        """A client is gone; what it was training is lost."""
        self.participation.leave(client)
        return self._start(self.participation.fill(), now)

    def forget(self, client: int) -> None:
        """Keep nothing that this client, which is not there, has handed in or answered. Models keep what they have
        learnt from it. A method that remembers clients after ``left`` forgets this one here. A sum from which one
        client's part cannot be taken, such as momentum, begins anew."""

    # Questions that a driver asks.

    def model_for(self, client: int) -> Tensor:
        """What this client would be served now."""
        return self.model.weights

    def stack(self) -> "list[Strategy]":
        """This strategy and, of a wrapper, all that is inside, the method last."""
        return [self]

    @property
    def held_back(self) -> int | None:
        """How many updates robust mixing has held back; None without robust mixing."""
        return None

    def personal(self) -> Personal | None:
        """The rule by which clients keep a model of their own (``learn/rules``), as their orders name it; None if they
        keep none."""
        return None

    @property
    def bad_reports(self) -> int | None:
        """How many reports of clients' juries cannot be true; None without the personal rule."""
        return None

    @property
    def tryout_winner(self) -> str | None:
        """The side that won the personal rule's tryout, ``solo`` or ``mixing``; None while it is open, and without the
        rule."""
        return None

    def cluster_of(self, client: int) -> int:
        """Clients with the same number share a model."""
        return 0

    def branch_of(self, update: Update) -> int:
        """The number of the branch that an update counts on: that of its client, unless the client chose another."""
        return self.cluster_of(update.client)

    def tau(self, update: Update) -> int:
        """The staleness of an update: ``tau_i = t - v_i``."""
        return self.model.version - update.version

    def resolved(self) -> dict[str, Any]:
        """What is used for parameters that were left open, by their names."""
        return {}

    def splits(self) -> Sequence[Split]:
        """How its clusters came about, in order of time."""
        return ()

    def regroupings(self) -> Sequence[Regrouping]:
        """How its clusters were expanded and merged, in order of time."""
        return ()

    def similarity(self) -> np.ndarray | None:
        """What a clustered method knows of how alike its clients are: a symmetric matrix by client number, NaN where
        two were never compared; None for a method that compares nobody."""
        return None

    def collaboration(self) -> np.ndarray | None:
        """Who learns from whom: ``W[i, j]`` is the weight of client j in the model of client i, by client number, NaN
        in the rows of clients for whom it was never estimated; None for a method without such a graph."""
        return None

    def mixture(self, client: int) -> np.ndarray | None:
        """The shares of the clusters in the client's data, as last estimated; None for a method without such an
        estimate, and for a client that has handed in nothing yet."""
        return None

    def cluster_models(self) -> Sequence[Tensor]:
        """The models that mixtures weigh, in the order of the proxy sets; none for a method without mixtures."""
        return ()

    # For the methods.

    def order_for(self, client: int, now: float) -> Train:
        """The work of a client whose turn it is."""
        return self.train(client, self.model)

    def train(
        self,
        client: int,
        branch: Branch,
        *,
        steps: int | None = None,
        objective: Objective | None = None,
        candidates: Candidates | None = None,
        questions: tuple[str, ...] = (),
        mask: Tensor | None = None,
        trainable: tuple[str, ...] = (),
    ) -> Train:
        """Order the run's usual local work, from this branch's current version."""
        work = self.setting.work if steps is None else replace(self.setting.work, steps=steps)
        return Train(
            client,
            branch.weights,
            branch.version,
            work,
            objective or Objective(),
            candidates,
            questions,
            mask,
            trainable,
            personal=self.personal(),
        )

    def _start(self, clients: list[int], now: float) -> Iterator[Order]:
        for client in clients:
            yield self.order_for(client, now)

    # State.

    def parameters(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def save_state(self) -> dict[str, Any]:
        """Everything that is not a parameter, as packable data."""
        kept = {f.name for f in fields(self)} | {"setting"}  # type: ignore[arg-type]
        return {name: value for name, value in sorted(vars(self).items()) if name not in kept}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Go back to a saved state, after ``begin``."""
        for name, value in saved.items():
            setattr(self, name, value)


strategies: Registry[type[Strategy]] = Registry("strategy")


def is_reconstructed(name: str) -> bool:
    """Whether a registered method is known only from how other papers describe it."""
    return name in strategies and strategies[name].reconstructed


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
def parameters(cls: type[S]) -> type[S]:
    """Make the annotated fields of a strategy, and of the classes it is derived from, its validated, documented
    parameters."""
    for base in cls.__mro__[-2:0:-1]:
        if _has_fields_to_make(base):
            parameters(base)
    if "presets" in vars(cls):
        if "preset" not in cls.__annotations__ and not hasattr(cls, "preset"):
            raise UserError(f"{cls.__name__} has presets and no parameter for their name. Add a field 'preset'.")
        cls._fill_in_preset = model_validator(mode="before")(_with_preset)  # type: ignore[attr-defined]
    config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", allow_inf_nan=False)
    return pydantic.dataclasses.dataclass(kw_only=True, config=config, eq=False, repr=False)(cls)  # type: ignore[return-value]


def _has_fields_to_make(base: type) -> bool:
    """Does a class declare fields that nobody has made parameters yet? Where it is derived from a class with
    parameters, so is every annotated field."""
    if "__pydantic_fields__" in vars(base):
        return False
    declared = any(isinstance(value, FieldInfo) for value in vars(base).values())
    return declared or (is_dataclass(base) and bool(vars(base).get("__annotations__")))


def _with_preset(cls: Any, given: ArgsKwargs) -> ArgsKwargs:
    """What a strategy is made with, and the parameters of its preset, or of the usual one, that were not given."""
    chosen = given.kwargs or {}
    preset = chosen.get("preset", cls.__pydantic_fields__["preset"].default)
    return ArgsKwargs(given.args, {**cls.presets.get(str(preset), {}), **chosen})


def strategy(name: str) -> Callable[[type[S]], type[S]]:
    """Register a method under its name on the command line."""

    @dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
    def register(cls: type[S]) -> type[S]:
        made = parameters(cls)
        strategies.add(name, made)
        return made

    return register


def known_name(cls: type[Strategy]) -> str | None:
    """The name under which a class is registered, if it is."""
    return next((name for name, known in strategies.items() if known is cls), None)


def strategy_class(name: str) -> type[Strategy]:
    """A strategy by registered name or import path. One's own class needs no decorator."""
    if ":" not in name:
        return strategies[name]
    return as_strategy(from_import_path(name, "strategy"), name)


def as_strategy(found: object, name: str) -> type[Strategy]:
    """A class of one's own as a strategy with validated parameters."""
    if not isinstance(found, type) or not issubclass(found, Strategy):
        raise UserError(f"strategy {name!r} is {found!r}; expected a class derived from Strategy.")
    has_parameters = bool(pydantic.dataclasses.is_pydantic_dataclass(found))
    return found if has_parameters else parameters(found)


def make_strategy(name: str, given: Mapping[str, Any], own: type[Strategy] | None = None) -> Strategy:
    """A strategy with its parameters checked; ``own`` is its class where the name does not lead to it."""
    cls: Any = own or strategy_class(name)
    known = [f.name for f in fields(cls)]
    for key in given:
        if key == "preset" and key not in known:
            raise UserError(f"{name} has no presets: it has one set of defaults. Leave preset out.")
        if key not in known:
            raise UserError(unknown(f"parameter of {name}", key, known))
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise UserError(f"Strategy {name} is not complete: it has to say {', '.join(missing)}.")
    try:
        made: Strategy = cls(**given)
        return made
    except ValidationError as error:
        raise refusal(error, f"Parameters of {name}") from None
    except PydanticUserError as error:  # a type in the class's annotations that does not exist
        raise UserError(f"Parameters of {name} cannot be checked: {error.message}") from error
