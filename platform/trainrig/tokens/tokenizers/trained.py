"""Base class and helpers of all tokenizers that are trained on text."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import tokenizers
from pydantic import model_validator

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.tokens.special import list_special_tokens


class Trained(Settings):
    """A tokenizer with a vocabulary of a given size, in which special tokens come first.

    Every kind is lossless for any text, produces no special token from text, and gives the same
    file, byte for byte, for the same texts in any order and on any number of threads.
    """

    # Number and description of the entries that every vocabulary of this kind has, so that it can
    # encode any text, such as (256, "bytes").
    required_entries: ClassVar[tuple[int, str]]

    # Number of entries in the vocabulary, including special tokens and reserved slots.
    vocabulary: int = 32_768
    # Number of special tokens without a meaning, <|reserved_0|> and so on, that can be given one in
    # later training.
    reserved: int = Field(default=0, ge=0)
    # Number of special tokens <extra_id_0> and so on, which mark spans left out of a text.
    # SpanCorruption and UL2 need them.
    sentinels: int = Field(default=0, ge=0)
    # Additional special tokens, after all others: ["<|mask|>"] for masked prediction, or
    # ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"] for filling in the middle.
    extra: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_vocabulary_size(self) -> Self:
        names = self.special
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"extra: {twice!r} is a special token already; leave it out")
        if "" in self.extra:
            raise ValueError("extra: a special token has an empty name; leave it out")
        if self.vocabulary < self.least:
            entries, what = self.required_entries
            raise ValueError(
                f"vocabulary ({self.vocabulary} entries) cannot hold {entries} {what}, "
                f"{len(names) - self.reserved} special tokens and {self.reserved} reserved slots; "
                f"set it to {self.least} or more"
            )
        return self

    @property
    def least(self) -> int:
        """Number of entries of the smallest vocabulary that can encode any text."""
        return self.required_entries[0] + len(self.special)

    @property
    def special(self) -> list[str]:
        """The special tokens in the order of their ids, including reserved slots."""
        return list_special_tokens(self.reserved, self.sentinels, self.extra)


class CountedTexts:
    """Iterable over texts that counts the texts and their bytes."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._source = texts
        self.texts = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._source:
            self.texts += 1
            self.bytes += len(text.encode())
            yield text


def check_vocabulary_reached(settings: Trained, reached: int, counted: CountedTexts) -> None:
    """Raise DataError if training reached fewer entries than `settings.vocabulary`.

    `reached` is the number of entries of the trained tokenizer: short texts allow few.
    """
    if reached < settings.vocabulary:
        raise DataError(
            f"tokenizer.vocabulary: {counted.texts} texts of {counted.bytes} bytes allow at most "
            f"{reached} entries, not {settings.vocabulary}; set it to {reached} or less, or give "
            f"more text"
        )


def serialise_tokenizer(
    tokenizer: tokenizers.Tokenizer, changes: Mapping[str, Any] | None = None
) -> bytes:
    """Return the `tokenizer.json` of `tokenizer` as bytes, with top-level `changes` applied."""
    text = tokenizer.to_str()
    if changes:
        changed = json.dumps(json.loads(text) | changes)
        text = tokenizers.Tokenizer.from_str(changed).to_str()
    return bytes(text, "utf-8")
