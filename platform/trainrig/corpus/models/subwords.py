"""The units of text that an n-gram model counts: subwords of a tokenizer, or words.

Each line of a text is a sentence, its white space collapsed; blank lines are ignored. Every kind
below becomes a `tokenizers.Tokenizer`, whose JSON is stored in the model's file.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import tokenizers
from pydantic import Field
from tokenizers import models, normalizers, pre_tokenizers, trainers

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.array_types import Int64s
from trainrig.corpus.models.ngram_counts import BEGIN, END, MOST_WORDS, SPECIAL, UNKNOWN, Ids
from trainrig.errors import DataError

MOST_KNOWN = 1_000_000  # words whose pieces are cached: some 300 MB
# Normalizers that treat each character independently of its neighbours.
_OF_A_CHARACTER = ("NFKD", "StripAccents", "Lowercase", "Replace")
# negative indices, for two ids appended after all pieces
_BEGIN_PIECE = -1
_END_PIECE = -2


class Subwords(Settings):
    """Byte-pair encoding (Sennrich et al. 2016) trained on a sample; `▁` marks word starts.

    `normalise` is CCNet's (Wenzek et al. 2020): lower case, no accents, each digit a 0. The default
    of 65,536 pieces is CCNet's as well. A sample with fewer megabytes than thousands of pieces
    gives fewer pieces.
    """

    kind: Literal["Subwords"] = "Subwords"
    # Largest number of pieces in the vocabulary.
    vocabulary: int = Field(default=65_536, ge=256, le=MOST_WORDS - 8)
    # Whether to convert to lower case, drop accents and replace each digit by 0, as CCNet does.
    normalise: bool = True


class Words(Settings):
    """The most frequent words between white space; other words become `<unk>`."""

    kind: Literal["Words"] = "Words"
    # Largest number of words in the vocabulary.
    vocabulary: int = Field(default=500_000, ge=1, le=MOST_WORDS - 8)
    # Whether to convert to lower case, drop accents and replace each digit by 0, as CCNet does.
    normalise: bool = True


class TokenizerFile(Settings):
    """An existing tokenizer."""

    kind: Literal["TokenizerFile"] = "TokenizerFile"
    path: Annotated[str, NOT_IDENTITY]  # path of a tokenizer.json


Pieces = Annotated[Subwords | Words | TokenizerFile, Field(discriminator="kind")]


def make_tokenizer(pieces: Subwords | Words | TokenizerFile, sample: Iterator[str]) -> str:
    """Return the JSON of the tokenizer, which is trained on `sample` unless it is a file."""
    if isinstance(pieces, TokenizerFile):
        text = read_tokenizer_file(pieces.path)
        read_tokenizer(text, pieces.path)
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
    """Return the JSON of a tokenizer that splits at white space, for a model without its own."""
    ids = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=SPECIAL[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return str(tokenizer.to_str())


def read_tokenizer_file(path: str) -> str:
    """Return the text of a tokenizer.json. Raises DataError if it is missing or not UTF-8."""
    try:
        return storage.read(path).decode()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; name a tokenizer.json") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8, so it is not a tokenizer.json") from None


def read_tokenizer(text: str, where: str) -> tokenizers.Tokenizer:
    """Parse the JSON of a tokenizer. Raises DataError, naming `where`, if it is invalid."""
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exceptions
        raise DataError(f"{where} is not a tokenizer.json: {error}") from None


def iterate_lines(text: str) -> Iterator[str]:
    """Yield the non-blank lines of a text with collapsed white space and no lone surrogates."""
    for line in text.encode("utf-8", "ignore").decode().split("\n"):
        if folded := " ".join(line.split()):
            yield folded


class TextEncoder:
    """Encodes texts as ids of a model's words.

    If the tokenizer treats each word independently, each word is tokenized once and cached, which
    is ten times as fast as tokenizing the texts. A line with an added token, such as `<s>`, is
    tokenized whole, as the token is cut out before words are found.
    """

    def __init__(self, tokenizer: str, where: str) -> None:
        self._tokenizer = read_tokenizer(tokenizer, where)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        settings = json.loads(tokenizer)
        self._by_word = _encodes_words_independently(settings)
        self._added = [str(added["content"]) for added in settings.get("added_tokens") or ()]
        self._known: dict[str, list[int]] = {}  # pieces of words that were encoded before
        self.pieces = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def list_pieces(self) -> list[str]:
        """Return the pieces in the order of their ids."""
        return [self._tokenizer.id_to_token(number) or "" for number in range(self.pieces)]

    def encode_sentences(self, texts: Sequence[str], word_of: Ids) -> tuple[Ids, Int64s]:
        """Encode sentences as `<s> word … </s> …`; also return where each text begins, [texts + 1].

        `word_of` is the model's word id for each piece.
        """
        sentences = [[self._split(line) for line in iterate_lines(text)] for text in texts]
        known = self._encode_units(set().union(*itertools.chain.from_iterable(sentences)))
        ids: list[int] = []
        begins = np.zeros(len(texts) + 1, np.int64)
        for number, text_sentences in enumerate(sentences):
            for units in text_sentences:
                ids.append(_BEGIN_PIECE)
                ids.extend(itertools.chain.from_iterable(map(known.__getitem__, units)))
                ids.append(_END_PIECE)
            begins[number + 1] = len(ids)
        pieces = np.array(ids, np.int64)
        return np.concatenate([word_of, [END, BEGIN]]).astype(np.uint32)[pieces], begins

    def _split(self, line: str) -> list[str]:
        """Return the parts of a line that are tokenized apart from each other."""
        if not self._by_word or any(added in line for added in self._added):
            return [line]
        return line.split(" ")

    def _encode_units(self, units: set[str]) -> Mapping[str, list[int]]:
        """Return the piece ids of each of `units`."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        new = sorted(units - self._known.keys())
        encoded = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
        found = {unit: encoding.ids for unit, encoding in zip(new, encoded, strict=True)}
        if not self._by_word:
            return found
        self._known.update(found)
        return self._known


def _encodes_words_independently(tokenizer: dict[str, Any]) -> bool:
    """Return whether tokenizing a line equals tokenizing its words one by one.

    Exceptions are accepted: words that begin with `▁` themselves, accents that stand alone, and
    signs whose compatible form begins with a space (¨, ‗) get one `▁` less here.
    """
    cut = tokenizer.get("pre_tokenizer") or {}
    steps = (tokenizer.get("normalizer") or {"normalizers": []}).get("normalizers", [{}])
    if not all(step.get("type") in _OF_A_CHARACTER for step in steps):
        return False
    if cut.get("type") == "Metaspace":
        return cut.get("prepend_scheme") == "always" and cut.get("split") is True
    return cut.get("type") == "WhitespaceSplit"
