"""Prompts of JSON lines: which of them can be asked, and in what order they are.

A prompt is a text that a template makes of a row, or a conversation: the messages in the column
that the template names, with the row's `tools`. A row that cannot be asked is left out and counted;
it never ends a run by itself.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainrig import storage
from trainrig.errors import DataError
from trainrig.evaluate.tasks.templates import compile_template
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.posttrain.rollouts.run_file import PromptFiles
from trainrig.tokens.chat.messages import (
    ASSISTANT,
    BadRow,
    Conversation,
    Message,
    parse_messages,
    parse_tools,
)
from trainrig.tokens.chat.unread_fields import find_unread
from trainrig.tokens.documents.files import find_paths
from trainrig.tokens.documents.formats import unpack_file
from trainrig.tokens.permutation import permute_indices

log = logging.getLogger(__name__)
FORMAT = "JSONL"
_COLUMN = re.compile(r"\s*\{\{\s*(\w+)\s*\}\}\s*")  # a template that names a column alone


@dataclass(frozen=True)
class Prompt:
    """What the model is asked."""

    number: int  # of its row, over all files, those left out among them
    text: str
    ids: tuple[int, ...]
    row: Mapping[str, Any]
    chat: Conversation | None = None  # that `text` is a transcript of; None: a text is all of it

    def as_fields(self) -> dict[str, Any]:
        """Return the fields that say the prompt in rows that are written."""
        if self.chat is None:
            return {"prompt": self.text}
        fields: dict[str, Any] = {"prompt": [turn.as_json() for turn in self.chat.messages]}
        return fields | ({"tools": list(self.chat.tools)} if self.chat.tools else {})


@dataclass(frozen=True)
class PromptSet:
    """The prompts that can be asked, in the order of their files."""

    prompts: tuple[Prompt, ...]
    left_out: Mapping[str, int]  # rows that cannot be asked, by why

    def find(self, place: int, seed: int, draw: int) -> Prompt:
        """The prompt at `place` of the endless order that `seed` and `draw` pick: each once before
        any comes again."""
        count = len(self.prompts)
        epoch, index = divmod(place, count)
        order = f"rollouts:{seed}:{draw}:{epoch}"
        return self.prompts[int(permute_indices(np.array([index]), count, order)[0])]


def read_prompt_set(
    files: PromptFiles, encoder: PromptEncoder, longest: int, wanted: tuple[str, ...] = ()
) -> PromptSet:
    """The rows of `files` whose prompts have at most `longest` tokens and that have a value in each
    column of `wanted`.

    Raises DataError for what is no JSON line, and if not one row can be asked.
    """
    make = _PromptMaker(files)
    found: list[Prompt] = []
    left_out: Counter[str] = Counter()
    unread: Counter[str] = Counter()
    first: dict[str, str] = {}
    number = -1
    for path in find_paths(FORMAT, files.paths):
        for line_number, line in enumerate(_read_lines(path), start=1):
            if not line.strip():
                continue
            number += 1
            where = f"{path}, line {line_number}"
            row = _parse_line(line, where)
            why = next((f"no '{name}'" for name in wanted if row.get(name) in (None, "")), None)
            if why is None:
                try:
                    prompt = make.build(number, row, where, encoder)
                except (DataError, BadRow) as error:
                    why = f"no prompt ({error})"
                else:
                    fits = 1 <= len(prompt.ids) <= longest
                    why = None if fits else f"not 1 to {longest} tokens"
            if why is None:
                found.append(prompt)
                unread.update(make.list_unread(prompt))
            else:
                kind = why.split(" (")[0]
                left_out[kind] += 1
                first.setdefault(kind, f"{where}: {why}")
    for kind, count in left_out.items():
        log.warning("prompts: %d left out: %s; the first, %s", count, kind, first[kind])
    if unread:
        said = ", ".join(f"{name} in {count:,}" for name, count in sorted(unread.items()))
        log.warning("prompts: of %d rows, these say what is not read: %s", number + 1, said)
    if not found:
        told = "; ".join(first.values()) or "the files are empty"
        raise DataError(f"prompts.paths: not one row to ask, of {number + 1:,}: {told}")
    return PromptSet(tuple(found), dict(left_out))


class _PromptMaker:
    """What makes prompts of rows."""

    def __init__(self, files: PromptFiles) -> None:
        self._chat = files.chat
        self._make = compile_template(files.template, "prompts.template")
        column = _COLUMN.fullmatch(files.template)
        self._column = column and column[1]  # that is all of the template

    def build(
        self, number: int, row: Mapping[str, Any], where: str, encoder: PromptEncoder
    ) -> Prompt:
        """Return the prompt of `row`. Raises DataError or BadRow for one that cannot be asked."""
        given = row.get(self._column) if self._column else None
        if isinstance(given, list):
            chat = self._read_chat(given, row)
            return Prompt(number, transcribe(chat), tuple(encoder.encode(chat)), row, chat)
        text = self._make(row, where)
        asked = (Message("user", text),) if self._chat else text
        return Prompt(number, text, tuple(encoder.encode(asked)), row)

    def list_unread(self, prompt: Prompt) -> tuple[str, ...]:
        """Return what the row of `prompt` says to the model that is asked, and nobody reads."""
        if prompt.chat is not None:
            return find_unread(prompt.row, prompt.row, {})
        beside = self._chat and self._column and prompt.row.get("tools")
        return ("tools beside a prompt that is one text",) if beside else ()

    def _read_chat(self, given: list[Any], row: Mapping[str, Any]) -> Conversation:
        if not self._chat:
            raise DataError(f"`{self._column}` is messages; set prompts.chat = true to answer them")
        chat = Conversation(parse_messages(given, str(self._column)), parse_tools(row.get("tools")))
        if not chat.messages or chat.messages[-1].role == ASSISTANT:
            raise DataError(f"`{self._column}` ends in no turn that the assistant answers")
        return chat


def transcribe(chat: Conversation) -> str:
    """Return `chat` as one text, for rewards that read texts: what is asked if that is all of it,
    else a paragraph for each turn behind its role."""
    if len(chat.messages) == 1:
        return chat.messages[0].content
    return "\n\n".join(f"{turn.role}: {turn.content}" for turn in chat.messages)


def _read_lines(path: str) -> Iterator[bytes]:
    with storage.open_read(path) as packed, unpack_file(path, packed) as stream:
        yield from stream


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: no JSON: {error}; write one object a line") from None
    if not isinstance(row, dict):
        raise DataError(
            f"{where}: {type(row).__name__} where an object was to be; write one a line"
        )
    return row
