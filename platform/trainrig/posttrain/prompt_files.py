"""Prompts read from JSON lines, and the order in which a run uses them.

A prompt is a text that a template makes from a row, or a conversation: the messages in the column
that the template names, with the row's `tools`. A row without a usable prompt is skipped and
counted; one such row does not end a run.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Field, Settings
from trainrig.errors import DataError
from trainrig.evaluate.tasks.task_templates import Template, compile_template
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.tokens.chat import chat_messages
from trainrig.tokens.chat.example_rows import find_unread
from trainrig.tokens.document_formats import unpack_file
from trainrig.tokens.document_set import find_paths
from trainrig.tokens.permutation import permute_indices

log = logging.getLogger(__name__)
FORMAT = "JSONL"
_COLUMN = re.compile(r"\s*\{\{\s*(\w+)\s*\}\}\s*")  # template that is one column and nothing else


class PromptFiles(Settings):
    """Files of JSON lines, each with a prompt and the values that rewards compare answers with."""

    # Files, folders and patterns (* and ? as wildcards), on disk or in a bucket; may be compressed.
    paths: Annotated[tuple[str, ...], NOT_IDENTITY, Field(min_length=1)]
    # Jinja template of the prompt, over the columns of a row. With `chat`, a template that is just
    # one column of messages makes a conversation, with the row's `tools`.
    template: Template = "{{ prompt }}"
    # Treat the prompt as a user's message and apply the model's chat template; false: the model
    # continues the prompt as plain text.
    chat: bool = False


@dataclass(frozen=True)
class Prompt:
    """Prompt for the model, with the row that it was made from."""

    number: int  # number of its row over all files, skipped rows included
    text: str
    ids: tuple[int, ...]
    row: Mapping[str, Any]
    chat: chat_messages.Conversation | None = (
        None  # conversation that `text` transcribes; None: plain text
    )

    def build_fields(self) -> dict[str, Any]:
        """Return the prompt as fields of an output row: `prompt`, and `tools` if there are any."""
        if self.chat is None:
            return {"prompt": self.text}
        fields: dict[str, Any] = {"prompt": [turn.to_json() for turn in self.chat.messages]}
        return fields | ({"tools": list(self.chat.tools)} if self.chat.tools else {})


@dataclass(frozen=True)
class PromptSet:
    """Usable prompts, in the order of their files."""

    prompts: tuple[Prompt, ...]
    left_out: Mapping[str, int]  # number of skipped rows by reason

    def find(self, place: int, seed: int, draw: int) -> Prompt:
        """Return the prompt at `place` of the endless shuffled order of `seed` and `draw`.

        The order is a sequence of epochs: every prompt occurs exactly once in each epoch.
        """
        count = len(self.prompts)
        epoch, index = divmod(place, count)
        order = f"rollouts:{seed}:{draw}:{epoch}"
        return self.prompts[int(permute_indices(np.array([index]), count, order)[0])]


def read_prompt_set(
    files: PromptFiles, encoder: PromptEncoder, longest: int, wanted: tuple[str, ...] = ()
) -> PromptSet:
    """Read the prompts of `files` with 1 to `longest` tokens and a value in each `wanted` column.

    Logs a warning for skipped rows, by reason. Raises DataError if a line is no JSON object, or if
    no row has a usable prompt.
    """
    make = _PromptMaker(files)
    prompts: list[Prompt] = []
    left_out: Counter[str] = Counter()
    unread: Counter[str] = Counter()
    first_skipped: dict[str, str] = {}
    number = -1
    for path in find_paths(FORMAT, files.paths):
        for line_number, line in enumerate(_read_lines(path), start=1):
            if not line.strip():
                continue
            number += 1
            where = f"{path}, line {line_number}"
            row = _parse_line(line, where)
            reason = next((f"no '{name}'" for name in wanted if row.get(name) in (None, "")), None)
            if reason is None:
                try:
                    prompt = make.build(number, row, where, encoder)
                except (DataError, chat_messages.BadRow) as error:
                    reason = f"the row has no usable prompt ({error})"
                else:
                    fits = 1 <= len(prompt.ids) <= longest
                    reason = None if fits else f"the prompt does not have 1 to {longest} tokens"
            if reason is None:
                prompts.append(prompt)
                unread.update(make.list_unread(prompt))
            else:
                kind = reason.split(" (")[0]
                left_out[kind] += 1
                first_skipped.setdefault(kind, f"{where}: {reason}")
    for kind, count in left_out.items():
        log.warning(
            "prompts: rows left out: %d (%s); the first, %s", count, kind, first_skipped[kind]
        )
    if unread:
        fields = ", ".join(f"{name} in {count:,}" for name, count in sorted(unread.items()))
        log.warning(
            "prompts: of %d rows, some have fields that are not used: %s", number + 1, fields
        )
    if not prompts:
        reasons = "; ".join(first_skipped.values()) or "the files are empty"
        raise DataError(
            f"prompts.paths: none of {number + 1:,} rows has a usable prompt: {reasons}"
        )
    return PromptSet(tuple(prompts), dict(left_out))


class _PromptMaker:
    """Builder of prompts from rows."""

    def __init__(self, files: PromptFiles) -> None:
        self._chat = files.chat
        self._make = compile_template(files.template, "prompts.template")
        column = _COLUMN.fullmatch(files.template)
        self._column = column and column[1]  # column of a template that is only `{{ column }}`

    def build(
        self, number: int, row: Mapping[str, Any], where: str, encoder: PromptEncoder
    ) -> Prompt:
        """Return the prompt of `row`. Raises DataError or BadRow if it has no usable prompt."""
        given = row.get(self._column) if self._column else None
        if isinstance(given, list):
            chat = self._read_chat(given, row)
            return Prompt(number, transcribe(chat), tuple(encoder.encode(chat)), row, chat)
        text = self._make(row, where)
        content = (chat_messages.Message("user", text),) if self._chat else text
        return Prompt(number, text, tuple(encoder.encode(content)), row)

    def list_unread(self, prompt: Prompt) -> tuple[str, ...]:
        """Return descriptions of what a model should read in the prompt's row but does not."""
        if prompt.chat is not None:
            return find_unread(prompt.row, prompt.row, {})
        has_tools = self._chat and self._column and prompt.row.get("tools")
        return ("tools of a prompt that is one text",) if has_tools else ()

    def _read_chat(self, given: list[Any], row: Mapping[str, Any]) -> chat_messages.Conversation:
        if not self._chat:
            raise DataError(
                f"`{self._column}` is a list of messages; set prompts.chat = true to answer them"
            )
        chat = chat_messages.Conversation(
            chat_messages.parse_messages(given, str(self._column)),
            chat_messages.parse_tools(row.get("tools")),
        )
        if not chat.messages or chat.messages[-1].role == chat_messages.ASSISTANT:
            raise DataError(f"`{self._column}` must not be empty or end in a turn of the assistant")
        return chat


def transcribe(chat: chat_messages.Conversation) -> str:
    """Return `chat` as one text, for rewards that read texts.

    A single message is returned as it is; several become one paragraph each, after the role.
    """
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
        raise DataError(f"{where}: not JSON: {error}; write one object on each line") from None
    if not isinstance(row, dict):
        raise DataError(
            f"{where}: found {type(row).__name__}, not an object; write one object on each line"
        )
    return row
