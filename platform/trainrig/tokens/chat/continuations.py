"""Prompts with the answers after them: texts, messages, or dialogues in one text."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig.tokens.chat.messages import (
    ASSISTANT,
    BadRow,
    Conversation,
    Message,
    check_unicode,
    parse_messages,
    parse_tools,
)

_DIALOGUE = re.compile(r"\n\n(Human|Assistant): ?")
_ROLES = {"Human": "user", "Assistant": ASSISTANT}


def add_system(messages: Sequence[Message], row: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return `messages` behind the system turn that `row` has in a field of its own."""
    system = row.get("system")
    if not system or (messages and messages[0].role == "system"):
        return tuple(messages)
    return (Message("system", check_string(system, "system")), *messages)


def read_continuation(row: Mapping[str, Any], name: str) -> Conversation:
    """The prompt and what field `name` says after it, which alone is trained on."""
    prompt = add_system(_parse_turns(row["prompt"], "user", "prompt"), row)
    answer = _parse_turns(row[name], ASSISTANT, name)
    if answer[: len(prompt)] == prompt and len(answer) > len(prompt):
        answer = answer[len(prompt) :]  # it begins with the prompt, as some files have it
    if not any(each.role == ASSISTANT and each.says_something for each in answer):
        raise BadRow("no_answer", f"`{name}` has no text of the assistant")
    whole = Conversation(prompt + answer, parse_tools(row.get("tools")))
    return whole.train_from(len(prompt))


def _parse_turns(value: Any, role: str, what: str) -> tuple[Message, ...]:
    """Messages, a dialogue, or a text that is all of one turn."""
    if not isinstance(value, str):
        return parse_messages([value] if isinstance(value, Mapping) else value, what)
    check_unicode([value])
    return _parse_dialogue(value) or (Message(role, value),)


def _parse_dialogue(text: str) -> tuple[Message, ...]:
    """The turns of "\\n\\nHuman: …\\n\\nAssistant: …"; none if `text` does not begin so."""
    parts = _DIALOGUE.split(text)
    if parts[0].strip() or len(parts) < 3:
        return ()
    turns = [
        Message(_ROLES[name], said.strip())
        for name, said in zip(parts[1::2], parts[2::2], strict=True)
    ]
    while turns and not turns[-1].content:  # "\n\nAssistant:", where the answer is to begin
        turns.pop()
    return tuple(turns)


def find_prompt(chosen: Any, rejected: Any) -> dict[str, Any]:
    """Prompt, chosen and rejected of two conversations that begin alike."""
    if not isinstance(chosen, str) or not isinstance(rejected, str):
        return _split_shared_prompt(
            parse_messages(chosen, "chosen"), parse_messages(rejected, "rejected")
        )
    check_unicode([chosen, rejected])
    turns = [_parse_dialogue(chosen), _parse_dialogue(rejected)]
    if all(turns):
        return _split_shared_prompt(*turns)
    same = next(
        (at for at, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b),
        min(len(chosen), len(rejected)),
    )
    # At the end of a word, for the words of two answers may begin alike as well.
    prompt = chosen[: chosen.rfind(" ", 0, same) + 1] if same < len(chosen) else chosen[:same]
    if not prompt.strip():
        raise BadRow("no_prompt", "no `prompt`, and chosen and rejected do not begin alike")
    return {
        "prompt": prompt.rstrip(),
        "chosen": chosen[len(prompt) :],
        "rejected": rejected[len(prompt) :],
    }


def _split_shared_prompt(chosen: Sequence[Message], rejected: Sequence[Message]) -> dict[str, Any]:
    """As `find_prompt`, of messages: what is left of each holds an answer."""
    shorter = min(len(chosen), len(rejected))
    same = next((n for n in range(shorter) if chosen[n] != rejected[n]), shorter)
    while same and not all(
        any(m.role == ASSISTANT for m in each[same:]) for each in (chosen, rejected)
    ):
        same -= 1
    if not same:
        raise BadRow("no_prompt", "no `prompt`, and chosen and rejected do not begin alike")
    return {
        "prompt": [m.as_json() for m in chosen[:same]],
        "chosen": [m.as_json() for m in chosen[same:]],
        "rejected": [m.as_json() for m in rejected[same:]],
    }


def check_string(value: Any, what: str) -> str:
    """Return `value`, the text of field `what`. Raise BadRow if it is no text."""
    if not isinstance(value, str):
        raise BadRow("not_text", f"`{what}` is {type(value).__name__}, not text")
    check_unicode([value])
    return value
