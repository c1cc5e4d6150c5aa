"""Prompts with the answers after them: texts, messages, or dialogues in one text.

A prompt stands in `prompt`; or as Alpaca has it, in `instruction` with `input` and `history`; or as
LLaMA-Factory has it, in `conversations` or `messages` before answers of their own. Answers that
have none of these begin with it, and are alike as far as it goes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainrig.tokens.chat.messages import (
    ASSISTANT,
    BadRow,
    Conversation,
    Message,
    check_unicode,
    parse_json,
    parse_messages,
    parse_tools,
    shorten,
)

Turns = tuple[Message, ...]
_DIALOGUE = re.compile(r"\n\n(Human|Assistant): ?")
_ROLES = {"Human": "user", "Assistant": ASSISTANT}
_LEADING = ("system", "developer")
# Columns that hold what was asked, so that what two texts begin alike with is not it.
QUESTIONS = ("question", "query", "problem")


def add_system(messages: Sequence[Message], row: Mapping[str, Any]) -> Turns:
    """Return `messages` behind the system turn that `row` has in a field of its own."""
    system = row.get("system")
    if not system or (messages and messages[0].role == "system"):
        return tuple(messages)
    return (Message("system", check_string(system, "system")), *messages)


def read_tools(row: Mapping[str, Any], wrap: bool = False) -> tuple[Mapping[str, Any], ...]:
    """Return the tools of `row`; `functions` is OpenAI's older name of them. Raises BadRow."""
    if row.get("tools") is None and row.get("functions") is not None:
        return parse_tools(row["functions"], wrap=True)
    return parse_tools(row.get("tools"), wrap)


def read_continuation(row: Mapping[str, Any], name: str) -> Conversation:
    """Return the prompt of `row` and what field `name` says after it, which alone is trained on.
    Raises BadRow."""
    prompt = _parse_turns(row["prompt"], "user", "prompt")
    return _join(row, prompt, _parse_turns(row[name], ASSISTANT, name), name)


def read_answers(row: Mapping[str, Any], names: Sequence[str]) -> list[Conversation]:
    """Return the prompt of `row` with each of the two answers in fields `names`. Raises BadRow."""
    if "prompt" in row:
        return [read_continuation(row, name) for name in names]
    answers = [_parse_turns(row[name], ASSISTANT, name) for name in names]
    if all(answer and answer[0].role == ASSISTANT for answer in answers):
        prompt = _find_other_prompt(row)
    else:
        prompt = None  # they begin with it
    if prompt is None:
        prompt, *answers = _find_shared_prompt(row, names, answers)
    return [_join(row, prompt, answer, n) for answer, n in zip(answers, names, strict=True)]


def read_instruction(row: Mapping[str, Any]) -> Turns:
    """Return what Alpaca's `row` asks, behind the turns of its `history`. Raises BadRow."""
    asked = "\n\n".join(
        check_string(row[name], name) for name in ("instruction", "input") if row.get(name)
    )
    return (*_read_history(row.get("history")), Message("user", asked))


def check_string(value: Any, what: str) -> str:
    """Return `value`, the text of field `what`. Raise BadRow if it is no text."""
    if not isinstance(value, str):
        raise BadRow("not_text", f"`{what}` is {shorten(value)}, not text")
    check_unicode([value])
    return value


def _read_history(value: Any) -> Turns:
    """Return the turns of pairs of a question and its answer."""
    if isinstance(value, str) and value:
        value = parse_json(value, "history")
    if not value:
        return ()
    pairs = value if isinstance(value, list) else [value]
    turns: list[Message] = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRow("bad_history", f"`history` has {shorten(pair)}, no pair of two texts")
        asked, answered = (check_string(text, "history") for text in pair)
        turns += [Message("user", asked), Message(ASSISTANT, answered)]
    return tuple(turns)


def _find_other_prompt(row: Mapping[str, Any]) -> Turns | None:
    """Return a prompt that does not stand in `prompt`; None: there is none."""
    if "instruction" in row:
        return read_instruction(row)
    for name in ("conversations", "messages"):
        if name in row:
            return parse_messages(row[name], name)
    return None


