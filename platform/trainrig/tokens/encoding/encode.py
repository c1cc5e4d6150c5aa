"""Text to ids and back, with a trained tokenizer.

No text can make a special token: `<|end_of_text|>` written on a web page becomes the ordinary
tokens of its letters. Only code that means to puts a special token's id between texts.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.encoding.engine import FastEngine, Unequal, fast_engine
from trainrig.tokens.special import END_OF_TEXT, role_id
from trainrig.tokens.tokenizers.entries import entry_bytes


class Encoder:
    """A tokenizer, ready to use; made of a `tokenizer.json`, and pickled as that.

    Takes the faster engine where that is certain to give the same ids; `engine` says which it is.
    With "tiktoken", one thread: the caller's. With "tokenizers", as many as that library takes:
    `RAYON_NUM_THREADS`, or none beside the caller's under `TOKENIZERS_PARALLELISM=false`. That is
    for the caller to set, before the first use in a process: one process a core wants it off.
    """

    def __init__(self, tokenizer_json: str, where: str = "tokenizer.json") -> None:
        """`where` is named in errors. Raises DataError for what cannot give any text back."""
        self.text = tokenizer_json  # what `tokenizer.json` holds
        self._where = where
        self._tokenizer = _parse(tokenizer_json, where)
        self._special = {
            token.content: number
            for number, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        self._bytes = entry_bytes(self._tokenizer, set(self._special.values()), where)
        self.end_of_text = self.special(END_OF_TEXT)

    @classmethod
    def load(cls, path: str) -> "Encoder":
        """The tokenizer in the file at `path`. Raises DataError if there is none."""
        try:
            return cls(storage.read(path).decode("utf-8"), path)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; `trainrig tokenizer` makes one") from None
        except UnicodeDecodeError:
            raise DataError(f"{path}: not UTF-8, so this is no tokenizer.json") from None

    def __reduce__(self) -> tuple[type["Encoder"], tuple[str, str]]:
        return Encoder, (self.text, self._where)

    @functools.cached_property
    def _fast(self) -> FastEngine | Unequal:
        """Made when first asked for: it takes its time, and who trains encodes nothing."""
        try:
            return fast_engine(self._tokenizer, self._bytes)
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

    def special(self, role: str) -> int:
        """The id of a special token, by our name for it or a published one for the same role.

        Raises DataError if the tokenizer has none such.
        """
        number = role_id(self._special, role)
        if number is None:
            there = ", ".join(sorted(self._special)) or "none"
            raise DataError(f"{self._where}: no special token {role}; there are: {there}")
        return number

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

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`, which need not be whole characters."""
        pieces = []
        for number in ids:
            if not 0 <= number < len(self._bytes):
                raise IndexError(f"{number} is no id of a vocabulary of {len(self._bytes)}")
            pieces.append(self._bytes[number])
        return b"".join(pieces)


def _parse(tokenizer_json: str, where: str) -> tokenizers.Tokenizer:
    """The library's tokenizer, set to give all of a text and no more than the text."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises nothing more exact
        raise DataError(f"{where}: not a tokenizer.json: {error}") from None
    # Published files may cut and fill every text to one length.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Kept out of tokenizer.json by the library, so it must be set again wherever one is read.
    tokenizer.encode_special_tokens = True
    return tokenizer
