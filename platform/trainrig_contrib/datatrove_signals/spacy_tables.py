"""Lookup tables of spaCy's prefix, suffix and infix rules, and flags of its tokens.

spaCy has a list of regular expressions for each of the three. They are of a few kinds: characters,
the last one possibly repeated, with lookbehind and lookahead. Rules of other kinds cannot be
converted; the caller then has to use spaCy itself.

The flags of a token, which datatrove's rules read, are computed from its characters.
"""

import functools
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.signals.text_arrays import build_batch, hash_characters

CODES = 0x10000  # code points that the tables cover
NOTHING = -1

# Matches one character of a rule: a class, an escaped sign, or a literal character.
_ONE = r"(?:\[(?:\\.|[^\]\\])+\]|\\\W|[^\\.^$*+?{}\[\]|()])"
_ONE_CHARACTER = re.compile(_ONE)
_RULE = re.compile(
    rf"(?:\(\?<=(?P<behind>{_ONE}+)\))?"
    rf"(?:\(\?:(?P<choices>(?:{_ONE}|\|)+)\)|(?P<body>{_ONE}+)(?P<repeats>\+)?)"
    rf"(?:\(\?(?P<sign>[=!])(?P<ahead>{_ONE})\))?"
)


class Rules(NamedTuple):
    """Lookup tables of all affix rules.

    Shapes: R rules, S references to character sets, K classes of characters that no rule
    distinguishes. Prefixes and infixes are looked up by their first character, suffixes by their
    last.
    """

    classes: NDArray[np.int16]  # [CODES]
    holds: NDArray[np.bool_]  # [sets, K] whether a set contains the characters of a class
    by_class: NDArray[np.int32]  # rule numbers, in order, for each list and class
    firsts_3K1: NDArray[np.int32]  # [lists, K + 1] offsets in by_class
    rules_R7: NDArray[np.int32]  # [R, 7] columns as named below
    sets_S: NDArray[np.int32]  # [S] numbers of sets


PREFIXES = 0
SUFFIXES = 1
INFIXES = 2
# Columns of `rules_R7`: start and end in `sets_S` of the lookbehind and of the body; the set of the
# lookahead (NOTHING: no condition); 1 if the lookahead is negative; 1 if the last character may
# repeat.
BEHIND, BEHIND_END, BODY, BODY_END, AHEAD, FORBIDS, REPEATS = range(7)


class _Rule(NamedTuple):
    """One rule, in which each string is the regular expression of one character."""

    behind: list[str]
    body: list[str]
    repeats: bool
    ahead: str | None
    forbids: bool


def build_rules(
    prefixes: Sequence[str], suffixes: Sequence[str], infixes: Sequence[str]
) -> Rules | None:
    """Convert three lists of regular expressions into tables; None if a rule is not convertible."""
    read = [list(_parse_rules(patterns)) for patterns in (prefixes, suffixes, infixes)]
    if any(rule is None for rules in read for rule in rules):
        return None
    lists = [[rule for rule in rules if rule is not None] for rules in read]
    # A suffix ends where the text ends, so a lookahead there is not convertible.
    if any(rule.ahead for rule in lists[1]):
        return None
    numbers: dict[str, int] = {}
    for rule in (rule for rules in lists for rule in rules):
        for one in (*rule.behind, *rule.body, *([rule.ahead] if rule.ahead else ())):
            numbers.setdefault(one, len(numbers))
    members = np.zeros((CODES, len(numbers)), np.bool_)
    for one, number in numbers.items():
        members[_list_codes(one), number] = True
    kinds: dict[bytes, int] = {}
    packed = np.packbits(members, axis=1)
    classes = [kinds.setdefault(row.tobytes(), len(kinds)) for row in packed]
    different = np.frombuffer(b"".join(kinds), np.uint8).reshape(len(kinds), -1)
    holds = np.unpackbits(different, axis=1, count=len(numbers)).T.astype(np.bool_)
    return Rules(
        np.array(classes, np.int16),
        np.ascontiguousarray(holds),
        *_build_tables(lists, numbers, holds),
    )


def _parse_rules(patterns: Iterable[str]) -> Iterator[_Rule | None]:
    for pattern in filter(str.strip, patterns):
        rule = _RULE.fullmatch(pattern)
        if rule is None:
            yield None
            continue
        choices = rule["choices"].split("|") if rule["choices"] else [rule["body"]]
        for choice in choices:
            yield _Rule(
                _ONE_CHARACTER.findall(rule["behind"] or ""),
                _ONE_CHARACTER.findall(choice),
                rule["repeats"] is not None,
                rule["ahead"],
                rule["sign"] == "!",
            )


def _list_codes(one: str) -> list[int]:
    if len(one) <= 2:  # a literal or escaped character
        return [code for code in [ord(one[-1])] if code < CODES]
    return [ord(character) for character in re.findall(one, _list_characters())]


@functools.cache
def _list_characters() -> str:
    return "".join(map(chr, range(CODES)))


