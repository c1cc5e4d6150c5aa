r"""Examples from rows of published data sets: conversations, preference pairs, labelled answers.

The format of a row is found from its fields, unless the run file names the format: messages
{"messages": [{"role", "content"}], "tools"?} prompt_completion {"prompt", "completion"}: texts,
or messages pairs {"prompt"?, "chosen", "rejected"} labelled {"prompt", "completion", "label"}
steps {"prompt", "completions": [step], "labels": [bool]?} alpaca {"instruction", "input"?,
"output", "history"?, "system"?} sharegpt {"conversations": [{"from", "value"}], "system"?,
"tools"?} glaive {"chat": "USER: … ASSISTANT: …", "system"?} A text may be a dialogue as in
Anthropic's HH rows: "\\n\\nHuman: …\\n\\nAssistant: …". Messages have `role` and `content`, or
`from` and `value`. In a conversation with a `label`, the label is that of its last answer.

Some fields of rows are ignored here although other tools train by them (`find_unread`).

The stage counts them and reports each once. Most other columns of published rows are metadata
(identifiers, sources, scores), which are not reported.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from trainrig.corpus.read.json_rows import find_value
from trainrig.tokens.chat import row_texts
from trainrig.tokens.chat.chat_messages import (
    ASSISTANT,
    BadRow,
    Conversation,
    Message,
    adapt_roles,
    parse_messages,
)
from trainrig.tokens.shards.shard_files import RowKind

# Columns, and keys of messages, that other tools read.
_COLUMNS = ("images", "image", "videos", "audios", "audio", "chat_template_kwargs", "margin")
# The entry that reports nulls in the objects of a Parquet row.
NULLS = "null keys of tools or arguments, which Parquet fills in (JSON in a text keeps its own)"
_KEYS = ("images", "image", "audio", "videos", "functions", "function_calls")
_PAYLOADS = ("arguments", "parameters")  # arguments of calls, parameters of schemas
_TURNS = ("messages", "conversations", "prompt", "completion", "chosen", "rejected")


def find_unread(
    row: Mapping[str, Any], fields: Mapping[str, Any], columns: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the names of the columns and message keys of `row` that are ignored.

    `fields` are the values that are read, by field; `columns` maps fields to columns of the file.
    """
    taken = set(columns.values())
    found = [name for name in _COLUMNS if row.get(name) and name not in taken]
    if fields.get("history") and "instruction" not in fields:
        found.append("history")
    for name in _TURNS:
        for message in _list_messages(fields.get(name)):
            found += [f"{key} of a message" for key in _KEYS if message.get(key)]
            role = message.get("role") or message.get("from")
            if message.get("train") is True and role in ("user", "human", "system"):
                found.append(f"train = true of a turn of the {role}")
    return tuple(dict.fromkeys(found))


def contains_inner_nulls(value: Any, inside: bool = False) -> bool:
    """Return whether the arguments of calls or the parameters of schemas in `value` have a null."""
    if isinstance(value, Mapping):
        return any(
            contains_inner_nulls(held, inside or key in _PAYLOADS) for key, held in value.items()
        )
    if isinstance(value, list):
        return any(contains_inner_nulls(held, inside) for held in value)
    return inside and value is None


