"""Conversion of text to token ids and back, with a trained tokenizer.

No text produces a special token: `<|end_of_text|>` written on a web page is encoded as ordinary
tokens of its letters. Only code inserts the ids of special tokens between texts.

Classifiers read texts and pairs of texts whole (`TextPairEncoder`), with the special tokens around
them.

A tokenizer that came with a Transformers model adds the tokens that it adds there, such as BERT's
`[CLS] first [SEP] second [SEP]`. A tokenizer made by trainrig adds an end of text before, between
and after the texts.

Shapes: T tokens.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers.processors import TemplateProcessing

from trainrig.errors import DataError
from trainrig.tokens import special_tokens
from trainrig.tokens.permutation import Integers
from trainrig.tokens.tokenizers.entry_bytes import list_entry_bytes, strips_leading_space
from trainrig.tokens.tokenizers.fast_engine import FastEngine, NotEquivalent, build_fast_engine


class Encoder:
    """A tokenizer, ready to use; built from a `tokenizer.json`, and picklable.

    Uses the faster engine where it is certain to give the same ids; `engine` says which one.
    "tiktoken" runs on the caller's thread. "tokenizers" uses as many threads as
    `RAYON_NUM_THREADS`, or none besides the caller's with `TOKENIZERS_PARALLELISM=false`. The
    caller sets these variables before the first use in a process; with one process a core, turn
    parallelism off.
    """

    def __init__(
        self,
        tokenizer_json: str,
        where: str = "tokenizer.json",
        beside: Mapping[str, str] | None = None,
    ) -> None:
        """Parse the text of a tokenizer.json; `where` is its name in error messages.

        `beside` holds the other files of the tokenizer's folder, which give roles to special
        tokens. Raises DataError if the text is not a tokenizer.json, or if the bytes of its entries
        cannot be determined.
        """
        self.text = tokenizer_json  # content of `tokenizer.json`
        self.files = special_tokens.TokenizerFiles(tokenizer_json, dict(beside or {}), where)
        self._tokenizer = special_tokens.parse_tokenizer(tokenizer_json, where)
        self.special_tokens = special_tokens.find_special_tokens(self.files, self._tokenizer)
        self._special = dict(self.special_tokens.names)
        self._bytes = list_entry_bytes(
            self._tokenizer, set(self._special.values()), where, lenient=True
        )

    @classmethod
    def load(cls, path: str) -> "Encoder":
        """Load the tokenizer of the folder or file `path`, with the files beside it.

        Raises DataError if there is none.
        """
        files = special_tokens.TokenizerFiles.read(path)
        return cls(files.tokenizer, files.where, files.beside)

    @classmethod
    def of(cls, files: special_tokens.TokenizerFiles) -> "Encoder":
        """Build the encoder for the tokenizer in `files`."""
        return cls(files.tokenizer, files.where, files.beside)

    def __reduce__(self) -> tuple[type["Encoder"], tuple[str, str, dict[str, str]]]:
        return Encoder, (self.text, self.files.where, dict(self.files.beside))

    @property
    def end_of_text(self) -> int:
        """Id that separates documents; raises DataError if no special token has that role."""
        return self.special_tokens.of("end").id

    @functools.cached_property
    def adds_space(self) -> bool:
        """Return whether encoding adds a space before each text, as SentencePiece does."""
        return strips_leading_space(self._tokenizer.decoder)

    @functools.cached_property
    def _fast(self) -> FastEngine | NotEquivalent:
        """The fast encoder or why there is none; built on first use, as training needs none."""
        try:
            return build_fast_engine(self._tokenizer, self._bytes)
        except NotEquivalent as reason:
            return reason

    @property
    def why_not_fast(self) -> str:
        """Reason for using the engine "tokenizers", or "" with the engine "tiktoken"."""
        return str(self._fast) if isinstance(self._fast, NotEquivalent) else ""

    @property
    def engine(self) -> Literal["tiktoken", "tokenizers"]:
        """The library that encodes; depends on tokenizer.json alone, so all processes agree."""
        return "tokenizers" if self.why_not_fast else "tiktoken"

    @property
    def vocabulary_size(self) -> int:
        """Number of entries, including special tokens; every id is below it."""
        return len(self._bytes)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer's JSON with its keys sorted and no white space between."""
        parsed = json.loads(self.text)
        canonical = json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    @functools.cached_property
    def byte_lengths(self) -> NDArray[np.int64]:
        """[vocabulary] Number of bytes of text that each id stands for; 0 for special tokens."""
        special = set(self._special.values())
        return np.array([0 if i in special else len(b) for i, b in enumerate(self._bytes)])

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the special tokens, keyed by their names in this tokenizer."""
        return dict(self._special)

    def find_special(self, role: str) -> int:
        """Return the id of a special token, by its trainrig name or by its name in this tokenizer.

        A trainrig name in `ROLE_OF` finds the token that has that role, whatever its text. Raises
        DataError if the tokenizer has no such token.
        """
        if role in special_tokens.ROLE_OF:
            return self.special_tokens.of(special_tokens.ROLE_OF[role]).id
        if role not in self._special:
            there = ", ".join(sorted(self._special)) or "none"
            raise DataError(
                f"{self.files.where}: there is no special token {role}; there are: {there}"
            )
        return self._special[role]

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Return the ids of each text, without special tokens and without end-of-text."""
        if isinstance(self._fast, FastEngine):
            return [self._fast.encode(text) for text in texts]
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, with special tokens written as their names.

        Bytes that are not valid UTF-8, such as part of a character, become U+FFFD. Raises
        IndexError for a number that is not an id.
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_text(self, ids: Iterable[int]) -> str:
        """Return the text that was encoded to `ids`, without special tokens.

        Unlike `decode`, this removes the space that the tokenizer added before the text.
        """
        special = set(self._special.values())
        text = self.decode(number for number in ids if number not in special)
        return text.removeprefix(" ") if self.adds_space else text

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of `ids`, which may begin or end inside a character."""
        pieces = []
        for number in ids:
            if not 0 <= number < len(self._bytes):
                raise IndexError(f"{number} is not an id in a vocabulary of {len(self._bytes)}")
            pieces.append(self._bytes[number])
        return b"".join(pieces)


BROUGHT_BY = {
    special_tokens.TOKENIZER_CONFIG,
    special_tokens.MAP,
}  # files that come with a tokenizer of Transformers


@dataclass(frozen=True)
class EncodedTexts:
    """The tokens of one text, or of a pair."""

    ids: Integers  # [T] token ids
    segments: Integers  # [T] token type: 0, or 1 where the tokenizer assigns the second segment
    of_second: NDArray[np.bool_]  # [T] whether the token is in the second text; special tokens: no
    characters: Integers  # [T, 2] begin and end of each token in its text, in characters


class TooLong(Exception):
    """Raised if a text has more tokens than the limit, and may not be truncated."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"{tokens} tokens")
        self.tokens = tokens


