"""Calculator that the model may call in the middle of its answer."""

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Literal

from pydantic import Field

from trainrig.posttrain.environments.contract import EnvironmentPart, StepResult

LONGEST = 200  # longest expression, in characters
LARGEST = 10**15  # limit of every intermediate result, so that no expression takes long
DIGITS = 6  # decimal places of results that are no integer

_OPERATIONS: dict[type[ast.AST], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Calculator(EnvironmentPart):
    """Calculator for expressions between `begin` and `end`, such as <<48/2>>.

    The model writes the expression, the calculator appends the result, and the model continues.
    The operators + - * / and brackets are exact. The calculator gives no reward: set `rewards` to
    score the whole completion.
    """

    kind: Literal["Calculator"] = "Calculator"
    begin: str = Field(default="<<", min_length=1)  # text before an expression
    # Text after an expression, which ends the model's turn.
    end: str = Field(default=">>", min_length=1)

    @property
    def stops(self) -> tuple[str, ...]:
        """The text after an expression, which ends the model's turn."""
        return (self.end,)

    def open(self) -> "Calculator":
        """Return this object, which loads nothing and has no state per episode."""
        return self

    def reset(self, episode: int, row: Mapping[str, object]) -> str:
        """Return an empty text: the calculator adds nothing to the prompt."""
        return ""

    def step(self, episode: int, text: str) -> StepResult:
        """Return the result after an equals sign, such as "=24", or "=?" for an invalid expression.

        The observation is empty if `text` does not contain `begin`.
        """
        _, asked, written = text.rpartition(self.begin)
        return StepResult(f"={evaluate_sum(written) or '?'}" if asked else "", 0.0, done=False)

    def forget(self) -> None:
        """Do nothing: there is no state per episode."""


def evaluate_sum(written: str) -> str | None:
    """Return the value of an arithmetic expression in decimals.

    Returns None if the expression is invalid, too long, or a number in it is too large.
    """
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
            raise ValueError("not a sum")
    if abs(value) > LARGEST:
        raise ValueError("too large")
    return value
