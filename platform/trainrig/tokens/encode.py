"""Text to ids and back, with a trained tokenizer.

No text can make a special token: `<|end_of_text|>` written on a web page becomes the ordinary
tokens of its letters. Only code that means to puts a special token's id between texts.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers
from numpy.typing import NDArray

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.special import END_OF_TEXT


class Encoder:
    """A byte-level tokenizer, ready to use; made of a `tokenizer.json`, and pickled as that.

    Encoding runs on as many threads as the tokenizers library takes: `RAYON_NUM_THREADS`, or none
    beside the caller's under `TOKENIZERS_PARALLELISM=false`. That is for the caller to set, before
    the first use in a process: one process a core wants it off.
    """

    def __init__(self, tokenizer_json: str, where: str = "tokenizer.json") -> None:
        """`where` is named in errors. Raises DataError for what is no byte-level tokenizer."""
        self.text = tokenizer_json  # what `tokenizer.json` holds
        self._where = where
        self._tokenizer = _parse(tokenizer_json, where)
        # Kept out of tokenizer.json by the library, so it must be set again wherever one is read.
        self._tokenizer.encode_special_tokens = True
        self._special = {
            token.content: number
            for number, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        self._bytes = _bytes_of_entries(self._tokenizer, set(self._special.values()), where)
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

    def special(self, name: str) -> int:
        """The id of the special token `name`. Raises DataError if the tokenizer has none such."""
        if name not in self._special:
            there = ", ".join(sorted(self._special)) or "none"
            raise DataError(f"{self._where}: no special token {name}; there are: {there}")
        return self._special[name]

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text; none of them special, no end-of-text added."""
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
    try:
        return tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises nothing more exact
        raise DataError(f"{where}: not a tokenizer.json: {error}") from None


def _bytes_of_entries(
    tokenizer: tokenizers.Tokenizer, special: set[int], where: str
) -> tuple[bytes, ...]:
    byte_of = {character: byte for byte, character in enumerate(_characters_of_bytes())}
    entries = []
    for number in range(tokenizer.get_vocab_size()):
        name = tokenizer.id_to_token(number)
        if name is None:
            raise DataError(f"{where}: no entry has the id {number}; ids must have no gap")
        if number in special:
            entries.append(name.encode())
        elif all(character in byte_of for character in name):
            entries.append(bytes(byte_of[character] for character in name))
        else:
            raise DataError(
                f"{where}: entry {number} ({name!r}) is not written in byte-level characters; "
                f"use a byte-level tokenizer, such as `trainrig tokenizer` makes"
            )
    return tuple(entries)


def _characters_of_bytes() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's choice).

    A byte that is a visible Latin-1 character stands for itself; the others, in order, take the
    characters from U+0100.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(b) if b in visible else chr(0x100 + hidden.index(b)) for b in range(256)]