def _list_messages(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (message for message in value if isinstance(message, Mapping))


RowFormat = Literal[
    "messages", "prompt_completion", "pairs", "labelled", "steps", "alpaca", "sharegpt", "glaive"
]
# The kind of rows that each format makes.
KIND_OF: Mapping[RowFormat, RowKind] = {
    "messages": "conversations",
    "prompt_completion": "conversations",
    "alpaca": "conversations",
    "sharegpt": "conversations",
    "glaive": "conversations",
    "pairs": "pairs",
    "labelled": "labelled",
    "steps": "steps",
}
# The fields that identify a format. The first format whose fields are all present is taken.
_FIELDS: Mapping[RowFormat, tuple[str, ...]] = {
    "pairs": ("chosen", "rejected"),
    "steps": ("prompt", "completions"),
    "labelled": ("prompt", "completion", "label"),
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "alpaca": ("instruction", "output"),
    "prompt_completion": ("prompt", "completion"),
    "glaive": ("chat",),
}
_OPTIONAL = (
    *("tools", "functions", "prompt", "label", "labels", "input", "history", "system"),
    *row_texts.QUESTIONS,
)
FIELDS = tuple(dict.fromkeys([*sum(_FIELDS.values(), ()), *_OPTIONAL]))


@dataclass(frozen=True)
class Example:
    """The training example of one row."""

    kind: RowKind
    chats: tuple[Conversation, ...]  # a pair has two (chosen, rejected), other kinds one
    label: int = 0
    steps: tuple[str, ...] = ()  # steps of a solution, which make up its last turn
    step_labels: tuple[int, ...] = ()  # 1 for a right step, 0 for a wrong one; (): not known
    unread: tuple[str, ...] = ()  # ignored fields of the row that other tools train by

    @property
    def prompt(self) -> str:
        """The first user message, which decides whether a row is for training or held out."""
        messages = self.chats[0].messages
        return next((m.content for m in messages if m.role == "user"), messages[0].content)

    def adapt_roles(self, template: str) -> "Example":
        """Return the example with only the roles that the chat `template` supports."""
        chats = (
            replace(chat, messages=adapt_roles(chat.messages, template)) for chat in self.chats
        )
        return replace(self, chats=tuple(chats))


def parse_example(
    row: Mapping[str, Any],
    columns: Mapping[str, str],
    kind: RowKind,
    given: RowFormat | None = None,
    parquet: bool = False,
) -> Example:
    """Return the example in `row`. Raises BadRow if `row` is not an example of `kind`.

    `columns` maps field names to columns of the file; `given` is the format, or None to find it
    from the fields. Nulls inside of tools and their arguments are kept, except in rows of `parquet`
    files. In Parquet a column of objects has the keys of all rows, so a null may be either a
    missing key or a null that was written. JSON texts keep their nulls in Parquet, too.
    """
    whole = row
    if parquet:
        row = _drop_arrow_nulls(row)
    fields = {name: find_field(row, columns.get(name, name)) for name in FIELDS}
    there = {name: value for name, value in fields.items() if value is not None}
    found = given or _find_format(there, row, columns)
    if missing := [name for name in _FIELDS[found] if name not in there]:
        raise BadRow("missing_field", f"no {' and no '.join(missing)}, which {found} has")
    labelled = kind == "labelled" and KIND_OF[found] == "conversations" and "label" in there
    if KIND_OF[found] != kind and not labelled:
        raise BadRow("other_kind", f'a row of {found}, but the run file says rows = "{kind}"')
    if row.get("weight", 1) not in (1, None):
        raise BadRow("bad_weight", "`weight` of a whole row; write it in each of its messages")
    example = _READERS[found](there)
    if labelled:
        chat = example.chats[0].train_on_last()
        example = Example("labelled", (chat,), _check_label(there["label"]))
    for chat in example.chats:
        if not chat.messages:
            raise BadRow("no_messages", "an empty conversation")
        if not chat.trained_turns:
            raise BadRow(
                "no_answer", "no turn of the assistant with text and a weight: nothing to train on"
            )
    unread = find_unread(row, there, columns)
    if parquet and contains_inner_nulls(whole):
        unread = (*unread, NULLS)
    return replace(example, unread=unread)


def _drop_arrow_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return `row` without the fields that are null, at any depth."""
    return {key: _drop_nulls(value) for key, value in row.items() if value is not None}


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _drop_arrow_nulls(value)
    return [_drop_nulls(item) for item in value] if isinstance(value, list) else value


def find_field(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of `column` in `row`, or None if it is missing.

    `column` is a name, or a path of names and list indices joined by dots.
    """
    if (found := find_value(row, column)) is not None or "." not in column:
        return found
    value: Any = row
    for name in column.split("."):
        if isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _find_format(
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
    return Example("conversations", (row_texts.read_continuation(row, "completion"),))


def _read_labelled(row: Mapping[str, Any]) -> Example:
    label = _check_label(row["label"])
    return Example("labelled", (row_texts.read_continuation(row, "completion"),), label)


def _check_label(label: Any) -> int:
    if label not in (True, False, 0, 1):
        raise BadRow("bad_label", f"label {label!r}; there are: true, false")
    return int(label)


def _read_steps(row: Mapping[str, Any]) -> Example:
    given = row["completions"]
    labels = row.get("labels")
    if not isinstance(given, list) or not given:
        raise BadRow("not_steps", "`completions` is not a list of texts, one for each step")
    steps = tuple(row_texts.check_string(step, "completions").strip() for step in given)
    if not all(steps):
        raise BadRow("no_answer", "`completions` has a step without text")
    if labels is not None and (not isinstance(labels, list) or len(labels) != len(steps)):
        raise BadRow("bad_label", f"`labels` is not a list of {len(steps)}, one for each step")
    right = tuple(map(_check_label, labels or ()))
    chat = row_texts.read_continuation({**row, "completions": "\n".join(steps)}, "completions")
    return Example("steps", (chat,), steps=steps, step_labels=right)


def _read_pairs(row: Mapping[str, Any]) -> Example:
    if row["chosen"] == row["rejected"]:
        raise BadRow("chosen_is_rejected", "chosen and rejected are the same")
    pair = tuple(row_texts.read_answers(row, ("chosen", "rejected")))
    if pair[0] == pair[1]:
        raise BadRow("chosen_is_rejected", "chosen and rejected are the same")
    return Example("pairs", pair)


def _read_alpaca(row: Mapping[str, Any]) -> Example:
    answer = Message(ASSISTANT, row_texts.check_string(row["output"], "output"))
    return _build_conversation((*row_texts.read_instruction(row), answer), row)


def _read_sharegpt(row: Mapping[str, Any]) -> Example:
    turns = row_texts.split_glaive_calls(parse_messages(row["conversations"], "conversations"))
    return _build_conversation(turns, row, wrap=True)


def _read_glaive(row: Mapping[str, Any]) -> Example:
    chat = row_texts.check_string(row["chat"], "chat")
    system = row.get("system")
    found = row_texts.read_glaive(
        chat, "" if system is None else row_texts.check_string(system, "system")
    )
    tools = row_texts.read_tools(row, wrap=True) or found.tools
    return Example("conversations", (replace(found, tools=tools),))


def _build_conversation(
    messages: Sequence[Message], row: Mapping[str, Any], wrap: bool = False
) -> Example:
    chat = Conversation(row_texts.add_system(messages, row), row_texts.read_tools(row, wrap))
    return Example("conversations", (chat,))


_READERS: Mapping[RowFormat, Callable[[Mapping[str, Any]], Example]] = {
    "messages": _read_messages,
    "prompt_completion": _read_prompt_completion,
    "pairs": _read_pairs,
    "labelled": _read_labelled,
    "steps": _read_steps,
    "alpaca": _read_alpaca,
    "sharegpt": _read_sharegpt,
    "glaive": _read_glaive,
}
assert set(_READERS) == set(get_args(RowFormat))
