"""Chat templates, as tokenizers are published with them: Jinja, rendered in a sandbox.

The environment is the one in which Transformers renders `chat_template`, whose texts these are to
the letter; but nothing in it tells the time, so that what is rendered is a function of its inputs:
`strftime_now` gives the day that the caller names.
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

# What templates of Llama 3 take for today where they are not told.
TODAY = datetime.date(2024, 7, 26)
DATE = "date"  # the variable by which a caller names another day

_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of it, the first wins


class TemplateRefusal(DataError):
    """A template that does not take a conversation: it raised, or what it wants is not there."""


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any] | None = None,
    *,
    add_generation_prompt: bool = False,
    where: str = "chat_template",
) -> str:
    """The text that `template` makes of `messages`.

    `variables` are what the template may name besides: `bos_token`, `eos_token`, `tools`, … and
    `date`, the day (a `datetime.date`) that `strftime_now` tells of. Raises ConfigError, which
    begins with `where`, for a template that is no Jinja or reaches out of its sandbox;
    TemplateRefusal for messages that it does not take.
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
        raise ConfigError(f"{where}: line {error.lineno}: no Jinja: {error.message}") from None
    except jinja2.exceptions.SecurityError as error:
        raise ConfigError(f"{where}: reaches out of its sandbox: {error}") from None
    except (jinja2.TemplateError, ArithmeticError, LookupError, RecursionError) as error:
        raise TemplateRefusal(f"{where}: refuses the conversation: {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise TemplateRefusal(f"{where}: fails on the conversation: {error}") from None


def find_reasoning(message: Mapping[str, Any]) -> Any:
    """Return the reasoning of `message`, under whichever name it came; None: it has none."""
    return next((message[name] for name in _REASONING if message.get(name) is not None), None)


@cache
def compile_template(template: str, day: datetime.date = TODAY) -> jinja2.Template:
    """`template`, ready to render."""
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
    """`{% generation %}` marks what the assistant says, for tools that mask by it; it says nothing
    of the text itself."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope of its own, as the call block has that Transformers makes of it.
        return [nodes.Scope(body, lineno=line)]


class _Dict:
    """`dict` without the attributes of the class, by which a sandbox can be left."""

    def __call__(self, *pairs: Any, **entries: Any) -> dict[Any, Any]:
        return dict(*pairs, **entries)

    def fromkeys(self, *keys: Any) -> dict[Any, Any]:
        return dict.fromkeys(*keys)


class _Namespace(jinja2.utils.Namespace):
    """`namespace`, in which no name begins with an underscore."""

    def __init__(*given: Any, **entries: Any) -> None:
        self, pairs = given[0], given[1:]
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
    # Jinja's own escapes what HTML has a meaning for.
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
    """`message`, whose reasoning stands under the name that templates read, whatever it came by."""
    said = find_reasoning(message)
    if said is None:
        return message
    return {"thinking": said, **message, "reasoning_content": said}
