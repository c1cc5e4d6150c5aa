"""An n-gram language model with its tokenizer: training, storage, and the perplexity of texts.

`Perplexity` is the scorer of a run file; `find_cutoffs` and `assign_buckets` divide texts by
perplexity as CCNet does.
"""

import functools
import itertools
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.array_files import open_arrays, write_arrays
from trainrig.corpus.array_types import Float64s
from trainrig.corpus.limits import quantise_scores
from trainrig.corpus.models.arpa import ENDINGS, read_arpa, write_arpa
from trainrig.corpus.models.kneser_ney import Trie, estimate
from trainrig.corpus.models.ngram_counts import CHUNK, SPECIAL, UNKNOWN, Counter, Ids, build_levels
from trainrig.corpus.models.subwords import (
    TextEncoder,
    build_word_tokenizer,
    read_tokenizer_file,
)
from trainrig.errors import DataError

KIND = "n-gram model"
BATCH = 256  # texts tokenized at a time


@dataclass(frozen=True)
class LanguageModel:
    """Language model that scores texts, with each line as a sentence between `<s>` and `</s>`."""

    trie: Trie
    vocabulary: Sequence[str]
    tokenizer: str  # JSON
    cutter: TextEncoder
    word_of: Ids  # word id of the model for each tokenizer piece
    facts: dict[str, Any]  # training data and settings

    @classmethod
    def of(
        cls,
        trie: Trie,
        vocabulary: Sequence[str],
        tokenizer: str,
        where: str,
        facts: dict[str, Any],
    ) -> Self:
        """Build a model whose words are pieces of `tokenizer`, matched by name.

        Raises DataError if the model knows none of the pieces.
        """
        cutter = TextEncoder(tokenizer, where)
        ids = {word: number for number, word in enumerate(vocabulary)}
        # A text that spells out a special word such as "<s>" does not get its id.
        names = [name if name not in SPECIAL else SPECIAL[UNKNOWN] for name in cutter.list_pieces()]
        word_of = np.array([ids.get(name, UNKNOWN) for name in names], np.uint32)
        if not word_of.any():
            raise DataError(
                f"{where}: the model knows none of the tokenizer's pieces; use its own tokenizer"
            )
        return cls(trie, vocabulary, tokenizer, cutter, word_of, facts)

    def compute_perplexity(self, texts: Sequence[str]) -> Float64s:
        """Compute 10^(-log10 p / length) of each text; NaN for a text without lines.

        p is the probability of all its sentences, and length the number of their pieces plus one
        `</s>` each, as in CCNet.
        """
        found = np.full(len(texts), np.nan)
        for begin in range(0, len(texts), BATCH):
            batch = texts[begin : begin + BATCH]
            stream, begins = self.cutter.encode_sentences(batch, self.word_of)
            logs = self.trie.score(stream).astype(np.float64)
            for number in np.flatnonzero(np.diff(begins)):
                text = slice(begins[number], begins[number + 1])
                length = np.count_nonzero(stream[text] != 1)
                found[begin + number] = 10.0 ** (-logs[text].sum() / length)
        return found

    def save(self, path: str) -> None:
        """Write the model; in the ARPA format, which has no tokenizer, if `path` ends like one."""
        if path.endswith(ENDINGS):
            write_arpa(path, self.trie, self.vocabulary)
            return
        words = json.dumps(list(self.vocabulary), ensure_ascii=False).encode()
        arrays = self.trie._asdict() | {
            "vocabulary": np.frombuffer(words, np.uint8),
            "tokenizer": np.frombuffer(self.tokenizer.encode(), np.uint8),
        }
        write_arrays(path, KIND, arrays, self.facts)

    @classmethod
    def open(cls, path: str, tokenizer: str | None = None) -> Self:
        """Open the model at `path`, mapped into memory, or read it as ARPA if it is named so.

        `tokenizer` is the path of the tokenizer.json of an ARPA model; None splits at white space.
        Raises DataError for an invalid model or tokenizer.
        """
        if path.endswith(ENDINGS):
            trie, vocabulary = read_arpa(path)
            text = (
                build_word_tokenizer(vocabulary)
                if tokenizer is None
                else read_tokenizer_file(tokenizer)
            )
            return cls.of(trie, vocabulary, text, tokenizer or path, {})
        arrays, facts = open_arrays(path, KIND)
        words = json.loads(arrays.pop("vocabulary").tobytes())
        text = arrays.pop("tokenizer").tobytes().decode()
        return cls.of(Trie(**arrays), words, text, path, facts)


