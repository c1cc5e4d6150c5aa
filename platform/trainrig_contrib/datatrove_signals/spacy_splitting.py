"""Splitting of chunks into English tokens: by spaCy itself, and by its rules in tables.

datatrove 0.10 takes the words of `spacy.blank("en")` for every filter, and the sentences of the
default `sentencizer`. The rules are read from the installed spaCy; no copy of them is kept here.

Prefixes and suffixes are removed, one at either side at a time, until none is left or the rest is a
special case with fixed tokens ("can't"). The rest is one token if it is a URL; otherwise it is
split at infixes. `split_chunk` leaves two decisions to its caller: whether a rest is a URL, and how
to split chunks whose tokens together make a special case again (":" and ")") or that contain a
character beyond the tables.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays import (
    PRIME,
    SEED,
    build_batch,
    compute_table_size,
    hash_characters,
    mix_bits,
)
from trainrig_contrib.datatrove_signals.spacy_tables import (
    AHEAD,
    BEHIND,
    BEHIND_END,
    BODY,
    BODY_END,
    CODES,
    FORBIDS,
    INFIXES,
    NOTHING,
    PREFIXES,
    REPEATS,
    SUFFIXES,
    Kinds,
    Rules,
    TokenFlags,
    build_rules,
)

# Returned in place of a number of tokens. For UNKNOWN, the caller must split the chunk; for
# MAYBE_URL, the caller must decide whether a rest of the chunk is a URL.
UNKNOWN = 0
MAYBE_URL = -1
# The caller's answer; NOT_ASKED before there is one.
NOT_ASKED = -1
NO_URL = 0
URL = 1
_SURROGATES = (0xD800, 0xDFFF)
_FULL_STOP = 0x2E


class Specials(NamedTuple):
    """Hash table (open addressing, keyed by hash of characters) of chunks with fixed tokens."""

    keys: NDArray[np.uint64]
    firsts: NDArray[np.int32]  # offset in `ends`; NOTHING marks a free slot
    counts: NDArray[np.int32]  # number of tokens
    ends: NDArray[np.int32]  # end of each token, in characters from the start of the chunk
    longest: int  # characters of the longest chunk


def build_specials(tokens: Mapping[str, Sequence[str]]) -> Specials:
    """Build the table from the tokens of each chunk."""
    size = int(compute_table_size(2 * len(tokens)))
    keys = np.zeros(size, np.uint64)
    firsts = np.full(size, NOTHING, np.int32)
    counts = np.zeros(size, np.int32)
    ends = list[int]()
    batch = build_batch(list(tokens))
    for number, parts in enumerate(tokens.values()):
        key = hash_characters(batch.codes_C, batch.starts_D1[number], batch.starts_D1[number + 1])
        place = int(key) & (size - 1)
        while firsts[place] != NOTHING:
            place = (place + 1) & (size - 1)
        keys[place] = key
        firsts[place] = len(ends)
        counts[place] = len(parts)
        ends.extend(accumulate(map(len, parts)))
    longest = max(map(len, tokens), default=0)
    return Specials(keys, firsts, counts, np.array(ends, np.int32), longest)


@compile_nogil
def split_chunk(
    codes: NDArray[np.uint32],
    start: int,
    end: int,
    rules: Rules,
    specials: Specials,
    url: int,
    ends: NDArray[np.int64],
) -> int:
    """Write the end of each token of the chunk; return their number, or UNKNOWN, or MAYBE_URL.

    `ends` must hold two entries a character. After MAYBE_URL its first two entries are the start
    and end of the possible URL; call again with the answer in `url`.
    """
    for place in range(start, end):
        code = codes[place]
        if code >= CODES or _SURROGATES[0] <= code <= _SURROGATES[1]:
            return UNKNOWN
    first = start
    last = end
    count = 0  # tokens from the left
    cuts = len(ends)  # suffix starts from the right
    special = np.int64(NOTHING)
    while first < last:
        special = _find_special(codes, first, last, specials)
        if special != NOTHING:
            break
        prefix = _at(codes, first, first, last, rules, PREFIXES)
        if prefix:
            special = _find_special(codes, first + prefix, last, specials)
            if special != NOTHING:
                first += prefix
                ends[count] = first
                count += 1
                break
        suffix = _measure_suffix(codes, first + prefix, last, rules)
        if suffix:
            special = _find_special(codes, first, last - suffix, specials)
            cuts -= 1
            last -= suffix
            ends[cuts] = last
            if special != NOTHING:
                break
        if prefix:
            first += prefix
            ends[count] = first
            count += 1
        if prefix + suffix == 0:
            break
    if special != NOTHING:
        for token in range(specials.counts[special]):
            ends[count] = first + specials.ends[specials.firsts[special] + token]
            count += 1
    elif first < last:
        if url == NOT_ASKED and _may_be_url(codes, first, last):
            ends[0] = first
            ends[1] = last
            return MAYBE_URL
        if url == URL:
            ends[count] = last
            count += 1
        else:
            count = _cut_at_infixes(codes, first, last, rules, ends, count)
    for cut in range(cuts + 1, len(ends) + 1):
        ends[count] = ends[cut] if cut < len(ends) else end
        count += 1
    if count > 1 and _makes_special(codes, start, ends, count, specials):
        return UNKNOWN
    return count


@compile_nogil
def _cut_at_infixes(
    codes: NDArray[np.uint32],
    first: int,
    last: int,
    rules: Rules,
    ends: NDArray[np.int64],
    count: int,
) -> int:
    place = first
    token = first
    while place < last:
        infix = _at(codes, place, first, last, rules, INFIXES)
        if infix and place > first:
            if place > token:
                ends[count] = place
                count += 1
            token = place + infix
            ends[count] = token
            count += 1
        place += max(infix, 1)
    if token < last:
        ends[count] = last
        count += 1
    return count


@compile_nogil
def _at(
    codes: NDArray[np.uint32], place: int, start: int, end: int, rules: Rules, kind: int
) -> int:
    """Return the length of the first rule's match at `place`, or 0 if no rule matches."""
    at = rules.classes[codes[place]]
    for number in range(rules.firsts_3K1[kind, at], rules.firsts_3K1[kind, at + 1]):
        length = _match_rule(
            codes, place, start, end, rules.rules_R7[rules.by_class[number]], rules
        )
        if length:
            return length
    return 0


