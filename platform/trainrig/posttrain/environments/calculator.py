"""A calculator that the model may ask in the midst of its answer."""

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Literal

from pydantic import Field

from trainrig.posttrain.environments.contract import EnvironmentPart, StepResult

LONGEST = 200  # characters of a sum
LARGEST = 10**15  # of any number on the way: a power must not take all day
DIGITS = 6  # behind the point, of what has no end

_OPERATIONS: dict[type[ast.AST], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Calculator(EnvironmentPart):
    """Computes what stands between `begin` and `end`, such as <<48/2>>, and lets the model go on.

    It gives no reward: say in `rewards` what the whole is worth. + - * / and brackets, exact.
    """

    kind: Literal["Calculator"] = "Calculator"
    begin: str = Field(default="<<", min_length=1)  # text before a sum
    end: str = Field(default=">>", min_length=1)  # text behind it, which ends the model's turn

    @property
    def stops(self) -> tuple[str, ...]:
        """What stands behind a sum."""
        return (self.end,)

    def open(self) -> "Calculator":
        """Itself: there is nothing to load, and nothing is kept of an episode."""
        return self

    def reset(self, episode: int, row: Mapping[str, object]) -> str:
        """Nothing follows the prompt."""
        return ""

    def step(self, episode: int, text: str) -> StepResult:
        """The value behind an equals sign, such as "=24", or "=?" for what is no sum."""
        _, asked, written = text.rpartition(self.begin)
        return StepResult(f"={evaluate_sum(written) or '?'}" if asked else "", 0.0, done=False)

    def forget(self) -> None:
        """Nothing was kept."""


def evaluate_sum(written: str) -> str | None:
    """What a sum comes to, in decimals; None: it is none, or too large."""
    if len(written) > LONGEST:
        return None
    try:
        value = _evaluate(ast.parse(written.replace(",", "").strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, MemoryError, RecursionError):
        return None
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.{DIGITS}f}".rstrip("0").rstrip(".")


def _evaluate(node: ast.AST) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value = Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = -_evaluate(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            value = _evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            value = _OPERATIONS[type(op)](_evaluate(left), _evaluate(right))
        case _:
            raise ValueError("no sum")
    if abs(value) > LARGEST:
        raise ValueError("too large")
    return value
