"""A method's parameters, declared as fields."""

from pydantic import Field

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
