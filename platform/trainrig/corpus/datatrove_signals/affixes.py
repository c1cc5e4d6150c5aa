"""spaCy's prefix, suffix and infix rules as lookup tables.

spaCy has a list of regular expressions for each of the three. They are of a few kinds: characters,
the last one possibly repeated, with lookbehind and lookahead. Rules of other kinds cannot be
converted; the caller then has to use spaCy itself.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    read = [list(_read(patterns)) for patterns in (prefixes, suffixes, infixes)]
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


def _read(patterns: Iterable[str]) -> Iterator[_Rule | None]:
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
