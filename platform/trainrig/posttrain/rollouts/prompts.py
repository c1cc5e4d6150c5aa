"""Prompts of JSON lines: which of them can be asked, and in what order they are.

A row that cannot be asked is left out and counted; it never ends a run by itself.
"""

import json
import logging
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
from trainrig.tokens.chat.messages import Message
from trainrig.tokens.documents.files import find_paths
from trainrig.tokens.documents.formats import unpack_file
from trainrig.tokens.permutation import permute_indices

log = logging.getLogger(__name__)
FORMAT = "JSONL"


@dataclass(frozen=True)
class Prompt:
    """What the model is asked."""

    number: int  # of its row, over all files, those left out among them
    text: str
    ids: tuple[int, ...]
    row: Mapping[str, Any]


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
    make = compile_template(files.template, "prompts.template")
    found: list[Prompt] = []
    left_out: Counter[str] = Counter()
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
                    text = make(row, where)
                    asked = (Message("user", text),) if files.chat else text
                    ids = tuple(encoder.encode(asked))
                except DataError as error:
                    why, text, ids = f"no prompt ({error})", "", ()
                else:
                    why = None if 1 <= len(ids) <= longest else f"not 1 to {longest} tokens"
            if why is None:
                found.append(Prompt(number, text, ids, row))
            else:
                kind = why.split(" (")[0]
                left_out[kind] += 1
                first.setdefault(kind, f"{where}: {why}")
    for kind, count in left_out.items():
        log.warning("prompts: %d left out: %s; the first, %s", count, kind, first[kind])
    if not found:
        told = "; ".join(first.values()) or "the files are empty"
        raise DataError(f"prompts.paths: not one row to ask, of {number + 1:,}: {told}")
    return PromptSet(tuple(found), dict(left_out))


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
