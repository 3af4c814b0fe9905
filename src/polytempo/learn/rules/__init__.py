"""What clients keep of their own, one file per rule. An order names its rule (``core.orders.Personal``); ``rule_of``
finds it."""

from typing import TYPE_CHECKING

from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.learn.rules.apfl import ApflRule
from polytempo.learn.rules.ditto import DittoRule
from polytempo.learn.rules.fedala import FedAlaRule
from polytempo.learn.rules.fedrep import FedRepRule
from polytempo.learn.rules.jury import JuryRule
from polytempo.learn.rules.rule import Rule
from polytempo_client.imports import unknown
from polytempo_client.personal.told import Personal

if TYPE_CHECKING:
    from polytempo.learn.learner import Assignment, Learner

RULES: dict[str, type[Rule]] = {
    "jury": JuryRule,
    "ditto": DittoRule,
    "apfl": ApflRule,
    "fedala": FedAlaRule,
    "fedrep": FedRepRule,
}


def rule_of(personal: Personal | None) -> type[Rule]:
    """The rule that an order names; where it names none, the client keeps nothing."""
    if personal is None:
        return Rule
    if personal.rule not in RULES:
        raise UserError(unknown("personal rule", personal.rule, RULES))
    return RULES[personal.rule]


def begin_rule(learner: "Learner", assignment: "Assignment", served: Tensor, candidate: int | None) -> Rule:
    """The rule of an assignment's order, at work on it."""
    return rule_of(assignment.order.personal)(learner, assignment, served, candidate)
