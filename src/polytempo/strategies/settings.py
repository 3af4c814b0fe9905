"""A strategy with everything that is set about it, as validated data: its parameters, who takes part, and how clients
train. What drives it (simulator or service) adds settings of its own."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.orders import Work
from polytempo.core.schedules import Schedule, parse_rate
from polytempo.core.validation import LAYERS, OR_NONE
from polytempo.strategies.base.contract import check_packable
from polytempo.strategies.base.explaining import explained
from polytempo.strategies.base.participation import Quota, parse_quota
from polytempo.strategies.base.strategy import Setting, Strategy, make_strategy
from polytempo.strategies.parts.claims import CappedSamples
from polytempo.strategies.parts.personal import PersonalRule
from polytempo.strategies.parts.robust import Mix, Robust, parse_robust
from polytempo_client.model.schema import Schema

CLIP = "scale updates down to this multiple of the median norm of the clients' newest ones, or none"
PERSONAL_LAYERS = "layers that stay at the clients, with commas between: head, body, or the names of the model's"
SAMPLES_CAP = "believe a client's sample count up to this multiple of the median of the clients' counts, or none"


class StrategySettings(BaseModel):
    """One strategy and its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    strategy: str = Field(description="name of the method, or the import path of your own")
    parameters: dict[str, Any] = Field({}, description="the strategy's own parameters")
    participation: str = Field("all", description="all, k:NUMBER at once, or share:FRACTION per round")
    clip: Annotated[float | None, OR_NONE] = Field(None, gt=0, description=CLIP)
    samples_cap: Annotated[float | None, OR_NONE] = Field(None, ge=1, description=SAMPLES_CAP)
    robust: str = Field(
        "none",
        description="what moves a model: none (the update itself), or median:K or trimmed:K:SHARE of recent ones",
    )
    personal: bool = Field(
        False, description="let clients keep a model of their own, and use the mixture that suits their data best"
    )
    personal_layers: Annotated[tuple[str, ...], LAYERS] = Field((), description=PERSONAL_LAYERS)
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="local optimiser")
    lr: float | str = Field(
        0.05, description="local learning rate, or step:START:FACTOR:ROUNDS, cosine:START:END:ROUNDS"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of local SGD")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of the local optimiser")
    batch_size: int = Field(10, ge=1, description="samples per local step")
    epochs: int | None = Field(None, ge=1, description="local epochs per update (default 1)")
    steps: int | None = Field(None, ge=1, description="local steps per update, instead of epochs")
    seed: int = Field(0, ge=0, description="random seed")

    _rate: float | Schedule = PrivateAttr()
    _quota: Quota = PrivateAttr()
    _mix: Mix | None = PrivateAttr()

    @model_validator(mode="after")
    def _consistent(self) -> "StrategySettings":
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps exclude each other: give one")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum belongs to sgd; adam has its own")
        return self

    def model_post_init(self, context: Any, /) -> None:
        """Words are parsed here and nowhere else."""
        self._rate = parse_rate(self.lr)
        self._quota = parse_quota(self.participation)
        self._mix = parse_robust(self.robust)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed. Its words are parsed anew, which pydantic would not do."""
        copy = super().model_copy(update=update, deep=deep)
        copy.model_post_init(None)
        return copy

    def work(self) -> Work:
        epochs = None if self.steps is not None else self.epochs or 1
        return Work(self.steps, epochs, self.batch_size, self.optimizer, self._rate, self.momentum, self.weight_decay)

    def check(self) -> None:
        """Refuse an unknown strategy, its parameters, or mixing what cannot be mixed, before anything costly begins."""
        self.make()

    def bare(self) -> Strategy:
        """The strategy with its parameters and nothing around it, not begun."""
        return make_strategy(self.strategy, self.parameters)

    def make(self) -> Strategy:
        """The strategy, not begun, with the defences around it that are set. ``begin`` takes it."""
        strategy = self.bare()
        if self._mix is not None and strategy.unmixable:
            raise UserError(
                f"robust is {self.robust!r}, and in {self.strategy} {strategy.unmixable}. Leave robust out; clip works "
                "with every method."
            )
        if strategy.travels and (self.clip is not None or self._mix is not None):
            strategy = Robust(strategy, self.clip, self._mix)
        if self.samples_cap is not None:
            strategy = CappedSamples(strategy, self.samples_cap)
        # Alone, there is nothing to mix; and some methods have a rule of their own.
        takes_rule = strategy.travels and strategy.personal() is None
        return PersonalRule(strategy) if strategy.needs_personal or (self.personal and takes_rule) else strategy

    def defences(self) -> list[str]:
        """What is done about hostile updates, in words."""
        clip = [] if self.clip is None else [f"clip {self.clip:g}"]
        cap = [] if self.samples_cap is None else [f"samples up to {self.samples_cap:g} x the median"]
        return [*clip, *([] if self._mix is None else [f"robust {self.robust}"]), *cap]

    def begin(
        self,
        strategy: Strategy,
        initial: Tensor,
        schema: Schema,
        planned_updates: int | None = None,
        objects: Mapping[str, Any] | None = None,
    ) -> Strategy:
        """The same strategy, before its first event."""
        with explained(strategy, "begin"):
            strategy.begin(
                Setting(initial, schema, self.work(), self._quota, self.seed, planned_updates, objects or {})
            )
        check_packable(strategy)
        return strategy
