"""Measurements of a vocabulary and of its use in texts, for the tokenizer's report.

All are pure functions of a tokenizer and texts. A *word* is text between white space. In languages
that are written without white space, such as Chinese or Thai, tokens per word mean little, and
tokens per character are shown too.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.fast_engine import build_probe_texts

EXAMPLES = 40  # entries shown of each kind
POINTS = 200  # points of the rank-frequency curve
BATCH_TEXTS = 256  # texts encoded at a time
# The report shows the beginning of one text with its tokens marked.
CUT_TOKENS = 200  # number of tokens shown
CUT_CHARACTERS = 1_000  # minimum length of the text, if any text is as long

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class MeasuredText:
    """A text on which a vocabulary is measured; `language` is "" if it is unknown."""

    id: str
    source: str
    language: str
    text: str


@dataclass(frozen=True)
class Amount:
    """An amount of text, and the number of tokens that a vocabulary needs for it."""

    documents: int = 0
    bytes: int = 0  # bytes of UTF-8
    characters: int = 0
    words: int = 0
    tokens: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            self.documents + other.documents,
            self.bytes + other.bytes,
            self.characters + other.characters,
            self.words + other.words,
            self.tokens + other.tokens,
        )

    @property
    def bytes_per_token(self) -> float:
        """Mean bytes in a token; 0 without text."""
        return self.bytes / self.tokens if self.tokens else 0.0

    @property
    def tokens_per_word(self) -> float:
        """Mean tokens in a word (fertility); 0 without words."""
        return self.tokens / self.words if self.words else 0.0

    @property
    def tokens_per_character(self) -> float:
        """Mean tokens in a character, for languages without spaces; 0 without text."""
        return self.tokens / self.characters if self.characters else 0.0


@dataclass(frozen=True)
class EntryGroup:
    """Number of entries of one kind, and how many of them the measured text uses."""

    name: str
    entries: int
    used: int


@dataclass(frozen=True)
class Rival:
    """A vocabulary measured on the same text, with the number of its embedding parameters."""

    name: str
    entries: int
    amount: Amount
    embedding_parameters: int


@dataclass(frozen=True)
class MeasuredVocabulary:
    """The measurements of one vocabulary; entries are written as by `format_entry`."""

    entries: int
    fingerprint: str  # fingerprint of tokenizer.json
    engine: str  # library that encodes: "tiktoken", which is fast, or "tokenizers"
    why_not_fast: str  # why the engine is "tokenizers"; "" with "tiktoken"
    special: Mapping[str, int]
    total: Amount
    sources: Mapping[str, Amount]
    languages: Mapping[str, Amount]
    lengths: Sequence[EntryGroup]  # entries by length in bytes
    scripts: Sequence[EntryGroup]
    unused: int  # entries not in the measured text; here and below without special tokens
    unused_examples: Sequence[str]
    never_seen: int  # entries in no token of the training text: parts of longer entries only
    never_seen_examples: Sequence[str]
    frequencies: Sequence[tuple[int, int]]  # (rank from 1, occurrences in the measured text)
    commonest: Sequence[tuple[str, int]]
    longest: Sequence[str]
    not_given_back: Sequence[str]  # ids of texts that differ after encoding and decoding
    cut: Sequence[str]  # first tokens of the text that the report shows
    cut_id: str  # id of that text


@dataclass(frozen=True)
class TokenizerReport:
    """The content of a tokenizer's report."""

    kind: str
    held_out: bool  # True if the measured text was held out of training
    sampled_documents: int
    sampled_bytes_of: Mapping[str, int]  # source → bytes of its training text
    channels: int  # width of the model whose embedding is counted
    tied: bool  # True if that model's head shares the parameters of its embedding
    vocabulary: MeasuredVocabulary
    rivals: tuple[Rival, ...]  # this vocabulary, then those that it is compared with


