"""Rendering of the Jinja chat templates that tokenizers are published with, in a sandbox.

The environment is the one in which Transformers renders `chat_template`, and the texts are equal
character for character. But it does not read the clock, so the text depends on the inputs alone:
`strftime_now` formats the day that the caller gives.
"""

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainrig.errors import ConfigError, DataError

# The default date in the templates of Llama 3.
TODAY = datetime.date(2024, 7, 26)
DATE = "date"  # the variable that sets another day

_REASONING = ("reasoning_content", "thinking", "reasoning")  # keys of reasoning; the first wins


class TemplateRefusal(DataError):
    """Refusal of a conversation by a template: it raised an error, or needs a missing value."""


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    *,
    add_generation_prompt: bool = False,
    where: str = "chat_template",
) -> str:
    """Return `messages` as the text that `template` renders.

    `variables` are further variables of the template: `bos_token`, `eos_token`, `tools`, … and
    `date`, the day (a `datetime.date`) that `strftime_now` formats. Raises ConfigError, which
    begins with `where`, if the template is not valid Jinja or tries to leave its sandbox, and
    TemplateRefusal if it refuses the messages.
    """
    named = dict(variables or {})
    day = named.pop(DATE, TODAY)
    try:
        return compile_template(template, day).render(
            messages=[_with_reasoning(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            **named,
        )
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"{where}: line {error.lineno}: not a valid Jinja template: {error.message}"
        ) from None
    except jinja2.exceptions.SecurityError as error:
        raise ConfigError(f"{where}: the template uses what its sandbox forbids: {error}") from None
    except (jinja2.TemplateError, ArithmeticError, LookupError, RecursionError) as error:
        raise TemplateRefusal(f"{where}: the template refuses the conversation: {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise TemplateRefusal(f"{where}: the template fails on the conversation: {error}") from None


def find_reasoning(message: Mapping[str, Any]) -> Any:
    """Return the reasoning of `message` from any of its usual keys, or None if it has none."""
    return next((message[name] for name in _REASONING if message.get(name) is not None), None)


@cache
def compile_template(template: str, day: datetime.date = TODAY) -> jinja2.Template:
    """Return the compiled `template`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _make_strftime_now(day)
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment.from_string(template)


class _Generation(Extension):
    """The tag `{% generation %}`, which marks the assistant's text and renders it unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # Transformers turns the tag into a call block, which has a separate scope.
        return [nodes.Scope(body, lineno=line)]


class _Dict:
    """A `dict` function without the class attributes through which code can leave a sandbox."""

    def __call__(self, *pairs: Any, **entries: Any) -> dict[Any, Any]:
        return dict(*pairs, **entries)

    def fromkeys(self, *keys: Any) -> dict[Any, Any]:
        return dict.fromkeys(*keys)


class _Namespace(jinja2.utils.Namespace):
    """A Jinja `namespace` that refuses names with a leading underscore."""

    def __init__(*given: Any, **entries: Any) -> None:
        self = given[0]
        pairs = given[1:]
        attributes = dict(*pairs, **entries)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's filter `tojson` would escape HTML characters.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _make_strftime_now(day: datetime.date) -> Callable[[str], str]:
    return lambda form: datetime.datetime.combine(day, datetime.time()).strftime(form)


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `message` with its reasoning under the keys that templates read."""
    said = find_reasoning(message)
    if said is None:
        return message
    return {"thinking": said, **message, "reasoning_content": said}
