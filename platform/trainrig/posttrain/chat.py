"""Conversations as token ids, with what of them is trained on.

    <|end_of_text|><|user|>QUESTION<|end_of_turn|><|assistant|>ANSWER<|end_of_turn|>

Nothing stands between a special token and the text beside it, so each text is encoded by itself
and the ids are those that TEMPLATE gives in any other tool. Trained on: the assistant's texts and
the `<|end_of_turn|>` that ends them, so that a tuned model stops.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.special import ASSISTANT, END_OF_TEXT, END_OF_TURN, USER

ROLES = {"user": USER, "assistant": ASSISTANT}
# The same in Jinja, for exported folders.
TEMPLATE = (
    END_OF_TEXT
    + "{% for message in messages %}"
    + "{{ '<|' + message['role'] + '|>' + message['content'] + '"
    + END_OF_TURN
    + "' }}{% endfor %}{% if add_generation_prompt %}"
    + ASSISTANT
    + "{% endif %}"
)


@dataclass(frozen=True)
class Message:
    """One turn."""

    role: str  # a key of ROLES
    content: str


@dataclass(frozen=True)
class Rendered:
    """A conversation as ids. `trained[i]`: whether id i is a target."""

    ids: tuple[int, ...]
    trained: tuple[bool, ...]


def render(messages: Sequence[Message], encoder: Encoder) -> Rendered:
    """The ids of a whole conversation."""
    texts = encoder.encode_batch([message.content for message in messages])
    ids, trained = [encoder.end_of_text], [False]
    end = encoder.special(END_OF_TURN)
    for message, text in zip(messages, texts, strict=True):
        answer = message.role == "assistant"
        ids += [encoder.special(ROLES[message.role]), *(int(i) for i in text), end]
        trained += [False, *([answer] * len(text)), answer]
    return Rendered(tuple(ids), tuple(trained))


def prompt_ids(messages: Sequence[Message], encoder: Encoder) -> list[int]:
    """The ids after which the assistant is to speak."""
    return [*render(messages, encoder).ids, encoder.special(ASSISTANT)]


def read_conversations(path: str) -> Iterator[tuple[Message, ...]]:
    """The conversations of a JSONL file: `{"messages": [{"role", "content"}]}` or
    `{"prompt", "completion"}` on each line.

    Raises DataError naming the line that is neither, or holds nothing to train on.
    """
    if not storage.exists(path):
        raise DataError(f"{path}: no such file; `conversations` names a JSONL file")
    with storage.open_read(path) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield _conversation(line, f"{path}:{number}")


def _conversation(line: bytes, where: str) -> tuple[Message, ...]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: {type(row).__name__}, not a JSON object")
    if "messages" in row:
        messages = tuple(_message(each, where) for each in _list(row["messages"], where))
    elif "prompt" in row and "completion" in row:
        turns = {"user": row["prompt"], "assistant": row["completion"]}
        messages = tuple(_message({"role": r, "content": c}, where) for r, c in turns.items())
    else:
        found = ", ".join(sorted(row)) or "none"
        raise DataError(f"{where}: keys {found}; wanted `messages`, or `prompt` and `completion`")
    if not any(message.role == "assistant" and message.content for message in messages):
        raise DataError(f"{where}: no text by the assistant, so nothing to train on")
    return messages


def _list(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise DataError(f"{where}: `messages` is {type(value).__name__}, not a list")
    return value


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, Mapping) or not {"role", "content"} <= set(value):
        raise DataError(f"{where}: a message is an object with `role` and `content`")
    role, content = value["role"], value["content"]
    if role not in list(ROLES):  # a list, because what stands there may not be hashable
        raise DataError(f"{where}: role {role!r}; there are: {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise DataError(f"{where}: content is {type(content).__name__}, not text")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: content is no Unicode text: {error.reason}") from None
    return Message(role, content)