def measure(encoder: Encoder, texts: Sequence[MeasuredText], seen: Counts) -> MeasuredVocabulary:
    """Measure `encoder` on `texts`, at least one.

    `seen` [entries] are the numbers of occurrences of each entry in the training text.
    """
    ids = _encode_texts(encoder, [text.text for text in texts])
    amounts = [
        _measure_text(text.text, len(text_ids)) for text, text_ids in zip(texts, ids, strict=True)
    ]
    used = _count(ids, encoder.vocabulary_size)
    special = set(encoder.special_ids.values())
    entries = [number for number in range(encoder.vocabulary_size) if number not in special]
    content = {number: encoder.decode_bytes([number]) for number in entries}
    unused = [number for number in entries if not used[number]]
    never_seen = [number for number in entries if not seen[number]]
    by_use = sorted((number for number in entries if used[number]), key=lambda n: (-used[n], n))
    by_length = sorted(entries, key=lambda n: (-len(content[n]), n))
    cut_text, cut_ids = _choose_shown_text(texts, ids)
    return MeasuredVocabulary(
        entries=encoder.vocabulary_size,
        fingerprint=encoder.fingerprint,
        engine=encoder.engine,
        why_not_fast=encoder.why_not_fast,
        special=dict(sorted(encoder.special_ids.items(), key=lambda item: item[1])),
        total=sum(amounts, Amount()),
        sources=_sum_by_name([text.source for text in texts], amounts),
        languages=_sum_by_name([text.language for text in texts], amounts),
        lengths=_group_entries({n: f"{len(content[n])}" for n in entries}, used, key=int),
        scripts=_group_entries({n: detect_script(content[n]) for n in entries}, used),
        unused=len(unused),
        unused_examples=[format_entry(content[n]) for n in unused[:EXAMPLES]],
        never_seen=len(never_seen),
        never_seen_examples=[format_entry(content[n]) for n in never_seen[:EXAMPLES]],
        frequencies=_thin_ranks([int(used[n]) for n in by_use]),
        commonest=[(format_entry(content[n]), int(used[n])) for n in by_use[:EXAMPLES]],
        longest=[format_entry(content[n]) for n in by_length[:EXAMPLES]],
        not_given_back=_find_changed_texts(encoder, texts, ids),
        cut=[encoder.decode_bytes([n]).decode(errors="backslashreplace") for n in cut_ids],
        cut_id=cut_text.id,
    )


def measure_rival(
    name: str, encoder: Encoder, texts: Sequence[MeasuredText], parameters: int
) -> Rival:
    """Measure `encoder` on `texts`, with `parameters` of embedding and head for each entry."""
    ids = _encode_texts(encoder, [text.text for text in texts])
    amounts = (
        _measure_text(text.text, len(text_ids)) for text, text_ids in zip(texts, ids, strict=True)
    )
    cost = encoder.vocabulary_size * parameters
    return Rival(name, encoder.vocabulary_size, sum(amounts, Amount()), cost)


def count_occurrences(encoder: Encoder, texts: Iterable[str]) -> Counts:
    """Return [entries] the number of occurrences of each entry in `texts`."""
    counts = np.zeros(encoder.vocabulary_size, dtype=np.int64)
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH_TEXTS:
            counts += _count(encoder.encode_batch(batch), encoder.vocabulary_size)
            batch = []
    return counts + _count(encoder.encode_batch(batch), encoder.vocabulary_size)


def keep_first_entries(tokenizer_json: str, entries: int) -> str:
    """Return the `tokenizer.json` of a byte-pair tokenizer, reduced to its first `entries` entries.

    trainrig must have trained the tokenizer. The result equals a tokenizer trained with that
    vocabulary size: each merge depends on the counts of pairs after the merges before it, and the
    size only decides when training stops.
    """
    tokenizer = json.loads(tokenizer_json)
    vocabulary = tokenizer["model"]["vocab"]
    kept = {name: number for name, number in vocabulary.items() if number < entries}
    merges = [pair for pair in tokenizer["model"]["merges"] if "".join(pair) in kept]
    tokenizer["model"] |= {"vocab": kept, "merges": merges}
    return json.dumps(tokenizer, ensure_ascii=False)


