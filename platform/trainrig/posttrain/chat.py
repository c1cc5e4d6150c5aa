"""Conversations as token ids, with what of them is trained on.

    <|end_of_text|><|user|>QUESTION<|end_of_turn|><|assistant|>ANSWER<|end_of_turn|>

Nothing stands between a special token and the text beside it, so each text is encoded by itself
and the ids are those that TEMPLATE gives in any other tool. Trained on: the assistant's texts and
the `<|end_of_turn|>` that ends them, so that a tuned model stops; but none of a message with
`"weight": 0`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.errors import DataError
from trainrig.storage import utf8
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
    weight: int = 1  # 0: not trained on. What a user says never is

    @property
    def trained(self) -> bool:
        """Whether its text is a target."""
        return self.role == "assistant" and self.weight == 1


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
        answer = message.trained
        ids += [encoder.special(ROLES[message.role]), *(int(i) for i in text), end]
        trained += [False, *([answer] * len(text)), answer]
    return Rendered(tuple(ids), tuple(trained))


def prompt_ids(messages: Sequence[Message], encoder: Encoder) -> list[int]:
    """The ids after which the assistant is to speak."""
    return [*render(messages, encoder).ids, encoder.special(ASSISTANT)]


@dataclass(frozen=True)
class RefusedConversation:
    """A row that is no conversation, and why."""

    file: str
    line: int  # from 1
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


def read_conversations(
    path: str, refuse: Callable[[RefusedConversation], None] = lambda row: None
) -> Iterator[tuple[Message, ...]]:
    """The conversations of a JSONL file: `{"messages": [{"role", "content"}]}` or
    `{"prompt", "completion"}` on each line.

    A row that is neither, or holds nothing to train on, goes to `refuse`. Raises DataError for a
    file all of whose rows do.
    """
    if not storage.exists(path):
        raise DataError(f"{path}: no such file; `conversations` names a JSONL file")
    good, first = False, None
    with storage.open_read(path) as stream:
        for number, line in enumerate(stream, 1):
            if number == 1:
                if other := utf8.OTHERS.get(line[:2]):
                    raise DataError(f"{path}: {other} by its first two bytes; save it as UTF-8")
                line = line.removeprefix(utf8.MARK)
            if not line.strip():
                continue
            found = _conversation(line)
            if isinstance(found, str):
                refused = RefusedConversation(path, number, found)
                first = first or refused
                refuse(refused)
            else:
                good = True
                yield found
    if first and not good:
        raise DataError(f"{first}; not one row of the file is a conversation")


class _NoConversation(Exception):
    """Why a row is none."""


def _conversation(line: bytes) -> tuple[Message, ...] | str:
    """The conversation in `line`, or why there is none."""
    try:
        return _messages(json.loads(line))
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    except _NoConversation as why:
        return str(why)


def _messages(row: Any) -> tuple[Message, ...]:
    if not isinstance(row, Mapping):
        raise _NoConversation(f"{type(row).__name__}, not a JSON object")
    if row.get("weight", 1) != 1:
        raise _NoConversation("`weight` of a whole row; write it in each of its messages")
    if "messages" in row:
        messages = tuple(map(_message, _list(row["messages"])))
    elif "prompt" in row and "completion" in row:
        turns = {"user": row["prompt"], "assistant": row["completion"]}
        messages = tuple(_message({"role": r, "content": c}) for r, c in turns.items())
    else:
        found = ", ".join(sorted(row)) or "none"
        raise _NoConversation(f"keys {found}; wanted `messages`, or `prompt` and `completion`")
    if not any(message.trained and message.content for message in messages):
        raise _NoConversation("no text by the assistant of weight 1, so nothing to train on")
    return messages


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise _NoConversation(f"`messages` is {type(value).__name__}, not a list")
    return value


def _message(value: Any) -> Message:
    if not isinstance(value, Mapping) or not {"role", "content"} <= set(value):
        raise _NoConversation("a message is an object with `role` and `content`")
    role, content = value["role"], value["content"]
    if role not in list(ROLES):  # a list, because what stands there may not be hashable
        raise _NoConversation(f"role {role!r}; there are: {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise _NoConversation(f"content is {type(content).__name__}, not text")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise _NoConversation(f"content is no Unicode text: {error.reason}") from None
    return Message(role, content, _weight(value))


def _weight(message: Mapping[str, Any]) -> int:
    """What OpenAI's and others' files say of a message: 0, it is read but not trained on.

    1 makes no target of what a user says.
    """
    given = message.get("weight")
    if given is None:
        return 1
    if given not in (0, 1):
        raise _NoConversation(f"weight {given!r}; there are: 0 (not trained on), 1")
    return int(given)