@compile_nogil
def _measure_suffix(codes: NDArray[np.uint32], start: int, end: int, rules: Rules) -> int:
    """Return the length of the longest suffix of `start` to `end`, or 0 if there is none."""
    if start == end:
        return 0
    longest = 0
    at = rules.classes[codes[end - 1]]
    for number in range(rules.firsts_3K1[SUFFIXES, at], rules.firsts_3K1[SUFFIXES, at + 1]):
        rule = rules.rules_R7[rules.by_class[number]]
        length = rule[BODY_END] - rule[BODY]
        if rule[REPEATS]:
            ones = rules.holds[rules.sets_S[rule[BODY_END] - 1]]
            place = end - 2
            while place >= start and ones[rules.classes[codes[place]]]:
                place -= 1
                length += 1
        while longest < length:
            begin = end - length
            if begin >= start and _match_rule(codes, begin, start, end, rule, rules) == length:
                longest = length
            length -= 1
    return longest


@compile_nogil
def _match_rule(
    codes: NDArray[np.uint32],
    place: int,
    start: int,
    end: int,
    rule: NDArray[np.int32],
    rules: Rules,
) -> int:
    """Return the length of `rule`'s match at `place` within `start` to `end`, or 0 without one."""
    classes = rules.classes
    holds = rules.holds
    sets = rules.sets_S
    least = rule[BODY_END] - rule[BODY]
    before = place - (rule[BEHIND_END] - rule[BEHIND])
    if before < start or place + least > end:
        return 0
    for n in range(least):
        if not holds[sets[rule[BODY] + n], classes[codes[place + n]]]:
            return 0
    for n in range(place - before):
        if not holds[sets[rule[BEHIND] + n], classes[codes[before + n]]]:
            return 0
    length = least
    if rule[REPEATS]:
        ones = sets[rule[BODY_END] - 1]
        while place + length < end and holds[ones, classes[codes[place + length]]]:
            length += 1
    ahead = rule[AHEAD]
    while ahead != NOTHING and length >= least:
        follows = place + length < end and holds[ahead, classes[codes[place + length]]]
        if follows != (rule[FORBIDS] == 1):
            break
        length -= 1
    return length if length >= least else 0


@compile_nogil
def _find_special(codes: NDArray[np.uint32], start: int, end: int, specials: Specials) -> np.int64:
    """Return the table slot of the special case from `start` to `end`, or NOTHING."""
    if start >= end or end - start > specials.longest:
        return np.int64(NOTHING)
    return _find(hash_characters(codes, start, end), specials)


@compile_nogil
def _find(key: np.uint64, specials: Specials) -> np.int64:
    mask = len(specials.keys) - 1
    place = np.int64(key & np.uint64(mask))
    while specials.firsts[place] != NOTHING:
        if specials.keys[place] == key:
            return place
        place = (place + 1) & mask
    return np.int64(NOTHING)