def detect_script(entry: bytes) -> str:
    """Return the script of an entry's letters, or a description of an entry without letters.

    A letter's script is the first word of its Unicode name: LATIN, CJK, HANGUL.
    """
    try:
        text = entry.decode()
    except UnicodeDecodeError:
        return "part of a character"
    names = {
        unicodedata.name(character, "unnamed").split()[0].capitalize()
        for character in text
        if character.isalpha()
    }
    if names:
        return names.pop().replace("Cjk", "Han") if len(names) == 1 else "several scripts"
    if any(character.isnumeric() for character in text):
        return "digits"
    return "white space" if text.isspace() else "punctuation and symbols"


def format_entry(entry: bytes) -> str:
    r"""Return an entry in visible characters: invalid UTF-8 as \xNN, spaces as ␣."""
    text = entry.decode(errors="backslashreplace")
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def _encode_texts(encoder: Encoder, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
    return [
        ids
        for start in range(0, len(texts), BATCH_TEXTS)
        for ids in encoder.encode_batch(texts[start : start + BATCH_TEXTS])
    ]


def _count(ids: Sequence[NDArray[np.uint32]], entries: int) -> Counts:
    every = np.concatenate(ids) if ids else np.empty(0, dtype=np.uint32)
    return np.bincount(every, minlength=entries).astype(np.int64)


def _measure_text(text: str, tokens: int) -> Amount:
    return Amount(1, len(text.encode()), len(text), len(text.split()), tokens)


def _sum_by_name(names: Sequence[str], amounts: Sequence[Amount]) -> dict[str, Amount]:
    """Return the sums of `amounts` by name, most bytes first."""
    sums: dict[str, Amount] = {}
    for name, amount in zip(names, amounts, strict=True):
        sums[name] = sums.get(name, Amount()) + amount
    return dict(sorted(sums.items(), key=lambda item: (-item[1].bytes, item[0])))


def _group_entries(kinds: Mapping[int, str], used: Counts, key: Any = None) -> list[EntryGroup]:
    """Return groups of entries by kind, sorted by `key` or with the largest group first."""
    entries = Counter(kinds.values())
    in_use = Counter(kind for number, kind in kinds.items() if used[number])
    order = sorted(entries, key=key or (lambda kind: (-entries[kind], kind)))
    return [EntryGroup(kind, entries[kind], in_use[kind]) for kind in order]


def _thin_ranks(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return (rank, occurrences) at ranks evenly spaced on a logarithmic axis, with both ends."""
    if not counts:
        return []
    ranks = np.unique(np.geomspace(1, len(counts), POINTS).round().astype(int))
    return [(int(rank), counts[rank - 1]) for rank in ranks]


def _choose_shown_text(
    texts: Sequence[MeasuredText], ids: Sequence[NDArray[np.uint32]]
) -> tuple[MeasuredText, list[int]]:
    """Return the first text that is long enough, or the longest, and the ids of its beginning."""
    enough = (number for number, text in enumerate(texts) if len(text.text) >= CUT_CHARACTERS)
    longest = max(range(len(texts)), key=lambda number: len(texts[number].text))
    number = next(enough, longest)
    return texts[number], ids[number][:CUT_TOKENS].tolist()


def _find_changed_texts(
    encoder: Encoder, texts: Sequence[MeasuredText], ids: Sequence[NDArray[np.uint32]]
) -> list[str]:
    wrong = [
        text.id
        for text, text_ids in zip(texts, ids, strict=True)
        if encoder.decode_bytes(text_ids.tolist()) != text.text.encode()
    ]
    probe = build_probe_texts()
    for number, text_ids in enumerate(_encode_texts(encoder, probe)):
        if encoder.decode_bytes(text_ids.tolist()) != probe[number].encode():
            wrong.append(f"probe {number}")
    return wrong
