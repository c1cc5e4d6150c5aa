r"""Prompts followed by answers, and function calls, in the forms in which published rows have them.

Prompts and answers are given as texts, as messages, or as a dialogue in one text.

The prompt is in the field `prompt`; in `instruction` with `input` and `history`, as in Alpaca; or
in `conversations` or `messages`, separate from the answers, as in LLaMA-Factory. In rows without
any of these fields both answers begin with the prompt, so it is their common beginning.

Function calls have the text form of glaive-function-calling-v2, also found in ShareGPT rows:

    {"system": "SYSTEM: You … Use them if required -\\n{…schema…}",
     "chat": "USER: …\\n\\n\\nASSISTANT: <functioncall> {…} <|endoftext|>\\n\\n\\n
              FUNCTION RESPONSE: {…}"}

Arguments are JSON in single quotes: {"name": "get", "arguments": '{"city": "Paris"}'}.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainrig.tokens.chat import chat_messages

Turns = tuple[chat_messages.Message, ...]
_DIALOGUE = re.compile(r"\n\n(Human|Assistant): ?")
_DIALOGUE_ROLES = {"Human": "user", "Assistant": chat_messages.ASSISTANT}
_LEADING = ("system", "developer")
# Columns that hold the question. In rows with one of them, the common beginning of two answers is
# not the prompt.
QUESTIONS = ("question", "query", "problem")


def add_system(messages: Sequence[chat_messages.Message], row: Mapping[str, Any]) -> Turns:
    """Return `messages`, after the system turn in the field `system` of `row` if it has one."""
    system = row.get("system")
    if not system or (messages and messages[0].role == "system"):
        return tuple(messages)
    return (chat_messages.Message("system", check_string(system, "system")), *messages)


def read_tools(row: Mapping[str, Any], wrap: bool = False) -> tuple[Mapping[str, Any], ...]:
    """Return the tools of `row`, from `tools` or from `functions`, OpenAI's older name for them.

    Raises BadRow if they are not a list of JSON schemas. For `wrap` see `parse_tools`.
    """
    if row.get("tools") is None and row.get("functions") is not None:
        return chat_messages.parse_tools(row["functions"], wrap=True)
    return chat_messages.parse_tools(row.get("tools"), wrap)


def read_continuation(row: Mapping[str, Any], name: str) -> chat_messages.Conversation:
    """Return the prompt of `row` followed by the answer in field `name`.

    Only the answer is trained on. Raises BadRow if either cannot be read.
    """
    prompt = _parse_turns(row["prompt"], "user", "prompt")
    return _join(row, prompt, _parse_turns(row[name], chat_messages.ASSISTANT, name), name)


def read_answers(row: Mapping[str, Any], names: Sequence[str]) -> list[chat_messages.Conversation]:
    """Return two conversations: the prompt of `row` with each of the two answers in fields `names`.

    Raises BadRow if no prompt can be found or an answer cannot be read.
    """
    if "prompt" in row:
        return [read_continuation(row, name) for name in names]
    answers = [_parse_turns(row[name], chat_messages.ASSISTANT, name) for name in names]
    if all(answer and answer[0].role == chat_messages.ASSISTANT for answer in answers):
        prompt = _find_other_prompt(row)
    else:
        prompt = None  # the answers begin with the prompt
    if prompt is None:
        prompt, *answers = _find_shared_prompt(row, names, answers)
    return [_join(row, prompt, answer, n) for answer, n in zip(answers, names, strict=True)]


def read_instruction(row: Mapping[str, Any]) -> Turns:
    """Return the question of an Alpaca `row`, after the turns of its `history`. Raises BadRow."""
    asked = "\n\n".join(
        check_string(row[name], name) for name in ("instruction", "input") if row.get(name)
    )
    return (*_read_history(row.get("history")), chat_messages.Message("user", asked))


def check_string(value: Any, what: str) -> str:
    """Return `value`, the text of field `what`. Raise BadRow if it is not valid text."""
    if not isinstance(value, str):
        raise chat_messages.BadRow(
            "not_text", f"`{what}` is {chat_messages.shorten(value)}, not text"
        )
    chat_messages.check_unicode([value])
    return value


def _read_history(value: Any) -> Turns:
    """Return the user and assistant turns of a history: a list of [question, answer] pairs."""
    if isinstance(value, str) and value:
        value = chat_messages.parse_json(value, "history")
    if not value:
        return ()
    pairs = value if isinstance(value, list) else [value]
    turns: list[chat_messages.Message] = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise chat_messages.BadRow(
                "bad_history",
                f"`history` has {chat_messages.shorten(pair)}, which is not a pair of two texts",
            )
        asked, answered = (check_string(text, "history") for text in pair)
        turns += [
            chat_messages.Message("user", asked),
            chat_messages.Message(chat_messages.ASSISTANT, answered),
        ]
    return tuple(turns)


def _find_other_prompt(row: Mapping[str, Any]) -> Turns | None:
    """Return the prompt in a field other than `prompt`, or None if the row has none."""
    if "instruction" in row:
        return read_instruction(row)
    for name in ("conversations", "messages"):
        if name in row:
            return chat_messages.parse_messages(row[name], name)
    return None


def _join(
    row: Mapping[str, Any], prompt: Turns, answer: Turns, name: str
) -> chat_messages.Conversation:
    """Return the conversation of `prompt` and `answer`, where `answer` may repeat the prompt first.

    Some files repeat the prompt at the beginning of the answer; it is kept once.
    """
    prompt = add_system(prompt, row)
    inner, leading = _skip_leading(prompt), len(answer) - len(_skip_leading(answer))
    past = leading + len(inner)
    if _compare(answer[leading:past]) == _compare(inner) and len(answer) > past:
        own = prompt[: len(prompt) - len(inner)]
        if own and leading and _compare(own) != _compare(answer[:leading]):
            found = chat_messages.shorten(answer[0].content)
            raise chat_messages.BadRow(
                "prompt_differs", f"`{name}` repeats the prompt after another system turn {found}"
            )
        prompt = prompt if own else answer[:past]
        answer = answer[past:]
    if not any(turn.role == chat_messages.ASSISTANT and turn.says_something for turn in answer):
        raise chat_messages.BadRow("no_answer", f"`{name}` has no text of the assistant")
    return chat_messages.Conversation(prompt + answer, read_tools(row)).train_from(len(prompt))


def _skip_leading(turns: Turns) -> Turns:
    """Return `turns` without the system and developer turns at their beginning."""
    count = next((n for n, turn in enumerate(turns) if turn.role not in _LEADING), len(turns))
    return turns[count:]


def _compare(turns: Turns) -> list[chat_messages.Message]:
    """Return `turns` with equal weights, so that only roles and contents are compared."""
    return [replace(turn, weight=1.0) for turn in turns]


def _parse_turns(value: Any, role: str, what: str) -> Turns:
    """Return the turns in `value`: messages, a dialogue, or else one text as a turn of `role`."""
    if not isinstance(value, str):
        return chat_messages.parse_messages([value] if isinstance(value, Mapping) else value, what)
    chat_messages.check_unicode([value])
    return _parse_dialogue(value) or (chat_messages.Message(role, value),)


def _parse_dialogue(text: str) -> Turns:
    r"""Return the turns of "\n\nHuman: …\n\nAssistant: …", or () if `text` is no such dialogue."""
    parts = _DIALOGUE.split(text)
    if parts[0].strip() or len(parts) < 3:
        return ()
    turns = [
        chat_messages.Message(_DIALOGUE_ROLES[name], said.strip())
        for name, said in zip(parts[1::2], parts[2::2], strict=True)
    ]
    while turns and not turns[-1].content:  # a prompt may end in "\n\nAssistant:"
        turns.pop()
    return tuple(turns)


def _find_shared_prompt(
    row: Mapping[str, Any], names: Sequence[str], answers: Sequence[Turns]
) -> tuple[Turns, Turns, Turns]:
    """Return the common beginning of two answers as the prompt, and the rest of each answer.

    Raises BadRow if they have no common beginning, or a column holds the question.
    """
    one, other = (row[name] for name in names)
    if not isinstance(one, str) or not isinstance(other, str):
        return _split_turns(*answers)
    if _parse_dialogue(one) and _parse_dialogue(other):
        return _split_turns(*answers)
    for column in QUESTIONS:
        if column in row:
            raise chat_messages.BadRow(
                "no_prompt",
                f"no `prompt`, but a column `{column}`: name it by columns.prompt, with {names[0]} "
                f"{chat_messages.shorten(one)}",
            )
    return _split_texts(one, other)


def _split_texts(one: str, other: str) -> tuple[Turns, Turns, Turns]:
    same = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    # The cut is between words: two different words may begin with the same letters.
    prompt = one[: one.rfind(" ", 0, same) + 1] if same < len(one) else one[:same]
    if not prompt.strip():
        raise chat_messages.BadRow(
            "no_prompt", "no `prompt`, and chosen and rejected do not begin alike"
        )
    return (
        _parse_turns(prompt.rstrip(), "user", "prompt"),
        _parse_turns(one[len(prompt) :], chat_messages.ASSISTANT, "chosen"),
        _parse_turns(other[len(prompt) :], chat_messages.ASSISTANT, "rejected"),
    )


def _split_turns(one: Turns, other: Turns) -> tuple[Turns, Turns, Turns]:
    """Return the longest common beginning that leaves an assistant turn in both, and both rests."""
    shorter = min(len(one), len(other))
    left = _compare(one)
    right = _compare(other)
    same = next((n for n in range(shorter) if left[n] != right[n]), shorter)
    while same and not all(
        any(turn.role == chat_messages.ASSISTANT for turn in turns[same:]) for turns in (one, other)
    ):
        same -= 1
    if not same:
        raise chat_messages.BadRow(
            "no_prompt", "no `prompt`, and chosen and rejected do not begin alike"
        )
    return one[:same], one[same:], other[same:]


CALL = "<functioncall>"
RESPONSE = "FUNCTION RESPONSE"
_END = "<|endoftext|>"
_TURN = re.compile(rf"(?:\A|\n)\s*(USER|ASSISTANT|{RESPONSE}):")
_GLAIVE_ROLES = {"USER": "user", "ASSISTANT": chat_messages.ASSISTANT, RESPONSE: chat_messages.TOOL}
_ARGUMENTS = re.compile(
    r"\s*\{\s*\"name\":\s*\"([^\"]+)\",\s*\"arguments\":\s*'(.*)'\s*\}\s*", re.DOTALL
)


def read_glaive(chat: str, system: str) -> chat_messages.Conversation:
    """Return the conversation in a Glaive row, with the tools that its system turn lists.

    Raises BadRow if the row is malformed.
    """
    parts = _TURN.split(chat)
    if parts[0].strip() or len(parts) < 3:
        raise chat_messages.BadRow(
            "not_messages",
            f"`chat` is {chat_messages.shorten(chat)}, not a text with USER: and ASSISTANT:",
        )
    turns = [
        {"role": _GLAIVE_ROLES[name], "content": said.strip().removesuffix(_END).strip()}
        for name, said in zip(parts[1::2], parts[2::2], strict=True)
    ]
    messages = split_glaive_calls(chat_messages.parse_messages(turns, "chat"))
    told, schemas = _split_schemas(system.removeprefix("SYSTEM:").strip())
    if told:
        messages = (chat_messages.Message("system", told), *messages)
    return chat_messages.Conversation(messages, chat_messages.parse_tools(schemas, wrap=True))


def split_glaive_calls(
    messages: Sequence[chat_messages.Message],
) -> tuple[chat_messages.Message, ...]:
    """Return `messages` with calls in the assistant's text turned into tool calls.

    Function responses in a user's turn become tool turns. Raises BadRow for a malformed call.
    """
    found: list[chat_messages.Message] = []
    for message in messages:
        said = message.content.lstrip()
        if message.role == chat_messages.ASSISTANT and CALL in said:
            before, _, text = said.removesuffix(_END).partition(CALL)
            call = {"type": "function", "function": _parse_call(text)}
            calls = [*message.more.get("tool_calls", ()), call]
            more = {**message.more, "tool_calls": calls}
            message = replace(message, content=before.strip(), more=more)
        elif message.role in ("user", chat_messages.TOOL) and said.startswith(f"{RESPONSE}:"):
            message = replace(
                message, role=chat_messages.TOOL, content=said[len(RESPONSE) + 1 :].strip()
            )
        if message.role == chat_messages.TOOL and found:
            message = chat_messages.name_result(message, found[-1])
        found.append(message)
    return tuple(found)


def _parse_call(text: str) -> dict[str, Any]:
    """Return the name and the arguments of the call in `text`. Raises BadRow."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = _parse_quoted_arguments(text)
    if isinstance(found, dict) and isinstance(found.get("arguments"), str):
        found["arguments"] = _parse_object(found["arguments"])
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise chat_messages.BadRow(
            "bad_tool_calls",
            f"{CALL} {chat_messages.shorten(text.strip())} is not the JSON of a call",
        )
    if not isinstance(found.setdefault("arguments", {}), Mapping):
        raise chat_messages.BadRow(
            "bad_tool_calls",
            f"{CALL} {chat_messages.shorten(text.strip())}: `arguments` is not an object",
        )
    return found


def _parse_quoted_arguments(text: str) -> dict[str, Any] | None:
    found = _ARGUMENTS.fullmatch(text)
    return found and {"name": found[1], "arguments": _parse_object(found[2])}


def _parse_object(text: str) -> Any:
    """Return the value of the JSON `text`, in which quotes may be escaped, or None if invalid."""
    for written in (text, text.replace("\\'", "'")):
        try:
            return json.loads(written)
        except (ValueError, RecursionError):
            continue
    return None


def _split_schemas(system: str) -> tuple[str, list[Any]]:
    """Return the text of a system turn, and the tool schemas that follow it. Raises BadRow."""
    begin = system.find("{")
    told, rest = (system, "") if begin < 0 else (system[:begin], system[begin:])
    schemas = []
    while rest := rest.strip():
        try:
            schema, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            raise chat_messages.BadRow(
                "bad_tools",
                f"`system` lists {chat_messages.shorten(rest)}, which is not a JSON schema",
            ) from None
        schemas.append(schema)
        rest = rest[end:]
    return told.strip(), schemas
