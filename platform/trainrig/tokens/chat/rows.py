"""Rows of files from elsewhere as examples: conversations, pairs of answers, labelled answers.

What a row is goes by the fields that it has, unless the run file names its format:

    messages                        {"messages": [{"role", "content"}], "tools"?}
    prompt_completion               {"prompt", "completion"}: texts, or messages
    pairs                           {"prompt"?, "chosen", "rejected"}
    labelled                        {"prompt", "completion", "label"}
    steps                           {"prompt", "completions": [step], "labels": [right or not]?}
    alpaca                          {"instruction", "input"?, "output", "system"?}
    sharegpt                        {"conversations": [{"from", "value"}], "system"?, "tools"?}

A text may be a dialogue as in Anthropic's HH rows: "\\n\\nHuman: …\\n\\nAssistant: …".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trainrig.tokens.chat.continuations import (
    add_system,
    check_string,
    find_prompt,
    read_continuation,
)
from trainrig.tokens.chat.messages import (
    ASSISTANT,
    BadRow,
    Conversation,
    Message,
    drop_nulls,
    parse_message,
    parse_messages,
    parse_tools,
)
from trainrig.tokens.documents.formats import find_value
from trainrig.tokens.shards.shard_files import RowKind

RowFormat = Literal[
    "messages", "prompt_completion", "pairs", "labelled", "steps", "alpaca", "sharegpt"
]
# Which rows each format makes.
KIND_OF: Mapping[RowFormat, RowKind] = {
    "messages": "conversations",
    "prompt_completion": "conversations",
    "alpaca": "conversations",
    "sharegpt": "conversations",
    "pairs": "pairs",
    "labelled": "labelled",
    "steps": "steps",
}
# The fields by which a format is known, the most telling first.
_FIELDS: Mapping[RowFormat, tuple[str, ...]] = {
    "pairs": ("chosen", "rejected"),
    "steps": ("prompt", "completions"),
    "labelled": ("prompt", "completion", "label"),
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "alpaca": ("instruction", "output"),
    "prompt_completion": ("prompt", "completion"),
}
_OPTIONAL = ("tools", "prompt", "label", "labels", "input", "system")
FIELDS = tuple(dict.fromkeys([*sum(_FIELDS.values(), ()), *_OPTIONAL]))
_SHAREGPT = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": ASSISTANT,
    "assistant": ASSISTANT,
    "function_call": ASSISTANT,
    "observation": "tool",
    "function_response": "tool",
    "tool": "tool",
}


@dataclass(frozen=True)
class Example:
    """What one row is to be trained on as."""

    kind: RowKind
    chats: tuple[Conversation, ...]  # of pairs: chosen, rejected; else one
    label: int = 0
    steps: tuple[str, ...] = ()  # of a solution, which its last turn is made of
    step_labels: tuple[int, ...] = ()  # of each 1, it is right, or 0; none: not known

    @property
    def prompt(self) -> str:
        """What is asked first: by it a row falls to training or to what is held out."""
        messages = self.chats[0].messages
        return next((m.content for m in messages if m.role == "user"), messages[0].content)


def parse_example(
    row: Mapping[str, Any],
    columns: Mapping[str, str],
    kind: RowKind,
    given: RowFormat | None = None,
) -> Example:
    """The example in `row`, whose fields lie in `columns`. Raises BadRow for what is none."""
    fields = {name: find_field(row, columns.get(name, name)) for name in FIELDS}
    there = {name: drop_nulls(value) for name, value in fields.items() if value is not None}
    found = given or _format(there, row, columns)
    if missing := [name for name in _FIELDS[found] if name not in there]:
        raise BadRow("missing_field", f"no {' and no '.join(missing)}, which {found} has")
    if KIND_OF[found] != kind:
        raise BadRow("other_kind", f'a row of {found}, but the run file says rows = "{kind}"')
    if there.get("weight", row.get("weight", 1)) != 1:
        raise BadRow("bad_weight", "`weight` of a whole row; write it in each of its messages")
    example = _READERS[found](there)
    for chat in example.chats:
        if not chat.messages:
            raise BadRow("no_messages", "an empty conversation")
        if not chat.trained_turns:
            raise BadRow(
                "no_answer", "no turn of the assistant with text and a weight: nothing to train on"
            )
    return example


def find_field(row: Mapping[str, Any], column: str) -> Any:
    """What `row` has in `column`: a name, or names and places joined by dots; None: nothing."""
    if (found := find_value(row, column)) is not None or "." not in column:
        return found
    value: Any = row
    for name in column.split("."):
        if isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _format(
    there: Mapping[str, Any], row: Mapping[str, Any], columns: Mapping[str, str]
) -> RowFormat:
    for name, fields in _FIELDS.items():
        if all(field in there for field in fields):
            return name
    found = ", ".join(sorted(map(str, row))) or "none"
    mapped = f" (columns as mapped: {dict(columns)})" if columns else ""
    raise BadRow("no_known_format", f"columns {found}{mapped}; see `format`: {', '.join(KIND_OF)}")


def _read_messages(row: Mapping[str, Any]) -> Example:
    return _build_conversation(parse_messages(row["messages"]), row)


def _read_prompt_completion(row: Mapping[str, Any]) -> Example:
    return Example("conversations", (read_continuation(row, "completion"),))


def _read_labelled(row: Mapping[str, Any]) -> Example:
    label = row["label"]
    if label not in (True, False, 0, 1):
        raise BadRow("bad_label", f"label {label!r}; there are: true, false")
    return Example("labelled", (read_continuation(row, "completion"),), int(label))


def _read_steps(row: Mapping[str, Any]) -> Example:
    given, labels = row["completions"], row.get("labels")
    if not isinstance(given, list) or not given:
        raise BadRow("not_steps", "`completions` is no list of texts, one for each step")
    steps = tuple(check_string(each, "completions").strip() for each in given)
    if not all(steps):
        raise BadRow("no_answer", "`completions` has a step without text")
    if labels is not None and (not isinstance(labels, list) or len(labels) != len(steps)):
        raise BadRow("bad_label", f"`labels` is no list of {len(steps)}, one for each step")
    if bad := [each for each in labels or () if each not in (True, False, 0, 1)]:
        raise BadRow("bad_label", f"label {bad[0]!r}; there are: true, false")
    chat = read_continuation({**row, "completions": "\n".join(steps)}, "completions")
    return Example("steps", (chat,), steps=steps, step_labels=tuple(map(int, labels or ())))


def _read_pairs(row: Mapping[str, Any]) -> Example:
    if row["chosen"] == row["rejected"]:
        raise BadRow("chosen_is_rejected", "chosen and rejected are the same")
    if "prompt" not in row:
        row = {**row, **find_prompt(row["chosen"], row["rejected"])}
    pair = tuple(read_continuation(row, name) for name in ("chosen", "rejected"))
    if pair[0] == pair[1]:
        raise BadRow("chosen_is_rejected", "chosen and rejected are the same")
    return Example("pairs", pair)


def _read_alpaca(row: Mapping[str, Any]) -> Example:
    asked = "\n\n".join(
        check_string(row[name], name) for name in ("instruction", "input") if row.get(name)
    )
    turns = [Message("user", asked), Message(ASSISTANT, check_string(row["output"], "output"))]
    return _build_conversation(turns, row)


def _read_sharegpt(row: Mapping[str, Any]) -> Example:
    turns = row["conversations"]
    if not isinstance(turns, list):
        raise BadRow("not_messages", "`conversations` is no list")
    messages = []
    for turn in turns:
        if not isinstance(turn, Mapping) or not {"from", "value"} <= set(turn):
            raise BadRow("not_messages", "a turn is an object with `from` and `value`")
        role = _SHAREGPT.get(str(turn["from"]))
        if role is None:
            raise BadRow("unknown_role", f"from {turn['from']!r}; known: {', '.join(_SHAREGPT)}")
        given = {"role": role, "content": turn["value"], "weight": turn.get("weight")}
        messages.append(parse_message(given))
    return _build_conversation(messages, row)


def _build_conversation(messages: Sequence[Message], row: Mapping[str, Any]) -> Example:
    chat = Conversation(add_system(messages, row), parse_tools(row.get("tools")))
    return Example("conversations", (chat,))


_READERS: Mapping[RowFormat, Callable[[Mapping[str, Any]], Example]] = {
    "messages": _read_messages,
    "prompt_completion": _read_prompt_completion,
    "pairs": _read_pairs,
    "labelled": _read_labelled,
    "steps": _read_steps,
    "alpaca": _read_alpaca,
    "sharegpt": _read_sharegpt,
}
assert set(_READERS) == set(get_args(RowFormat))
