"""Templates and expressions of task files, over the fields of a row.

Task files come from strangers as rows do, so Jinja's sandbox evaluates them: no attribute that
begins with an underscore, no call that changes what it is given.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.checks.maths import find_last_boxed

Fields = Mapping[str, Any]


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # prompts, not pages
        finalize=_refuse_structures,
    )
    environment.filters["regex_replace"] = _replace_pattern
    environment.filters["boxed"] = find_last_boxed
    environment.globals["instructions"] = _pair_instructions
    return environment


def _refuse_structures(value: Any) -> Any:
    """Return `value`, which a template is to write out. Raise TypeError for what has no text of its
    own, such as messages: it would be written as Python writes it."""
    if isinstance(value, Mapping | list | tuple):
        raise TypeError(f"{value!r:.60} is no text; name a part of it, or add `| tojson`")
    return value


def _replace_pattern(text: str, pattern: str, put: str = "", count: int = 0) -> str:
    return re.sub(pattern, put, text, count=count)


def _pair_instructions(ids: Sequence[str], arguments: Sequence[Fields]) -> list[Fields]:
    """IFEval's two lists as one: what to follow, with its arguments."""
    return [{"id": each, "arguments": given} for each, given in zip(ids, arguments, strict=True)]


_ENVIRONMENT = _make_environment()


def compile_template(source: str, where: str) -> Callable[[Fields, str], str]:
    """What makes a text of a row's fields; `where`, and at each call the row, is named in errors.

    Raises ConfigError if `source` is no template.
    """
    try:
        compiled = _ENVIRONMENT.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{where}: no template: {error}") from None
    return lambda fields, row: _evaluate_template(lambda: compiled.render(fields), where, row)


def compile_expression(source: str, where: str) -> Callable[[Fields, str], Any]:
    """What makes a value of a row's fields. Raises ConfigError if `source` is no expression."""
    try:
        compiled = _ENVIRONMENT.compile_expression(source, undefined_to_none=False)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{where}: no expression: {error}") from None

    def value(fields: Fields) -> Any:
        found = compiled(**fields)
        if isinstance(found, jinja2.Undefined):
            found._fail_with_undefined_error()
        return found

    return lambda fields, row: _evaluate_template(lambda: value(fields), where, row)


def _evaluate_template(evaluate: Callable[[], Any], where: str, row: str) -> Any:
    try:
        return evaluate()
    except jinja2.UndefinedError as error:
        raise DataError(f"{row}: {where} speaks of what the row has not: {error.message}") from None
    except SecurityError as error:
        raise ConfigError(f"{where}: not allowed in a task file: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise DataError(f"{row}: {where} cannot be computed of this row: {said}") from None


def parse_texts(value: Any) -> tuple[str, ...] | None:
    """`value` as texts if it is a list of texts and numbers, or one of them; else None."""
    items = [value] if isinstance(value, str | int | float) else value
    if not isinstance(items, Sequence) or isinstance(items, bytes):
        return None
    if not all(isinstance(item, str | int | float) for item in items):
        return None
    return tuple(str(item) for item in items)
