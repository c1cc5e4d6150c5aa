"""Affix tables compared with the regular expressions that they were read from."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainrig.corpus.signals.text_arrays import build_batch
from trainrig_contrib.datatrove_signals.spacy_splitting import _at, _measure_suffix
from trainrig_contrib.datatrove_signals.spacy_tables import INFIXES, PREFIXES, build_rules

PREFIX = [r"…", "……", r"\*+(?![0-9])", r"\+(?![0-9])", r"\.\.+", r"US\$", r"[a-c'x]", " "]
SUFFIX = [r"\.\.+", r"(?<=[0-9])(?:km|km²|m)", r"(?<=[ab][ab])\.", "'s", "²", ""]
INFIX = [r"(?<=[0-9])[+\-*](?=[0-9])", r"\.\.+", r"(?<=[a-z])(?:-|--)(?=[a-z])"]
RULES = build_rules(PREFIX, SUFFIX, INFIX)
texts = st.lists(
    st.sampled_from([*"…+1.ab's²km-*xUS$", "US$", "km²", "--", "..."]), min_size=1, max_size=8
).map("".join)


def length(found: re.Match[str] | None) -> int:
    return len(found[0]) if found else 0


@pytest.mark.slow
@given(texts)
@example("**1")
@example("...")
def test_tables_equal_the_regular_expressions(text: str):
    assert RULES
    codes = build_batch([text]).codes_C
    end = len(text)
    prefix = re.compile("|".join(f"^{affix}" for affix in PREFIX if affix.strip()))
    suffix = re.compile("|".join(f"{affix}$" for affix in SUFFIX if affix.strip()))
    infix = re.compile("|".join(INFIX))
    assert _at(codes, 0, 0, end, RULES, PREFIXES) == length(prefix.search(text))
    assert _measure_suffix(codes, 0, end, RULES) == length(suffix.search(text))
    for place in range(end):
        assert _at(codes, place, 0, end, RULES, INFIXES) == length(infix.match(text, place))


@pytest.mark.parametrize("pattern", ["a{2}", r"\d+", "(a|b)", "a*", ".", "(?<=a)", "(?:a+|b)"])
def test_other_kinds_of_rules_are_not_read(pattern: str):
    assert build_rules([pattern], [], []) is None
    assert build_rules(["a"], ["a", pattern], []) is None


def test_no_rule_depends_on_the_text_after_a_suffix():
    assert build_rules([], ["a(?=b)"], []) is None
