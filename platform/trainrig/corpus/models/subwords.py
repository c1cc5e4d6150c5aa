"""Which pieces of a text an n-gram model counts: subwords of a tokenizer, or words.

Each line of a text is a sentence, its white space folded; blank lines are none. Any of the kinds
below ends as one `tokenizers.Tokenizer`, whose JSON lies in the model's file.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import models, normalizers, pre_tokenizers, trainers

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.models.kneser_ney.ngrams import (
    BEGIN,
    END,
    MOST_WORDS,
    SPECIAL,
    UNKNOWN,
    Ids,
)
from trainrig.errors import DataError

MOST_KNOWN = 1_000_000  # words whose pieces are remembered: some 300 MB
# Normalizers that change a character whatever stands beside it.
_OF_A_CHARACTER = ("NFKD", "StripAccents", "Lowercase", "Replace")
_BEGIN_PIECE, _END_PIECE = -1, -2  # behind all pieces


class Subwords(Settings):
    """Byte-pair encoding (Sennrich et al. 2016) trained on the sample, words marked by `▁`.

    `normalise` is CCNet's (Wenzek et al. 2020): lower case, no accents, each digit a 0. Its 65,536
    pieces are the default; a sample of fewer megabytes than thousands of pieces gives fewer.
    """

    kind: Literal["Subwords"] = "Subwords"
    # Most pieces in the vocabulary.
    vocabulary: int = Field(default=65_536, ge=256, le=MOST_WORDS - 8)
    # Whether to lower case, drop accents and make each digit a 0, as CCNet does.
    normalise: bool = True


class Words(Settings):
    """Words between white space, the most frequent ones; the others are `<unk>`."""

    kind: Literal["Words"] = "Words"
    # Most words in the vocabulary.
    vocabulary: int = Field(default=500_000, ge=1, le=MOST_WORDS - 8)
    # Whether to lower case, drop accents and make each digit a 0, as CCNet does.
    normalise: bool = True


class TokenizerFile(Settings):
    """A tokenizer that is there already."""

    kind: Literal["TokenizerFile"] = "TokenizerFile"
    path: Annotated[str, NOT_IDENTITY]  # a tokenizer.json


Pieces = Annotated[Subwords | Words | TokenizerFile, Field(discriminator="kind")]


def make_tokenizer(pieces: Subwords | Words | TokenizerFile, sample: Iterator[str]) -> str:
    """The JSON of the tokenizer, trained on `sample` unless it is there already."""
    if isinstance(pieces, TokenizerFile):
        try:
            text = storage.read(pieces.path).decode()
            read_tokenizer(text, pieces.path)
        except FileNotFoundError:
            raise DataError(f"{pieces.path}: no such file; name a tokenizer.json") from None
        except UnicodeDecodeError:
            raise DataError(f"{pieces.path}: not UTF-8, so no tokenizer.json") from None
        return text
    if isinstance(pieces, Subwords):
        tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN], fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        make_trainer: Any = trainers.BpeTrainer
    else:
        tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIAL[UNKNOWN]))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        make_trainer = trainers.WordLevelTrainer
    trainer = make_trainer(
        vocab_size=pieces.vocabulary, special_tokens=list(SPECIAL), show_progress=False
    )
    if pieces.normalise:
        tokenizer.normalizer = normalizers.Sequence(
            [
                normalizers.NFKD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
                normalizers.Replace(tokenizers.Regex(r"\d"), "0"),
            ]
        )
    tokenizer.train_from_iterator(
        (line for text in sample for line in iterate_lines(text)), trainer
    )
    return str(tokenizer.to_str())


def build_word_tokenizer(vocabulary: Sequence[str]) -> str:
    """The JSON of a tokenizer that cuts at white space, for a model that names none."""
    ids = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=SPECIAL[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return str(tokenizer.to_str())


def read_tokenizer(text: str, where: str) -> tokenizers.Tokenizer:
    """The tokenizer of a JSON. Raises DataError naming `where`."""
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more particular
        raise DataError(f"{where}: no tokenizer.json: {error}") from None


def iterate_lines(text: str) -> Iterator[str]:
    """The sentences of a text, white space folded, without lone surrogates (UTF-8 has none)."""
    for line in text.encode("utf-8", "ignore").decode().split("\n"):
        if folded := " ".join(line.split()):
            yield folded


class TextEncoder:
    """Cuts texts into the ids of a model's words.

    A tokenizer that works on each word by itself is asked once for each: a text is then cut ten
    times as fast as the tokenizer would.
    """

    def __init__(self, tokenizer: str, where: str) -> None:
        self._tokenizer = read_tokenizer(tokenizer, where)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._by_word = _works_by_word(json.loads(tokenizer))
        self._known: dict[str, list[int]] = {}  # pieces of words met before
        self.pieces = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def list_pieces(self) -> list[str]:
        """The pieces by their numbers."""
        return [self._tokenizer.id_to_token(number) or "" for number in range(self.pieces)]

    def encode_sentences(self, texts: Sequence[str], word_of: Ids) -> tuple[Ids, NDArray[np.int64]]:
        """All sentences as `<s> word … </s> …`, and where each text begins; [texts + 1].

        `word_of` is the model's word for each piece.
        """
        sentences = [
            [line.split(" ") if self._by_word else [line] for line in iterate_lines(text)]
            for text in texts
        ]
        known = self._encode_units(set().union(*itertools.chain.from_iterable(sentences)))
        ids: list[int] = []
        begins = np.zeros(len(texts) + 1, np.int64)
        for number, each in enumerate(sentences):
            for units in each:
                ids.append(_BEGIN_PIECE)
                ids.extend(itertools.chain.from_iterable(map(known.__getitem__, units)))
                ids.append(_END_PIECE)
            begins[number + 1] = len(ids)
        pieces = np.array(ids, np.int64)
        return np.concatenate([word_of, [END, BEGIN]]).astype(np.uint32)[pieces], begins

    def _encode_units(self, units: set[str]) -> Mapping[str, list[int]]:
        """The pieces of each of `units`."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        new = sorted(units - self._known.keys())
        encoded = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
        found = {unit: each.ids for unit, each in zip(new, encoded, strict=True)}
        if not self._by_word:
            return found
        self._known.update(found)
        return self._known


def _works_by_word(tokenizer: dict[str, Any]) -> bool:
    """Whether the pieces of a line are those of its words, one after another.

    They are, but for words that begin with `▁` themselves, accents that stand alone, and signs
    whose compatible form begins with a space (¨, ‗): here these have one `▁` less.
    """
    cut = tokenizer.get("pre_tokenizer") or {}
    steps = (tokenizer.get("normalizer") or {"normalizers": []}).get("normalizers", [{}])
    if not all(step.get("type") in _OF_A_CHARACTER for step in steps):
        return False
    if cut.get("type") == "Metaspace":
        return cut.get("prepend_scheme") == "always" and cut.get("split") is True
    return cut.get("type") == "WhitespaceSplit"
