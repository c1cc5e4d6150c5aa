r"""Function calls in the text form of glaive-function-calling-v2, also found in ShareGPT rows.

    {"system": "SYSTEM: You … Use them if required -\n{…schema…}",
     "chat": "USER: …\n\n\nASSISTANT: <functioncall> {…} <|endoftext|>\n\n\n
              FUNCTION RESPONSE: {…}"}

Arguments are JSON in single quotes: {"name": "get", "arguments": '{"city": "Paris"}'}.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainrig.tokens.chat.messages import (
    ASSISTANT,
    TOOL,
    BadRow,
    Conversation,
    Message,
    name_result,
    parse_messages,
    parse_tools,
    shorten,
)

CALL = "<functioncall>"
RESPONSE = "FUNCTION RESPONSE"
_END = "<|endoftext|>"
_TURN = re.compile(rf"(?:\A|\n)\s*(USER|ASSISTANT|{RESPONSE}):")
_ROLES = {"USER": "user", "ASSISTANT": ASSISTANT, RESPONSE: TOOL}
_ARGUMENTS = re.compile(
    r"\s*\{\s*\"name\":\s*\"([^\"]+)\",\s*\"arguments\":\s*'(.*)'\s*\}\s*", re.DOTALL
)


def read_glaive(chat: str, system: str) -> Conversation:
    """Return the conversation in a Glaive row, with the tools that its system turn lists.

    Raises BadRow if the row is malformed.
    """
    parts = _TURN.split(chat)
    if parts[0].strip() or len(parts) < 3:
        raise BadRow(
            "not_messages", f"`chat` is {shorten(chat)}, not a text with USER: and ASSISTANT:"
        )
    turns = [
        {"role": _ROLES[name], "content": said.strip().removesuffix(_END).strip()}
        for name, said in zip(parts[1::2], parts[2::2], strict=True)
    ]
    messages = split_glaive_calls(parse_messages(turns, "chat"))
    told, schemas = _split_schemas(system.removeprefix("SYSTEM:").strip())
    if told:
        messages = (Message("system", told), *messages)
    return Conversation(messages, parse_tools(schemas, wrap=True))


def split_glaive_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return `messages` with calls in the assistant's text turned into tool calls.

    Function responses in a user's turn become tool turns. Raises BadRow for a malformed call.
    """
    found: list[Message] = []
    for message in messages:
        said = message.content.lstrip()
        if message.role == ASSISTANT and CALL in said:
            before, _, text = said.removesuffix(_END).partition(CALL)
            call = {"type": "function", "function": _parse_call(text)}
            calls = [*message.more.get("tool_calls", ()), call]
            more = {**message.more, "tool_calls": calls}
            message = replace(message, content=before.strip(), more=more)
        elif message.role in ("user", TOOL) and said.startswith(f"{RESPONSE}:"):
            message = replace(message, role=TOOL, content=said[len(RESPONSE) + 1 :].strip())
        if message.role == TOOL and found:
            message = name_result(message, found[-1])
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
        raise BadRow("bad_tool_calls", f"{CALL} {shorten(text.strip())} is not the JSON of a call")
    if not isinstance(found.setdefault("arguments", {}), Mapping):
        raise BadRow(
            "bad_tool_calls", f"{CALL} {shorten(text.strip())}: `arguments` is not an object"
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
            raise BadRow(
                "bad_tools", f"`system` lists {shorten(rest)}, which is not a JSON schema"
            ) from None
        schemas.append(schema)
        rest = rest[end:]
    return told.strip(), schemas