def _join(row: Mapping[str, Any], prompt: Turns, answer: Turns, name: str) -> Conversation:
    """Return `answer` behind `prompt`, with which it may begin, as some files have it."""
    prompt = add_system(prompt, row)
    inner, leading = _skip_leading(prompt), len(answer) - len(_skip_leading(answer))
    past = leading + len(inner)
    if _compare(answer[leading:past]) == _compare(inner) and len(answer) > past:
        own = prompt[: len(prompt) - len(inner)]
        if own and leading and _compare(own) != _compare(answer[:leading]):
            found = shorten(answer[0].content)
            raise BadRow(
                "prompt_differs", f"`{name}` has the prompt behind the system turn {found}"
            )
        prompt = prompt if own else answer[:past]
        answer = answer[past:]
    if not any(turn.role == ASSISTANT and turn.says_something for turn in answer):
        raise BadRow("no_answer", f"`{name}` has no text of the assistant")
    return Conversation(prompt + answer, read_tools(row)).train_from(len(prompt))


def _skip_leading(turns: Turns) -> Turns:
    """Return `turns` without those that tell the assistant how to be."""
    count = next((n for n, turn in enumerate(turns) if turn.role not in _LEADING), len(turns))
    return turns[count:]


def _compare(turns: Turns) -> list[Message]:
    """Return `turns` as they are compared: what is trained on is none of what they say."""
    return [replace(turn, weight=1.0) for turn in turns]


def _parse_turns(value: Any, role: str, what: str) -> Turns:
    """Return messages, a dialogue, or a text that is all of one turn."""
    if not isinstance(value, str):
        return parse_messages([value] if isinstance(value, Mapping) else value, what)
    check_unicode([value])
    return _parse_dialogue(value) or (Message(role, value),)


def _parse_dialogue(text: str) -> Turns:
    """Return the turns of "\\n\\nHuman: …\\n\\nAssistant: …"; none if `text` begins otherwise."""
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


def _find_shared_prompt(
    row: Mapping[str, Any], names: Sequence[str], answers: Sequence[Turns]
) -> tuple[Turns, Turns, Turns]:
    """Return what two answers begin alike with, and what is left of each. Raises BadRow."""
    one, other = (row[name] for name in names)
    if not isinstance(one, str) or not isinstance(other, str):
        return _split_turns(*answers)
    if _parse_dialogue(one) and _parse_dialogue(other):
        return _split_turns(*answers)
    for column in QUESTIONS:
        if column in row:
            raise BadRow(
                "no_prompt",
                f"no `prompt`, but a column `{column}`: name it by columns.prompt, with {names[0]} "
                f"{shorten(one)}",
            )
    return _split_texts(one, other)


def _split_texts(one: str, other: str) -> tuple[Turns, Turns, Turns]:
    same = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    # At the end of a word, for the words of two answers may begin alike as well.
    prompt = one[: one.rfind(" ", 0, same) + 1] if same < len(one) else one[:same]
    if not prompt.strip():
        raise BadRow("no_prompt", "no `prompt`, and chosen and rejected do not begin alike")
    return (
        _parse_turns(prompt.rstrip(), "user", "prompt"),
        _parse_turns(one[len(prompt) :], ASSISTANT, "chosen"),
        _parse_turns(other[len(prompt) :], ASSISTANT, "rejected"),
    )


def _split_turns(one: Turns, other: Turns) -> tuple[Turns, Turns, Turns]:
    """Return as many turns as are alike where what is left of each holds an answer."""
    shorter = min(len(one), len(other))
    a, b = _compare(one), _compare(other)
    same = next((n for n in range(shorter) if a[n] != b[n]), shorter)
    while same and not all(
        any(turn.role == ASSISTANT for turn in turns[same:]) for turns in (one, other)
    ):
        same -= 1
    if not same:
        raise BadRow("no_prompt", "no `prompt`, and chosen and rejected do not begin alike")
    return one[:same], one[same:], other[same:]
