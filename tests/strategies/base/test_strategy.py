"""A method's parameters, declared as fields."""

from typing import Any, Literal

import pytest
from pydantic import Field, ValidationError

from polytempo.core.errors import UserError
from polytempo.strategies import Strategy
from polytempo.strategies.base.strategy import as_strategy


class Mixing(Strategy):
    share: float = Field(0.5)


class Careful(Mixing):
    pass


class Asking(Strategy):
    questions: tuple[str, ...] = ()


class AskingOnce(Asking):
    questions = ("fit",)


def test_a_class_of_ones_own_has_the_parameters_of_the_class_it_is_derived_from() -> None:
    made = as_strategy(Careful, "own:Careful")(share=0.1)  # type: ignore[call-arg]
    assert made.parameters() == {"share": 0.1}
    assert Mixing().parameters() == {"share": 0.5}


def test_an_attribute_of_a_base_that_is_no_field_is_no_parameter() -> None:
    made = as_strategy(AskingOnce, "own:AskingOnce")()
    assert made.parameters() == {}
    assert made.questions == ("fit",)  # type: ignore[attr-defined]


class MixingLess(Mixing):
    share: float = 0.2


class MixingLessOften(MixingLess):
    every: int = 3


def test_a_base_may_change_a_default_without_describing_the_field_again() -> None:
    assert as_strategy(MixingLessOften, "own:MixingLessOften")().parameters() == {"share": 0.2, "every": 3}


class Preset(Strategy):
    preset: Literal["ours", "paper"] = Field("settled")
    share: float = Field(0.5)
    power: float = Field(1.0)
    presets = {"paper": {"share": 0.1, "power": 2.0}}  # noqa: RUF012


class DerivedPreset(Preset):
    more: int = Field(3)


@pytest.mark.parametrize("cls", [Preset, DerivedPreset])
def test_a_preset_sets_parameters_and_what_is_given_wins(cls: type[Strategy]) -> None:
    made: Any = as_strategy(cls, "own:Preset")
    assert (made().share, made().power) == (0.5, 1.0)
    assert (made(preset="paper").share, made(preset="paper").power) == (0.1, 2.0)
    assert (made(preset="paper", power=3.0).share, made(preset="paper", power=3.0).power) == (0.1, 3.0)


class UsuallyPaper(Preset):
    preset: Literal["ours", "paper"] = Field("paper")


def test_the_usual_preset_sets_its_parameters_too() -> None:
    made: Any = as_strategy(UsuallyPaper, "own:UsuallyPaper")
    assert (made().share, made(share=0.2).share, made(preset="ours").share) == (0.1, 0.2, 0.5)


def test_a_preset_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValidationError, match="'ours' or 'paper'"):
        as_strategy(Preset, "own:Preset")(preset="papre")  # type: ignore[call-arg]


def test_presets_without_a_parameter_for_their_name_are_refused() -> None:
    class Nameless(Strategy):
        presets = {"paper": {}}  # noqa: RUF012

    with pytest.raises(UserError, match="Add a field 'preset'"):
        as_strategy(Nameless, "own:Nameless")
