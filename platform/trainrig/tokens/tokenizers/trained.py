"""What all kinds of tokenizers that are trained on text have in common."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import tokenizers
from pydantic import model_validator

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.tokens.special import list_special_tokens


class Trained(Settings):
    """A vocabulary of a size that is asked for, with our special tokens first.

    Whatever the kind: any text comes back as it was, no text makes a special token, and the same
    texts in any order, on any number of threads, make the same file to the byte.
    """

    # Entries that this kind always has, so that any text can be written, and what they are.
    always: ClassVar[tuple[int, str]]

    # Entries in the vocabulary, special tokens and reserved slots included.
    vocabulary: int = 32_768
    # Special tokens without a meaning yet, <|reserved_0|> and so on, for a model to be taught
    # later.
    reserved: int = Field(default=0, ge=0)
    # Special tokens <extra_id_0> and so on, that stand for spans left out of a text: SpanCorruption
    # and UL2 need them.
    sentinels: int = Field(default=0, ge=0)
    # Further special tokens, after all others: ["<|mask|>"] for masked prediction, or
    # ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"] for filling in the middle.
    extra: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_room_for_any_text(self) -> Self:
        names = self.special
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"extra: {twice!r} is a special token already; leave it out")
        if "" in self.extra:
            raise ValueError("extra: a special token has a name of at least one character")
        if self.vocabulary < self.least:
            entries, what = self.always
            raise ValueError(
                f"vocabulary ({self.vocabulary} entries) has no room for {entries} {what}, "
                f"{len(names) - self.reserved} special tokens and {self.reserved} reserved slots; "
                f"set it to {self.least} or more"
            )
        return self

    @property
    def least(self) -> int:
        """Entries of the smallest vocabulary that can write any text."""
        return self.always[0] + len(self.special)

    @property
    def special(self) -> list[str]:
        """The special tokens by id, reserved slots among them."""
        return list_special_tokens(self.reserved, self.sentinels, self.extra)


class Counted:
    """Counts texts and their bytes as they pass."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._source = texts
        self.texts = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._source:
            self.texts += 1
            self.bytes += len(text.encode())
            yield text


def check_reached(settings: Trained, reached: int, counted: Counted) -> None:
    """Raise DataError if the texts allow only `reached` entries, fewer than were asked for."""
    if reached < settings.vocabulary:
        raise DataError(
            f"tokenizer.vocabulary: {counted.texts} texts of {counted.bytes} bytes allow at most "
            f"{reached} entries, not {settings.vocabulary}; set it to {reached} or less, or give "
            f"more text"
        )


def as_file(tokenizer: tokenizers.Tokenizer, changes: Mapping[str, Any] | None = None) -> bytes:
    """The `tokenizer.json` of `tokenizer`, with top-level `changes`, as the library writes it."""
    text = tokenizer.to_str()
    if changes:
        changed = json.dumps(json.loads(text) | changes)
        text = tokenizers.Tokenizer.from_str(changed).to_str()
    return bytes(text, "utf-8")
