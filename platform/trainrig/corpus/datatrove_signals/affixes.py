"""spaCy's rules of affixes as tables: what a chunk begins with, ends with, and is cut at.

spaCy has a list of regular expressions for each. They are of few kinds: characters, the last one
perhaps more than once, between what must stand before and after. Rules of other kinds are not read
here; whoever has any must ask spaCy itself.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CODES = 0x10000  # code points that the tables know
NOTHING = -1

# One character: a class, an escaped sign, or itself.
_ONE = r"(?:\[(?:\\.|[^\]\\])+\]|\\\W|[^\\.^$*+?{}\[\]|()])"
_ONE_CHARACTER = re.compile(_ONE)
_RULE = re.compile(
    rf"(?:\(\?<=(?P<behind>{_ONE}+)\))?"
    rf"(?:\(\?:(?P<choices>(?:{_ONE}|\|)+)\)|(?P<body>{_ONE}+)(?P<repeats>\+)?)"
    rf"(?:\(\?(?P<sign>[=!])(?P<ahead>{_ONE})\))?"
)


class Rules(NamedTuple):
    """All rules of affixes. R rules, S sets of characters that they name one after another, K
    classes of characters that no rule tells apart.

    Prefixes and infixes are looked up by their first character, suffixes by their last.
    """

    classes: NDArray[np.int16]  # [CODES]
    holds: NDArray[np.bool_]  # [sets, K] whether a set has the characters of a class
    by_class: NDArray[np.int32]  # rules, in their order for each list and class
    firsts_3K1: NDArray[np.int32]  # [lists, K + 1] from where to where in by_class
    rules_R7: NDArray[np.int32]  # columns as below
    sets_S: NDArray[np.int32]  # numbers of sets


PREFIXES, SUFFIXES, INFIXES = 0, 1, 2
# First and end in sets_S of what must stand before, and of the characters themselves; the set of
# the next character (NOTHING: any or none); 1 if it must not be of that set; 1 if the last
# character may come more than once.
BEHIND, BEHIND_END, BODY, BODY_END, AHEAD, FORBIDS, REPEATS = range(7)


class _Rule(NamedTuple):
    """Each string is the regular expression of one character."""

    behind: list[str]
    body: list[str]
    repeats: bool
    ahead: str | None
    forbids: bool


def build_rules(
    prefixes: Sequence[str], suffixes: Sequence[str], infixes: Sequence[str]
) -> Rules | None:
    """The tables of three lists of regular expressions; None if one of them is of another kind."""
    read = [list(_read(each)) for each in (prefixes, suffixes, infixes)]
    if any(rule is None for rules in read for rule in rules):
        return None
    lists = [[rule for rule in rules if rule is not None] for rules in read]
    # Where a suffix ends, nothing follows.
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
    if len(one) <= 2:  # itself, or escaped
        return [code for code in [ord(one[-1])] if code < CODES]
    return [ord(character) for character in re.findall(one, _list_characters())]


@functools.cache
def _list_characters() -> str:
    return "".join(map(chr, range(CODES)))


def _build_tables(
    lists: Sequence[Sequence[_Rule]], numbers: dict[str, int], holds: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], ...]:
    """What stands in `Rules` after its first two."""
    by_class, firsts, rules, sets = list[int](), list[list[int]](), list[list[int]](), list[int]()
    for kind, each in enumerate(lists):
        sought = [numbers[rule.body[-1 if kind == SUFFIXES else 0]] for rule in each]
        firsts.append([])
        for of_class in range(holds.shape[1]):
            firsts[-1].append(len(by_class))
            by_class += [len(rules) + at for at, one in enumerate(sought) if holds[one, of_class]]
        firsts[-1].append(len(by_class))
        for rule in each:
            behind = len(sets)
            body = behind + len(rule.behind)
            sets += [numbers[one] for one in (*rule.behind, *rule.body)]
            ahead = numbers[rule.ahead] if rule.ahead else NOTHING
            rules.append([behind, body, body, len(sets), ahead, rule.forbids, rule.repeats])
    by, first, table, named = (np.array(each, np.int32) for each in (by_class, firsts, rules, sets))
    return by, first, table.reshape(-1, 7), named
