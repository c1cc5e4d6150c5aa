"""Parsing and validation of chat messages: turns with a known role and text content."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainrig.tokens.shards.shard_files import FULL_WEIGHT

ROLES = ("system", "developer", "user", "assistant", "tool")
ASSISTANT = "assistant"
TOOL = "tool"
CALL = "function_call"  # a turn that holds nothing but calls, written as JSON
# The names that published data sets use for each role, and for turns of tool calls.
_NAMES_OF_ROLES: Mapping[str, tuple[str, ...]] = {
    "system": ("system",),
    "developer": ("developer",),
    "user": ("user", "human"),
    ASSISTANT: ("assistant", "gpt", "chatgpt", "bing", "bard", "model"),
    TOOL: ("tool", "function", "ipython", "observation", "function_response", "tool_response"),
    CALL: (CALL, "tool_call"),
}
_ROLE_OF = {name: role for role, names in _NAMES_OF_ROLES.items() for name in names}
MOST_WEIGHT = 2.5  # largest weight of a message: a token stores its weight in one byte
BREAK = "\ufdd0"  # a noncharacter, which no valid text contains: see rendering.py
_THOUGHTS = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
# Types of the parts of a message's content. Only text parts are read; the others are refused.
_PARTS = (
    *("text", "input_text", "output_text", "refusal", "thinking", "reasoning"),
    *("image", "image_url", "input_image", "audio", "input_audio", "video", "file"),
)
_CARRIED = ("tool_calls", "reasoning_content", "thinking", "reasoning", "name", "tool_call_id")


class BadRow(Exception):
    """Refusal of a row: `reason` is one of a few fixed words, `detail` describes what was found."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str  # one of ROLES
    content: str
    weight: float = 1.0  # loss weight of an assistant's turn; 0: not trained on
    more: Mapping[str, Any] = field(default_factory=dict)  # tool calls, reasoning, a name

    @property
    def says_something(self) -> bool:
        """True if the turn has content or tool calls."""
        return bool(self.content or self.more.get("tool_calls"))

    def to_json(self) -> dict[str, Any]:
        """Return the message as a chat template reads it."""
        return {"role": self.role, "content": self.content, **self.more}


@dataclass(frozen=True)
class Conversation:
    """Turns in their order, and the tools that the assistant may call."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    def train_from(self, first: int) -> "Conversation":
        """Return the conversation with weight 0 for all turns before number `first`."""
        context = tuple(replace(message, weight=0.0) for message in self.messages[:first])
        return replace(self, messages=context + self.messages[first:])

    def train_on_last(self) -> "Conversation":
        """Return the conversation with weight 0 for all turns before the assistant's last turn."""
        last = max((n for n, m in enumerate(self.messages) if m.role == ASSISTANT), default=0)
        return self.train_from(last)

    @property
    def trained_turns(self) -> list[int]:
        """Indices of the turns that are trained on, from 0."""
        return [
            number
            for number, message in enumerate(self.messages)
            if message.role == ASSISTANT and message.weight > 0 and message.says_something
        ]


def adapt_roles(messages: Sequence[Message], template: str) -> tuple[Message, ...]:
    """Return `messages`, with developer turns as system turns if `template` has no developer role.

    OpenAI renamed the system role to developer.
    """
    if "developer" in template:
        return tuple(messages)
    return tuple(replace(m, role="system") if m.role == "developer" else m for m in messages)


def parse_messages(value: Any, what: str = "messages") -> tuple[Message, ...]:
    """Return the turns in `value`, a list of `{"role", "content"}` or `{"from", "value"}`.

    Turns that hold only tool calls are merged into the assistant turn right before them, if there
    is one. `what` names the field in errors. Raises BadRow.
    """
    if isinstance(value, str):
        value = parse_json(value, what)
    if not isinstance(value, list):
        raise BadRow("not_messages", f"`{what}` is {shorten(value)}, not a list of messages")
    messages: list[Message] = []
    for given in value:
        message = parse_message(given)
        name = _find_role_name(given)
        if messages and _ROLE_OF[name] == CALL and _can_join(messages[-1], message):
            message = _join_calls(messages.pop(), message)
        elif messages and message.role == TOOL and name != TOOL:
            message = name_result(message, messages[-1])
        messages.append(message)
    return tuple(messages)


