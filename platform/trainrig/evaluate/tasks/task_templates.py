"""Templates and expressions of task files, over the fields of a row.

Task files and rows come from third parties, so Jinja's sandbox evaluates them: it refuses
attributes with a leading underscore, and calls that change their arguments.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import AfterValidator, ValidationInfo

from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.tasks.answer_checks import find_last_boxed

Fields = Mapping[str, Any]


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # prompts are not HTML
        finalize=_refuse_structures,
    )
    environment.filters["regex_replace"] = _replace_pattern
    environment.filters["boxed"] = find_last_boxed
    environment.globals["instructions"] = _pair_instructions
    return environment


def _refuse_structures(value: Any) -> Any:
    """Return `value`, which a template writes. Raise TypeError for a list or a mapping.

    The template would write such a value, for example messages, as Python's `repr`.
    """
    if isinstance(value, Mapping | list | tuple):
        raise TypeError(f"{value!r:.60} is not a text; name a part of it, or add `| tojson`")
    return value


def _replace_pattern(text: str, pattern: str, put: str = "", count: int = 0) -> str:
    return re.sub(pattern, put, text, count=count)


def _pair_instructions(ids: Sequence[str], arguments: Sequence[Fields]) -> list[Fields]:
    """Return IFEval's lists of ids and of arguments as one list of instructions."""
    return [{"id": name, "arguments": given} for name, given in zip(ids, arguments, strict=True)]


_ENVIRONMENT = _make_environment()


def compile_template(source: str, where: str) -> Callable[[Fields, str], str]:
    """Return a function of (fields, row) that renders the template `source` as text.

    `where` is the key of the task file and `row` the place of the row, for errors. Raises
    ConfigError if `source` is not a valid template.
    """
    try:
        compiled = _ENVIRONMENT.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{where}: invalid template: {error}") from None
    return lambda fields, row: _evaluate_template(lambda: compiled.render(fields), where, row)


def _check_template(given: str, field: ValidationInfo) -> str:
    try:
        compile_template(given, str(field.field_name))
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return given


Template = Annotated[str, AfterValidator(_check_template)]
"""Text of a run file that must be a template."""


def compile_expression(source: str, where: str) -> Callable[[Fields, str], Any]:
    """Return a function of (fields, row) that evaluates the expression `source`.

    Raises ConfigError if `source` is not a valid expression.
    """
    try:
        compiled = _ENVIRONMENT.compile_expression(source, undefined_to_none=False)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{where}: invalid expression: {error}") from None

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
        raise DataError(
            f"{row}: {where} uses a field that the row does not have: {error.message}"
        ) from None
    except SecurityError as error:
        raise ConfigError(f"{where}: a task file must not use this: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise DataError(f"{row}: {where} cannot be computed for this row: {said}") from None


def parse_texts(value: Any) -> tuple[str, ...] | None:
    """Return `value`, a text, a number or a list of them, as texts; None for other values."""
    items = [value] if isinstance(value, str | int | float) else value
    if not isinstance(items, Sequence) or isinstance(items, bytes):
        return None
    if not all(isinstance(item, str | int | float) for item in items):
        return None
    return tuple(str(item) for item in items)
