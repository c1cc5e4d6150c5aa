"""Text to ids and back, with a trained tokenizer.

No text can make a special token: `<|end_of_text|>` written on a web page becomes the ordinary
tokens of its letters. Only code that means to puts a special token's id between texts.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import DataError
from trainrig.tokens.encoding.engine import FastEngine, Unequal, build_fast_engine
from trainrig.tokens.special_tokens import (
    ROLE_OF,
    TokenizerFiles,
    find_special_tokens,
    parse_tokenizer,
)
from trainrig.tokens.tokenizers.entries import leading_space_is_stripped, list_entry_bytes


class Encoder:
    """A tokenizer, ready to use; made of a `tokenizer.json`, and pickled as that.

    Takes the faster engine where that is certain to give the same ids; `engine` says which it is.
    With "tiktoken", one thread: the caller's. With "tokenizers", as many as that library takes:
    `RAYON_NUM_THREADS`, or none beside the caller's under `TOKENIZERS_PARALLELISM=false`. That is
    for the caller to set, before the first use in a process: one process a core wants it off.
    """

    def __init__(
        self,
        tokenizer_json: str,
        where: str = "tokenizer.json",
        beside: Mapping[str, str] | None = None,
    ) -> None:
        """`where` is named in errors; `beside`: the files it came with, which tell roles.

        Raises DataError for what is no tokenizer.json, or whose entries have no bytes of their own.
        """
        self.text = tokenizer_json  # what `tokenizer.json` holds
        self.files = TokenizerFiles(tokenizer_json, dict(beside or {}), where)
        self._tokenizer = parse_tokenizer(tokenizer_json, where)
        self.special_tokens = find_special_tokens(self.files, self._tokenizer)
        self._special = dict(self.special_tokens.names)
        self._bytes = list_entry_bytes(
            self._tokenizer, set(self._special.values()), where, as_brought=True
        )

    @classmethod
    def load(cls, path: str) -> "Encoder":
        """The tokenizer of the folder `path`, or in the file at `path`, with the files beside it.

        Raises DataError if there is none.
        """
        files = TokenizerFiles.read(path)
        return cls(files.tokenizer, files.where, files.beside)

    @classmethod
    def of(cls, files: TokenizerFiles) -> "Encoder":
        """The tokenizer of `files`."""
        return cls(files.tokenizer, files.where, files.beside)

    def __reduce__(self) -> tuple[type["Encoder"], tuple[str, str, dict[str, str]]]:
        return Encoder, (self.text, self.files.where, dict(self.files.beside))

    @property
    def end_of_text(self) -> int:
        """The id that stands between documents. Raises DataError if none is known to."""
        return self.special_tokens.of("end").id

    @functools.cached_property
    def adds_space(self) -> bool:
        """Whether a space is put before each text, as SentencePiece does, and taken off again."""
        return leading_space_is_stripped(self._tokenizer.decoder)

    @functools.cached_property
    def _fast(self) -> FastEngine | Unequal:
        """Made when first asked for: it takes its time, and who trains encodes nothing."""
        try:
            return build_fast_engine(self._tokenizer, self._bytes)
        except Unequal as reason:
            return reason

    @property
    def why_not_fast(self) -> str:
        """Why the engine is "tokenizers", if it is."""
        return str(self._fast) if isinstance(self._fast, Unequal) else ""

    @property
    def engine(self) -> Literal["tiktoken", "tokenizers"]:
        """What encodes: a function of tokenizer.json alone, so it is the same in every process."""
        return "tokenizers" if self.why_not_fast else "tiktoken"

    @property
    def vocabulary_size(self) -> int:
        """Entries, special tokens among them; every id is below."""
        return len(self._bytes)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer's JSON with its keys sorted and no white space between."""
        parsed = json.loads(self.text)
        canonical = json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    @functools.cached_property
    def byte_lengths(self) -> NDArray[np.int64]:
        """[vocabulary] bytes of text that each id stands for; 0 for special tokens."""
        special = set(self._special.values())
        return np.array([0 if i in special else len(b) for i, b in enumerate(self._bytes)])

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids of the special tokens, by their names in this tokenizer."""
        return dict(self._special)

    def find_special(self, role: str) -> int:
        """The id of a special token: the one that plays `role`, which is our name for it, or, for
        what is no role, the one of that name.

        Raises DataError if the tokenizer has none such.
        """
        if role in ROLE_OF:
            return self.special_tokens.of(ROLE_OF[role]).id
        if role not in self._special:
            there = ", ".join(sorted(self._special)) or "none"
            raise DataError(f"{self.files.where}: no special token {role}; there are: {there}")
        return self._special[role]

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text; none of them special, no end-of-text added."""
        if isinstance(self._fast, FastEngine):
            return [self._fast.encode(text) for text in texts]
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens by their names.

        Bytes that are no UTF-8, as where a character was cut in two, become U+FFFD. Raises
        IndexError for what is no id.
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_text(self, ids: Iterable[int]) -> str:
        """The text that `ids` were made of: as `decode`, less the space that the tokenizer added
        before it, and without special tokens."""
        special = set(self._special.values())
        text = self.decode(number for number in ids if number not in special)
        return text.removeprefix(" ") if self.adds_space else text

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`, which need not be whole characters."""
        pieces = []
        for number in ids:
            if not 0 <= number < len(self._bytes):
                raise IndexError(f"{number} is no id of a vocabulary of {len(self._bytes)}")
            pieces.append(self._bytes[number])
        return b"".join(pieces)