def parse_message(value: Any) -> Message:
    """Return the message in `value`, a JSON object. Raises BadRow if it is malformed."""
    name = _find_role_name(value)
    role = _ROLE_OF[name]
    more = {key: value[key] for key in _CARRIED if value.get(key) is not None}
    calls = more.get("tool_calls")
    if calls is None and value.get("function_call") is not None:  # OpenAI's older form
        calls = [value["function_call"]]
    if isinstance(calls, str):
        calls = parse_json(calls, "tool_calls")
    content = value["content"] if value.get("content") is not None else value.get("value")
    if role == CALL:
        role = ASSISTANT
        content, calls = _split_calls(content)
    if calls:
        more["tool_calls"] = _parse_calls(calls)
        if "tool_calls" not in value or value["tool_calls"] is None:
            more["tool_calls"] = [_wrap(call) for call in more["tool_calls"]]
    if content is None and role == ASSISTANT and calls:
        content = ""
    message = Message(role, _parse_content(content, role), _read_weight(value), more)
    check_unicode([message.content, json.dumps(more, ensure_ascii=False)])
    return message


def _find_role_name(value: Any) -> str:
    """Return the role of `value` as the file spells it. Raises BadRow for an unknown role."""
    if not isinstance(value, Mapping) or not {"role", "from"} & set(value):
        raise BadRow(
            "not_messages",
            "a message is an object with `role` and `content`, or with `from` and `value`; "
            f"found {shorten(value)}",
        )
    key = "role" if value.get("role") is not None or "from" not in value else "from"
    name = value[key]
    if not isinstance(name, str) or name not in _ROLE_OF:
        raise BadRow("unknown_role", f"`{key}` is {shorten(name)}; known: {', '.join(_ROLE_OF)}")
    return name


def _can_join(before: Message, calls: Message) -> bool:
    """Return whether the message `before` and the tool calls of `calls` can be one turn."""
    same = before.role == ASSISTANT and before.weight == calls.weight
    return same and not (before.more.get("tool_calls") and calls.content)


def _join_calls(before: Message, calls: Message) -> Message:
    together = [*before.more.get("tool_calls", ()), *calls.more["tool_calls"]]
    content = before.content + calls.content
    return replace(before, content=content, more={**before.more, "tool_calls": together})


def name_result(result: Message, before: Message) -> Message:
    """Return `result` with the tool's name, if `before` has exactly one tool call."""
    calls = before.more.get("tool_calls", ())
    if len(calls) != 1 or "name" in result.more:
        return result
    called = calls[0].get("function", calls[0])["name"]
    return replace(result, more={**result.more, "name": called})


def parse_tools(value: Any, wrap: bool = False) -> tuple[Mapping[str, Any], ...]:
    """Return the tool schemas in `value`: a list of schemas or of JSON texts, or JSON of a list.

    With `wrap`, a bare function schema becomes `{"type": "function", "function": …}`, the form that
    templates read. Raises BadRow.
    """
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = parse_json(value, "tools")
    if isinstance(value, list):
        value = [parse_json(e, "tools") if isinstance(e, str) else e for e in value]
    if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
        found = shorten(value)
        raise BadRow("bad_tools", f"`tools` is {found}, not a list of JSON schemas or its JSON")
    check_unicode([json.dumps(value, ensure_ascii=False)])
    if wrap:
        return tuple(_wrap(tool) if "name" in tool else tool for tool in value)
    return tuple(value)


def check_unicode(texts: Sequence[str]) -> None:
    """Raise BadRow if a text cannot be encoded as UTF-8, or contains BREAK."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRow("not_unicode", error.reason) from None
        if BREAK in text:
            raise BadRow("not_unicode", f"the noncharacter U+{ord(BREAK):04X}")


def parse_json(text: str, what: str) -> Any:
    """Return the value of the JSON `text`. Raises BadRow, naming field `what`, for invalid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRow("not_messages", f"`{what}` is text, but not JSON: {error}") from None


def shorten(value: Any) -> str:
    """Return the `repr` of `value` for error messages, at most 60 characters long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def to_hundredths(weight: float) -> int:
    """Return a message's weight in the unit in which token weights are stored."""
    return round(weight * FULL_WEIGHT)