def _build_tables(
    lists: Sequence[Sequence[_Rule]], numbers: dict[str, int], holds: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], ...]:
    """Return the fields of `Rules` after the first two."""
    by_class = list[int]()
    firsts = list[list[int]]()
    rules = list[list[int]]()
    sets = list[int]()
    for kind, kind_rules in enumerate(lists):
        sought = [numbers[rule.body[-1 if kind == SUFFIXES else 0]] for rule in kind_rules]
        firsts.append([])
        for of_class in range(holds.shape[1]):
            firsts[-1].append(len(by_class))
            by_class += [len(rules) + at for at, one in enumerate(sought) if holds[one, of_class]]
        firsts[-1].append(len(by_class))
        for rule in kind_rules:
            behind = len(sets)
            body = behind + len(rule.behind)
            sets += [numbers[one] for one in (*rule.behind, *rule.body)]
            ahead = numbers[rule.ahead] if rule.ahead else NOTHING
            rules.append([behind, body, body, len(sets), ahead, rule.forbids, rule.repeats])
    by, first, table, named = (
        np.array(values, np.int32) for values in (by_class, firsts, rules, sets)
    )
    return by, first, table.reshape(-1, 7), named


SYMBOLS_ONLY = 1  # all characters are punctuation by datatrove's definition
LETTERED = 2  # contains a letter
ENDS_SENTENCE = 4  # ends a sentence for spaCy's sentencizer
PUNCTUATION = 8  # all characters are of Unicode category P
STOP_WORD_SHIFT = 4  # the higher bits are the stop word's number, from 1; 0: not a stop word
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")  # compared with case

# Sentence ends that datatrove adds to spaCy's sentencizer.
_MORE_ENDS = (
    *(0x61D, 0x61E, 0x837, 0x839, 0x83D, 0x83E, 0x17D4, 0x17D5, 0x17D6, 0x17D9, 0x17DA),
    *(0x1B7D, 0x1B7E, 0x2E53, 0x2E54, *range(0x10F55, 0x10F5A), *range(0x10F86, 0x10F8A)),
    *(0x11944, 0x11946, 0x11EF7, 0x11EF8, 0x11F43, 0x11F44, 0x16E98),
)
# Punctuation that datatrove adds to ASCII punctuation, sentence ends and control characters.
_MORE_PUNCTUATION = "«´»–—’“”„…∶━►、。〈〉《》「」【】！％（），．１：；？～"
_CONTROLS = (*range(9), 11, 12, *range(13, 32), *range(127, 160))


class Kinds(NamedTuple):
    """Flags of single characters, and hashes of the stop words."""

    flags: NDArray[np.uint8]  # [CODES]
    stop_words: NDArray[np.uint64]  # hashes, ordered as STOP_WORDS


class TokenFlags:
    """Computes the flags of tokens, given the marks that end a sentence for spaCy."""

    def __init__(self, sentence_ends: Iterable[str]) -> None:
        self._sentence_ends = frozenset(sentence_ends)
        self.terminals = self._sentence_ends | set(map(chr, _MORE_ENDS))
        self._symbols = self.terminals.union(
            string.punctuation, _MORE_PUNCTUATION, map(chr, _CONTROLS)
        )

    def of(self, text: str) -> int:
        """Return the flags of the token `text`."""
        if text in STOP_WORDS:
            return LETTERED | (STOP_WORDS.index(text) + 1) << STOP_WORD_SHIFT
        if text.isalpha():
            return LETTERED
        is_punctuation = all(unicodedata.category(character)[0] == "P" for character in text)
        return (
            (SYMBOLS_ONLY if self._symbols.issuperset(text) else 0)
            | (LETTERED if any(map(str.isalpha, text)) else 0)
            | (ENDS_SENTENCE if text in self._sentence_ends else 0)
            | (PUNCTUATION if is_punctuation else 0)
        )

    def build_kinds(self) -> Kinds:
        """Build the tables for `compute_flags`."""
        batch = build_batch(STOP_WORDS)
        edges = pairwise(batch.starts_D1)
        hashes = [hash_characters(batch.codes_C, start, end) for start, end in edges]
        flags = np.array([self.of(chr(code)) for code in range(CODES)], np.uint8)
        return Kinds(flags, np.array(hashes, np.uint64))


@compile_nogil
def compute_flags(
    codes: NDArray[np.uint32], start: int, end: int, token_hash: np.uint64, kinds: Kinds
) -> int:
    """Return the flags of the token from `start` to `end`; its code points must be below CODES."""
    every = 0xFF
    any_of_them = 0
    for place in range(start, end):
        flags = kinds.flags[codes[place]]
        every &= flags
        any_of_them |= flags
    if every & LETTERED:
        for word in range(len(kinds.stop_words)):
            if kinds.stop_words[word] == token_hash:
                return LETTERED | (word + 1) << STOP_WORD_SHIFT
        return LETTERED
    if end - start > 1:
        every &= ~ENDS_SENTENCE
    return every | any_of_them & LETTERED