def train(
    texts: Iterable[str], tokenizer: str, order: int, least: Sequence[int], chunk: int = CHUNK
) -> LanguageModel:
    """Train a model on the n-grams of `texts`, up to `order` pieces of `tokenizer` (JSON).

    An n-gram of order n is kept if it occurs at least `least[n - 1]` times. Raises DataError if the
    texts have no words.
    """
    cutter = TextEncoder(tokenizer, "tokenizer")
    names = cutter.list_pieces()
    counted = [name not in SPECIAL for name in names]
    # Pieces are numbered by the tokenizer until the pieces that occur are known.
    word_of = np.where(counted, np.arange(len(names)) + len(SPECIAL), UNKNOWN).astype(np.uint32)
    total = {"texts": 0, "bytes": 0, "pieces": 0}
    waiting = iter(texts)
    with tempfile.TemporaryDirectory(prefix="trainrig-") as folder:
        counter = Counter(order, Path(folder), chunk)
        for batch in iter(lambda: list(itertools.islice(waiting, BATCH)), []):
            stream, begins = cutter.encode_sentences(batch, word_of)
            if len(stream):
                counter.add(stream)
            total["texts"] += int(np.count_nonzero(np.diff(begins)))
            total["bytes"] += sum(len(text.encode("utf-8", "ignore")) for text in batch)
            total["pieces"] += int(np.count_nonzero(stream != 1))
        backward_nM, seen_M = counter.sum_counts()
    if not len(seen_M):
        raise DataError("the texts have no words to count; name other texts")
    came = np.unique(backward_nM[0])
    came = came[came >= len(SPECIAL)]
    compact = np.zeros(len(names) + len(SPECIAL), np.uint32)
    compact[: len(SPECIAL)] = range(len(SPECIAL))
    compact[came] = np.arange(len(came)) + len(SPECIAL)
    vocabulary = [*SPECIAL, *(names[number - len(SPECIAL)] for number in came)]
    made = estimate(build_levels(compact[backward_nM], seen_M, len(vocabulary)), least)
    sizes = np.diff(made.trie.levels).tolist()
    facts = {
        "discounts": [list(discount) for discount in made.discounts],
        "orders_with_fallback_discounts": made.fallback,
        "n_grams": sizes,
        **total,
    }
    return LanguageModel.of(made.trie, vocabulary, tokenizer, "tokenizer", facts)


BUCKETS = ("head", "middle", "tail")


class Perplexity(Settings):
    """The perplexity 10^(-log10 p / length) of a text, by a model of trainrig's or an ARPA file.

    A low value means that the text resembles the model's training data. A text without lines, or in
    a language without a model, has no perplexity (NaN), which breaks no rule.
    """

    kind: Literal["Perplexity"] = "Perplexity"
    # Model for all texts, or one for each language: {en = "en.lm", de = "de.arpa.gz"}.
    path: Annotated[str | dict[str, str], NOT_IDENTITY]
    # Tokenizer.json for an ARPA model, which contains none; None: text is split at white space.
    tokenizer: Annotated[str | None, NOT_IDENTITY] = None
    # Column for the perplexity.
    column: str = Field(default="perplexity", pattern=r"^[a-z][a-z0-9_]*$")

    def read_content_keys(self) -> dict[str, str]:
        """Return content hashes of the files. Raises FileNotFoundError if one is missing."""
        paths = self.path if isinstance(self.path, dict) else {"": self.path}
        named = {language: paths[language] for language in sorted(paths)}
        named |= {"tokenizer": self.tokenizer} if self.tokenizer else {}
        return dict(zip(named, storage.compute_content_keys(list(named.values())), strict=True))

    def score(self, texts: Sequence[str], languages: Sequence[str]) -> Float64s:
        """Return the perplexity of each text, in steps of 1/10000.

        Raises DataError for an invalid model.
        """
        if isinstance(self.path, str):
            return quantise_scores(
                _load_language_model(self.path, self.tokenizer).compute_perplexity(texts)
            )
        found = np.full(len(texts), np.nan)
        for language, path in sorted(self.path.items()):
            of = [
                number
                for number, text_language in enumerate(languages)
                if text_language == language
            ]
            if of:
                model = _load_language_model(path, self.tokenizer)
                found[of] = model.compute_perplexity([texts[number] for number in of])
        return quantise_scores(found)


@functools.cache
def _load_language_model(path: str, tokenizer: str | None) -> LanguageModel:
    return LanguageModel.open(path, tokenizer if path.endswith(ENDINGS) else None)


def find_cutoffs(
    perplexities: Float64s, languages: Sequence[str], shares: tuple[float, float] = (0.3, 0.6)
) -> dict[str, tuple[float, float]]:
    """Find for each language the perplexities below which the given shares of its texts lie.

    A cut-off is always one of the given perplexities, so it does not depend on interpolation.
    CCNet's head is the lowest 30%, its middle the next 30%.
    """
    found = {}
    of = np.asarray(languages)
    for language in sorted(set(languages)):
        values = np.sort(perplexities[(of == language) & ~np.isnan(perplexities)])
        if len(values):
            low, high = (values[min(int(len(values) * share), len(values) - 1)] for share in shares)
            found[language] = (float(low), float(high))
    return found


def assign_buckets(
    perplexities: Float64s, languages: Sequence[str], cuts: Mapping[str, tuple[float, float]]
) -> list[str]:
    """Assign each text to "head", "middle" or "tail" by the cut-offs of its language.

    A text at a cut-off is above it. The bucket is "" for a text without a perplexity, or in a
    language without cut-offs.
    """
    found = []
    for value, language in zip(perplexities.tolist(), languages, strict=True):
        if language not in cuts or value != value:
            found.append("")
        else:
            found.append(BUCKETS[sum(value >= cut for cut in cuts[language])])
    return found
