"""Conversations as templates read them, checked: turns of known roles with text in them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainrig.tokens.shards.shard_files import FULL_WEIGHT

ROLES = ("system", "user", "assistant", "tool")
ASSISTANT = "assistant"
MOST_WEIGHT = 2.5  # of a message; more would not fit the byte that a token's weight has
BREAK = "\ufdd0"  # no character, so no text: see rendering.py
_CARRIED = ("tool_calls", "reasoning_content", "thinking", "reasoning", "name", "tool_call_id")


class BadRow(Exception):
    """A row that nothing can be made of: `reason` is one of few, `detail` what was found."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(frozen=True)
class Message:
    """One turn."""

    role: str  # one of ROLES
    content: str
    weight: float = 1.0  # of an assistant's turn as targets; 0: not trained on
    more: Mapping[str, Any] = field(default_factory=dict)  # tool calls, reasoning, a name

    @property
    def says_something(self) -> bool:
        """Whether an assistant's turn has anything to learn."""
        return bool(self.content or self.more.get("tool_calls"))

    def as_json(self) -> dict[str, Any]:
        """As a template reads it."""
        return {"role": self.role, "content": self.content, **self.more}


@dataclass(frozen=True)
class Conversation:
    """Turns in their order, and the tools that the assistant may call."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    def train_from(self, first: int) -> "Conversation":
        """The same, of which no turn before number `first` is trained on."""
        context = tuple(replace(message, weight=0.0) for message in self.messages[:first])
        return replace(self, messages=context + self.messages[first:])

    def train_on_last(self) -> "Conversation":
        """The same, of which only the assistant's last turn is trained on."""
        last = max((n for n, m in enumerate(self.messages) if m.role == ASSISTANT), default=0)
        return self.train_from(last)

    @property
    def trained_turns(self) -> list[int]:
        """Numbers of the turns that are trained on."""
        return [
            number
            for number, message in enumerate(self.messages)
            if message.role == ASSISTANT and message.weight > 0 and message.says_something
        ]


def parse_messages(value: Any, what: str = "messages") -> tuple[Message, ...]:
    """The turns in `value`, a list of `{"role", "content"}`. Raises BadRow."""
    if isinstance(value, str):
        value = parse_json(value, what)
    if not isinstance(value, list):
        raise BadRow("not_messages", f"`{what}` is {type(value).__name__}, not a list of messages")
    return tuple(parse_message(each) for each in value)


def parse_message(value: Any) -> Message:
    """The turn that `value` is. Raises BadRow."""
    if not isinstance(value, Mapping) or "role" not in value:
        raise BadRow("not_messages", "a message is an object with `role` and `content`")
    role = value["role"]
    if role not in list(ROLES):  # a list, because what stands there may not be hashable
        raise BadRow("unknown_role", f"role {role!r}; there are: {', '.join(ROLES)}")
    more = {name: value[name] for name in _CARRIED if value.get(name) is not None}
    if calls := more.get("tool_calls"):
        more["tool_calls"] = _parse_calls(calls)
    content = value.get("content")
    if content is None and role == ASSISTANT and more.get("tool_calls"):
        content = ""
    message = Message(role, _parse_text(content), _read_weight(value.get("weight")), more)
    check_unicode([message.content, json.dumps(more, ensure_ascii=False)])
    return message


def parse_tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    """The schemas of tools in `value`: a list, or JSON of one. Raises BadRow."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = parse_json(value, "tools")
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise BadRow("bad_tools", "`tools` is a list of JSON schemas, or JSON of one")
    return tuple(drop_nulls(each) for each in value)


def check_unicode(texts: Sequence[str]) -> None:
    """Raise BadRow for a text that no file of UTF-8 could hold, or that holds BREAK."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRow("not_unicode", error.reason) from None
        if BREAK in text:
            raise BadRow("not_unicode", f"the noncharacter U+{ord(BREAK):04X}")


def parse_json(text: str, what: str) -> Any:
    """What `text` is as JSON. Raises BadRow."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRow("not_messages", f"`{what}` is text, and no JSON: {error}") from None


def drop_nulls(value: Any) -> Any:
    """`value` without the fields that are null: columns of Parquet fill in all that others have."""
    if isinstance(value, Mapping):
        return {key: drop_nulls(each) for key, each in value.items() if each is not None}
    return [drop_nulls(each) for each in value] if isinstance(value, list) else value


def to_hundredths(weight: float) -> int:
    """A message's weight as a token has it."""
    return round(weight * FULL_WEIGHT)


def _parse_calls(value: Any) -> list[Any]:
    """Tool calls, whose arguments are objects: OpenAI's files have them as JSON."""
    if not isinstance(value, list) or not all(isinstance(call, Mapping) for call in value):
        raise BadRow("bad_tool_calls", "`tool_calls` is a list of objects")
    calls = []
    for given in value:
        call = drop_nulls(given)
        function = dict(call.get("function", call))
        if not isinstance(function.get("name"), str):
            raise BadRow("bad_tool_calls", "a call has a `name`")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                read = json.loads(arguments)
            except ValueError:
                read = None
            if isinstance(read, dict):
                function["arguments"] = read
        calls.append({**call, "function": function} if "function" in call else function)
    return calls


def _parse_text(content: Any) -> str:
    if isinstance(content, list):  # parts, as of models that see
        return "".join(_parse_part(part) for part in content)
    if not isinstance(content, str):
        raise BadRow("not_text", f"content is {type(content).__name__}, not text")
    return content


def _parse_part(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        raise BadRow("not_text", "a part of the content is no text")
    return text


def _read_weight(given: Any) -> float:
    """What a file says of a message: 0, it is read but not trained on; 1 is usual."""
    if given is None:
        return 1.0
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if number and 0 <= given <= MOST_WEIGHT and abs(given * 100 - round(given * 100)) < 1e-6:
        return float(given)
    raise BadRow("bad_weight", f"weight {given!r}; whole hundredths up to {MOST_WEIGHT}")