class TextPairEncoder:
    """A tokenizer for texts or pairs of at most `longest` tokens, special tokens included."""

    def __init__(self, encoder: Encoder, longest: int, cut: str | None) -> None:
        """Prepare the tokenizer; `cut` says which text is truncated if there are too many tokens.

        "longest_first" removes tokens from the end of whichever text is longer; "only_second" from
        the second. None truncates neither: `encode` raises TooLong.
        """
        whole = special_tokens.parse_tokenizer(encoder.text, encoder.files.where)
        if not BROUGHT_BY & set(encoder.files.beside):
            whole.post_processor = _build_end_template(encoder)
        self._whole = whole
        self._longest = longest
        self._cut = cut
        self._truncating: tokenizers.Tokenizer | None = None
        if cut is not None:
            self._truncating = special_tokens.parse_tokenizer(encoder.text, encoder.files.where)
            self._truncating.post_processor = whole.post_processor
            self._truncating.enable_truncation(max_length=longest, strategy=cut)

    def encode(self, first: str, second: str | None = None) -> EncodedTexts:
        """Return the tokens of `first`, then of `second`; no text produces a special token.

        Raises TooLong if there are more than `longest` tokens and truncation is off, or cannot
        remove enough.
        """
        found = self._whole.encode(first, second, add_special_tokens=True)
        if (tokens := len(found.ids)) > self._longest:
            if self._truncating is None:
                raise TooLong(tokens)
            try:
                found = self._truncating.encode(first, second, add_special_tokens=True)
            except Exception as error:  # the library's only error where nothing is left to cut
                raise TooLong(tokens) from error
        texts = [-1 if text is None else text for text in found.sequence_ids]
        return EncodedTexts(
            np.array(found.ids, dtype=np.int64),
            np.array(found.type_ids, dtype=np.int64),
            np.array(texts) == 1,
            np.array(found.offsets, dtype=np.int64).reshape(-1, 2),
        )


def _build_end_template(encoder: Encoder) -> TemplateProcessing:
    end = encoder.special_tokens.of("end")
    return TemplateProcessing(
        single="$E:0 $A:0 $E:0".replace("$E", end.text),
        pair="$E:0 $A:0 $E:0 $B:1 $E:1".replace("$E", end.text),
        special_tokens=[(end.text, end.id)],
    )