def parse_function_call(text: str) -> dict[str, Any] | list[Any]:
    """Return the function call, or the list of them, that `text` holds as JSON. Raises BadRow."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict | list) or not found:
        raise BadRow(
            "bad_tool_calls", f"{shorten(text)} is not the JSON of a call or of a list of calls"
        )
    return found


def _split_calls(value: Any) -> tuple[str, list[Any]]:
    """Return the reasoning before the calls ("" if there is none), and the list of calls.

    Raises BadRow if the calls are not JSON.
    """
    if not isinstance(value, str):
        return "", value if isinstance(value, list) else [value]
    thoughts = _THOUGHTS.match(value)
    said = thoughts[0] if thoughts else ""
    found = parse_function_call(value[len(said) :])
    return said, found if isinstance(found, list) else [found]


def _parse_calls(value: Any) -> list[Any]:
    """Return tool calls with arguments as objects, which OpenAI's files hold as JSON texts."""
    if not isinstance(value, list) or not all(isinstance(call, Mapping) for call in value):
        raise BadRow("bad_tool_calls", f"`tool_calls` is {shorten(value)}, not a list of objects")
    calls = []
    for given in value:
        call = _drop_absent(given)
        function = call.get("function", call)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRow("bad_tool_calls", f"a call has a `name`; found {shorten(given)}")
        function = _drop_absent(function)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                read = json.loads(arguments)
            except (ValueError, RecursionError):
                read = None
            if isinstance(read, dict):
                function["arguments"] = read
        calls.append({**call, "function": function} if "function" in call else function)
    return calls


def _drop_absent(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `value` that are not null; nulls inside of a field stay."""
    return {key: held for key, held in value.items() if held is not None}


def _wrap(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call or a schema in the form that templates read, wrapping a bare function."""
    return function if "function" in function else {"type": "function", "function": function}


def _parse_content(content: Any, role: str) -> str:
    """Return the text of a message's content.

    A tool may return any JSON value: its text is that value as JSON. Raises BadRow.
    """
    if isinstance(content, str):
        return content
    if content is None:
        raise BadRow("not_text", f"`content` of a turn of the {role} is null")
    if isinstance(content, Mapping) and _is_part(content):
        content = [content]
    elif isinstance(content, Mapping) and "content_type" in content and "parts" in content:
        content = content["parts"]  # the form of ChatGPT's exports
    if isinstance(content, list) and (role != TOOL or all(map(_is_part, content))):
        return "".join(_parse_part(part) for part in content)
    if role == TOOL:
        return json.dumps(content, ensure_ascii=False)
    raise BadRow("not_text", f"`content` is {shorten(content)}, not text")


def _is_part(given: Any) -> bool:
    """Return whether `given` is a content part, as multimodal chats have, and no other object."""
    if not isinstance(given, Mapping):
        return isinstance(given, str)
    return given.get("type") in _PARTS or set(_drop_absent(given)) == {"text"}


def _parse_part(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        raise BadRow("not_text", f"`content` has the part {shorten(part)}, which is not text")
    return text


def _read_weight(message: Mapping[str, Any]) -> float:
    """Return the loss weight of a turn: 0 means that it is not trained on, the default is 1.

    The field `weight` is a number; `train` (axolotl) and `loss` (ms-swift) are true or false.
    Raises BadRow for other values.
    """
    if message.get("train_detail"):
        found = shorten(message["train_detail"])
        raise BadRow("bad_weight", f"`train_detail` is {found}; a turn counts as a whole, split it")
    weight = _check_weight(message.get("weight"))
    for name in ("train", "loss"):
        flag = message.get(name)
        if name == "loss" and not isinstance(flag, bool):
            continue  # a number here is a measured loss
        if flag not in (None, True, False):
            raise BadRow("bad_weight", f"`{name}` is {shorten(flag)}; there are: true, false")
        if flag is not None and not flag:
            weight = 0.0
    return weight


def _check_weight(given: Any) -> float:
    if given is None:
        return 1.0
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if number and 0 <= given <= MOST_WEIGHT and abs(given * 100 - round(given * 100)) < 1e-6:
        return float(given)
    raise BadRow("bad_weight", f"weight {given!r}; whole hundredths up to {MOST_WEIGHT}")
