"""The little language of rules: a comparison of two expressions on named figures.

    accuracy["casa"] - accuracy["fedavg"] > 0            rows of the claim's table
    time_to_target["fedavg"] / time_to_target["casa"] > 1
    gmean(t["class-5-normal", "fedbuff"] / t["class-5-normal", "fedcompass"], ...) > 1      rows of other tables
    accuracy["casa-buffer", "cifar10", "M = 75"] > max(accuracy["cfl-async"], accuracy["ifca-async k=4"])

    reached(time_to_target["fedasync"]) < 0.5            1 if the target was reached, else 0

A figure is what its column shows, so accuracies are in percent. It has one value per seed, and a rule is worked out
seed by seed. Python's parser reads the text; nothing of it is ever run."""

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple


class RuleError(ValueError):
    """What is wrong with a rule."""


class Name(NamedTuple):
    """A figure of a row. An empty table or bench is the claim's own."""

    figure: str
    row: str
    table: str = ""
    bench: str = ""


class Value(NamedTuple):
    """What a figure is with one seed."""

    number: float
    at_least: bool = False
    """Is the true value this or more? So it is with the time to a target that was not reached."""


Lookup = Callable[[Name], Value | None]
"""The value of a figure with one seed; None if it is not known."""

MOST_PARTS = 3
"""Of what stands in the brackets of a figure."""
FUNCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "max": max,
    "min": min,
    "mean": fmean,
    "gmean": lambda values: math.exp(fmean(map(math.log, values))),
    "abs": lambda values: abs(values[0]),
}
"""Of as many values as are known; None if none is."""
REACHED = "reached"
"""1 of a time to a target that was reached, 0 of one that was not."""
OF_ONE = ("abs", REACHED)
"""Functions of one expression."""
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


@dataclass(frozen=True)
class ClaimRule:
    """A rule that was read."""

    text: str
    left: ast.expr
    right: ast.expr
    more: bool
    """Is the left side said to be the larger one?"""

    @property
    def is_ratio(self) -> bool:
        """Is the left side a quotient, or a mean of quotients? Then differences of logarithms are looked at."""
        quotient = isinstance(self.left, ast.BinOp) and isinstance(self.left.op, ast.Div)
        return quotient or (isinstance(self.left, ast.Call) and _function(self.left) == "gmean")

    def names(self) -> list[Name]:
        """The figures that it is about, each once."""
        found = [_name(node) for side in (self.left, self.right) for node in ast.walk(side) if _is_figure(node)]
        return list(dict.fromkeys(found))

    def left_value(self, lookup: Lookup) -> Value | None:
        return _worked_out(self.left, lookup)

    def right_value(self, lookup: Lookup) -> Value | None:
        return _worked_out(self.right, lookup)


def read_rule(text: str) -> ClaimRule:
    """A rule, checked to its last word."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RuleError(f"{text!r} is no rule: {error}") from None
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1 or not isinstance(tree.ops[0], ast.Gt | ast.Lt):
        raise RuleError(f"{text!r} is no rule. Expected two expressions with > or < between them.")
    for side in (tree.left, tree.comparators[0]):
        _check(side)
    return ClaimRule(text, tree.left, tree.comparators[0], more=isinstance(tree.ops[0], ast.Gt))


def _check(node: ast.expr) -> None:
    """Refuse everything that is not part of the language."""
    for part in _parts(node):
        _check(part)


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """The expressions that one is made of."""
    match node:
        case ast.Constant(value=bool()) | ast.Constant(value=complex()):
            raise RuleError(f"{ast.unparse(node)} is no number.")
        case ast.Constant(value=int() | float()):
            return
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            yield from (left, right)
        case ast.UnaryOp(ast.USub(), operand):
            yield operand
        case ast.Call(ast.Name(function), arguments, []) if function in (*FUNCTIONS, REACHED) and arguments:
            if function in OF_ONE and len(arguments) > 1:
                raise RuleError(f"{ast.unparse(node)}: {function} takes one expression.")
            yield from arguments
        case ast.Subscript():
            _name(node)
        case _:
            known = ", ".join(FUNCTIONS)
            raise RuleError(
                f'{ast.unparse(node)} is not understood. Expected numbers, figure["row"], + - * /, {known}.'
            )


def _is_figure(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript)


def _name(node: ast.AST) -> Name:
    """``figure["row"]``, ``figure["table", "row"]`` or ``figure["bench", "table", "row"]``."""
    assert isinstance(node, ast.Subscript)
    inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    words = [part.value for part in inside if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if not isinstance(node.value, ast.Name) or len(words) != len(inside) or not words or len(words) > MOST_PARTS:
        raise RuleError(f'{ast.unparse(node)} names no figure. Expected figure["row"] or figure["table", "row"].')
    row, table, bench = (*reversed(words), "", "")[:MOST_PARTS]
    return Name(node.value.id, row, table, bench)


def _function(node: ast.Call) -> str:
    assert isinstance(node.func, ast.Name)
    return node.func.id


def _worked_out(node: ast.expr, lookup: Lookup) -> Value | None:
    """The value of an expression with one seed; None if it lacks a figure."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return Value(float(number))
        case ast.Subscript():
            return lookup(_name(node))
        case ast.UnaryOp(_, operand):
            value = _worked_out(operand, lookup)
            return None if value is None or value.at_least else Value(-value.number)
        case ast.BinOp(left, op, right):
            return _combined(OPERATORS[type(op)], _worked_out(left, lookup), _worked_out(right, lookup))
        case ast.Call(_, arguments):
            known = [value for part in arguments if (value := _worked_out(part, lookup)) is not None]
            return _applied(_function(node), known)
    raise RuleError(f"{ast.unparse(node)} was not checked")  # pragma: no cover


def _applied(function: str, values: Sequence[Value]) -> Value | None:
    """A function of values. The least of times, of which one is a bound, is a bound only if it is that one."""
    if not values:
        return None
    if function == REACHED:
        return Value(0.0 if values[0].at_least else 1.0)
    if function in ("max", "min"):
        chosen = FUNCTIONS[function]([value.number for value in values])
        return Value(chosen, all(value.at_least for value in values if value.number == chosen))
    numbers = [value.number for value in values]
    return Value(FUNCTIONS[function](numbers), any(value.at_least for value in values))


def _combined(operator: str, left: Value | None, right: Value | None) -> Value | None:
    if left is None or right is None:
        return None
    if operator == "/":
        return _quotient(left, right)
    number = {"+": left.number + right.number, "-": left.number - right.number, "*": left.number * right.number}
    if left.at_least and right.at_least and operator == "-":
        return None
    return Value(number[operator], left.at_least or right.at_least)


def _quotient(left: Value, right: Value) -> Value | None:
    """Of two times that were not reached nothing is known. Where one was not, the other is the shorter one, and the
    quotient is taken no further than what is known."""
    if (left.at_least and right.at_least) or right.number == 0:
        return None
    number = left.number / right.number
    if left.at_least:
        return Value(max(number, 1.0), at_least=True)
    return Value(min(number, 1.0), at_least=True) if right.at_least else Value(number)