@compile_nogil
def _may_be_url(codes: NDArray[np.uint32], start: int, end: int) -> bool:
    """Return whether the text can be a URL: two letters after a full stop, or three full stops."""
    stops = 0
    for place in range(start, end):
        if codes[place] == _FULL_STOP:
            stops += 1
            if stops == 3 or (
                place + 2 < end
                and _may_be_letter(codes[place + 1])
                and _may_be_letter(codes[place + 2])
            ):
                return True
    return False


@compile_nogil
def _may_be_letter(code: np.uint32) -> bool:
    return bool(code >= 0x80 or 0x61 <= code | 0x20 <= 0x7A)


@compile_nogil
def _makes_special(
    codes: NDArray[np.uint32],
    start: int,
    ends: NDArray[np.int64],
    count: int,
    specials: Specials,
) -> bool:
    """Return whether adjacent tokens make a special case that has other tokens than these."""
    begin = start
    for token in range(count):
        found = SEED
        place = begin
        for last in range(token, count):
            if ends[last] - begin > specials.longest:
                break
            while place < ends[last]:
                found = (found ^ np.uint64(codes[place])) * PRIME
                place += 1
            special = _find(mix_bits(found), specials)
            if special == NOTHING:
                continue
            if specials.counts[special] != last + 1 - token:
                return True
            for n in range(last + 1 - token):
                if begin + specials.ends[specials.firsts[special] + n] != ends[token + n]:
                    return True
        begin = ends[token]
    return False


_AT_ONCE = 4_000  # chunks that spaCy tokenizes in one text


class Token(NamedTuple):
    """One token of spaCy's."""

    text: str
    flags: int


class SplittingRules(NamedTuple):
    """Tables that split chunks without spaCy."""

    rules: Rules
    specials: Specials
    kinds: Kinds
    is_url: Callable[[str], object]


class SpacyWords:
    """spaCy's tokenizer, applied to chunks: runs of characters without white space."""

    def __init__(self) -> None:
        import spacy
        from spacy.tokenizer import Tokenizer
        from spacy.vocab import Vocab

        self._english: Any = spacy.blank("en")
        rules: Any = self._english.tokenizer
        # A tokenizer with an empty vocabulary: spaCy's own computes twenty attributes of each new
        # word.
        self._vocabulary = Vocab()
        self._tokenizer: Any = Tokenizer(
            self._vocabulary,
            rules=rules.rules,
            prefix_search=rules.prefix_search,
            suffix_search=rules.suffix_search,
            infix_finditer=rules.infix_finditer,
            token_match=rules.token_match,
            url_match=rules.url_match,
        )
        sentencizer: Any = self._english.add_pipe("sentencizer")
        flags = TokenFlags(sentencizer.punct_chars)
        self.terminals = flags.terminals
        self._flags = functools.lru_cache(2**16)(flags.of)
        self._kinds = flags.build_kinds

    @functools.cached_property
    def grammar(self) -> SplittingRules | None:
        """The tokenizer's rules as tables; None if a rule cannot be converted."""
        defaults = self._english.Defaults
        rules = build_rules(defaults.prefixes, defaults.suffixes, defaults.infixes)
        if rules is None or self._tokenizer.token_match is not None:
            return None
        cases: Iterable[str] = self._tokenizer.rules
        # Special cases that contain white space cannot occur in a chunk.
        chunks = sorted(case for case in cases if case.split() == [case])
        texts = [[token.text for token in tokens] for tokens in self.tokenize(chunks)]
        specials = build_specials(dict(zip(chunks, texts, strict=True)))
        return SplittingRules(rules, specials, self._kinds(), self._tokenizer.url_match)

    def tokenize(self, chunks: Sequence[str]) -> list[list[Token]]:
        """Return the tokens of each chunk."""
        pieces = (chunks[n : n + _AT_ONCE] for n in range(0, len(chunks), _AT_ONCE))
        return list(chain.from_iterable(map(self._tokenize, pieces)))

    def _tokenize(self, chunks: Sequence[str]) -> Iterator[list[Token]]:
        # A new line is always a token, and no special case extends over it.
        with self._vocabulary.memory_zone():
            found: list[list[Token]] = [[]]
            for token in self._tokenizer("\n".join(chunks)):
                text: str = token.text
                if text == "\n":
                    found.append([])
                else:
                    found[-1].append(Token(text, self._flags(text)))
        assert len(found) == len(chunks)
        yield from found


@functools.cache
def load_spacy_words() -> SpacyWords:
    """Return this process's tokenizer, which takes a second to build."""
    return SpacyWords()
