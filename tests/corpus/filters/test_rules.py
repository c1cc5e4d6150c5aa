from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from trainrig.corpus.filters import filters
from trainrig.corpus.filters.filters import (
    Filter,
    GopherQuality,
    GopherRepetition,
    Language,
    Length,
    RepeatedLines,
    Symbols,
    find_broken_rules,
    find_first_broken_rule,
)
from trainrig.corpus.limits import Columns
from trainrig.corpus.models.language_id import NONE, LanguageGuess, identify
from trainrig.corpus.signals.text_signals import measure

ENGLISH = LanguageGuess("en", 0.9)
ALL = (Length(), Language(), GopherQuality(), GopherRepetition(), Symbols(), RepeatedLines())
PROSE = """The mill stands by the river, and its wheel has turned there for two hundred years.
Nobody in the village remembers who built it, though three families claim to know.
In spring the water rises to the second step of the door; in August children cross below it
with dry feet. The last miller, who died before the war, is said to have kept a heron that ate
from his hand and slept among the sacks. When the mill was sold, a painter from the city moved in,
and the light in its upper window has been on every night since."""


def columns(text: str, language: LanguageGuess = ENGLISH) -> dict[str, np.ndarray[Any, Any]]:
    return measure([text], [language.code]) | {
        "language": np.array([language.code]),
        "language_score": np.array([language.score]),
    }


def broken_by(filters: tuple[Filter, ...], columns: Columns) -> list[str]:
    return [rule for rule, broken in find_broken_rules(filters, columns).items() if broken[0]]


def broken(text: str, language: LanguageGuess = ENGLISH) -> list[str]:
    return broken_by(ALL, columns(text, language))


def test_prose_breaks_no_rule():
    assert broken(PROSE, identify(PROSE)) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("too short", "Length.too_short"),
        ("too short", "GopherQuality.word_count"),
        ("a b " * 60, "GopherQuality.mean_word_length"),
        ("extraordinarily " * 60, "GopherQuality.mean_word_length"),
        (PROSE + " #tag" * 20, "GopherQuality.hashes"),
        (PROSE + " and so on..." * 20, "GopherQuality.ellipses"),
        (PROSE.replace("\n", "…\n") + "…", "GopherQuality.ellipsis_lines"),
        ("- " + PROSE.replace("\n", "\n- "), "GopherQuality.bullet_lines"),
        (PROSE + " 12 34" * 40, "GopherQuality.alphabetic_words"),
        ("Lorem ipsum dolor sit amet " * 20, "GopherQuality.stop_words"),
        (f"{PROSE}\n{PROSE}", "GopherRepetition.duplicate_lines"),
        (f"{PROSE}\n{PROSE}", "GopherRepetition.duplicate_line_characters"),
        (f"{PROSE}\n\n{PROSE}", "GopherRepetition.duplicate_paragraphs"),
        (f"{PROSE}\n\n{PROSE}", "GopherRepetition.duplicate_paragraph_characters"),
        (PROSE + " again once" * 30, "GopherRepetition.top_2_gram"),
        (PROSE + " again and once" * 30, "GopherRepetition.top_3_gram"),
        (PROSE + " again and once more" * 30, "GopherRepetition.top_4_gram"),
        *((f"{PROSE} {PROSE}", f"GopherRepetition.duplicate_{n}_grams") for n in range(5, 11)),
        (PROSE + " {[(<>)]}" * 60, "Symbols.symbols"),
        (PROSE + "\nSubscribe" * 4, "RepeatedLines.in_a_row"),
    ],
)
def test_each_rule_is_broken_by_the_text_made_for_it(text: str, rule: str):
    assert rule in broken(text)


def test_the_texts_above_reach_every_rule_of_table_a1():
    limits = {name for name in GopherRepetition.model_fields if name.startswith("max_")}
    assert len(limits) == 13
    zero = GopherRepetition.model_validate(dict.fromkeys(limits, 0.0))
    everything = f"{PROSE}\n\n{PROSE}\n\n{PROSE}"
    assert len(broken_by((zero,), columns(everything))) == 13


@pytest.mark.parametrize(
    ("guess", "rules"),
    [
        (LanguageGuess("en", 0.65), []),
        (LanguageGuess("en", 0.649), ["Language.unsure"]),
        (LanguageGuess("de", 0.99), ["Language.not_allowed"]),
        (NONE, ["Language.not_allowed", "Language.unsure"]),
    ],
)
def test_a_language_is_judged_by_its_code_and_its_score(guess: LanguageGuess, rules: list[str]):
    assert broken_by((Language(),), columns(PROSE, guess)) == rules


def test_a_language_can_have_its_own_score():
    both = Language(allowed=("en", "de"), min_scores={"de": 0.9})
    assert broken_by((both,), columns(PROSE, LanguageGuess("de", 0.8))) == ["Language.unsure_de"]
    assert broken_by((both,), columns(PROSE, LanguageGuess("de", 0.9))) == []
    assert broken_by((both,), columns(PROSE, LanguageGuess("en", 0.8))) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"allowed": ("eng",)}, r"lid.176.*no language 'eng'.*'en'"),
        ({"min_scores": {"de": 0.5}}, "'de' is not in `allowed`"),
        ({"min_scores": {"en": 1.5}}, "en = 1.5 must be between 0 and 1"),
    ],
)
def test_languages_and_scores_that_cannot_be_meant_are_refused(given: Any, message: str):
    with pytest.raises(ValidationError, match=message):
        Language(**given)


@pytest.mark.parametrize(
    ("rule", "signal", "at_the_limit", "past_it"),
    [
        (GopherQuality(), "words", 50, 49),
        (GopherQuality(), "words", 100_000, 100_001),
        (GopherQuality(), "mean_word_length", 3.0, 2.9999),
        (GopherQuality(), "mean_word_length", 10.0, 10.0001),
        (GopherQuality(), "hashes_per_word", 0.1, 0.1001),
        (GopherQuality(), "ellipses_per_word", 0.1, 0.1001),
        (GopherQuality(), "bullet_lines", 0.9, 0.9001),
        (GopherQuality(), "ellipsis_lines", 0.3, 0.3001),
        (GopherQuality(), "alphabetic_words", 0.8, 0.7999),
        (GopherQuality(), "stop_words", 2, 1),
        (GopherRepetition(), "duplicate_lines", 0.3, 0.3001),
        (GopherRepetition(), "duplicate_paragraphs", 0.3, 0.3001),
        (GopherRepetition(), "duplicate_line_characters", 0.2, 0.2001),
        (GopherRepetition(), "duplicate_paragraph_characters", 0.2, 0.2001),
        (GopherRepetition(), "top_2_gram", 0.20, 0.2001),
        (GopherRepetition(), "top_3_gram", 0.18, 0.1801),
        (GopherRepetition(), "top_4_gram", 0.16, 0.1601),
        (GopherRepetition(), "duplicate_5_grams", 0.15, 0.1501),
        (GopherRepetition(), "duplicate_6_grams", 0.14, 0.1401),
        (GopherRepetition(), "duplicate_7_grams", 0.13, 0.1301),
        (GopherRepetition(), "duplicate_8_grams", 0.12, 0.1201),
        (GopherRepetition(), "duplicate_9_grams", 0.11, 0.1101),
        (GopherRepetition(), "duplicate_10_grams", 0.10, 0.1001),
        (Symbols(), "symbols", 0.3, 0.3001),
        (RepeatedLines(), "longest_run_of_equal_lines", 3, 4),
        (Length(), "characters", 100, 99),
        (Length(max_characters=500), "characters", 500, 501),
    ],
)
def test_the_published_limit_is_kept_and_the_next_value_is_not(
    rule: Filter, signal: str, at_the_limit: float, past_it: float
):
    found = columns(PROSE)
    assert broken_by((rule,), found | {signal: np.array([at_the_limit])}) == []
    assert len(broken_by((rule,), found | {signal: np.array([past_it])})) == 1


def test_the_first_reason_follows_the_order_of_the_filters():
    found = columns("short", NONE)
    assert find_first_broken_rule(ALL, found) == ["Length.too_short"]
    assert find_first_broken_rule(ALL[::-1], found) == ["GopherQuality.word_count"]
    assert find_first_broken_rule((), found) == [None]


def test_the_union_holds_every_filter_by_its_own_name():
    members = get_args(get_args(Filter)[0])
    assert {member.__name__ for member in members} <= vars(filters).keys()
    for member in members:
        needed = {"signal": "words", "least": 1.0} if member is filters.Score else {}
        plain = member(**needed)
        assert plain.kind == member.__name__
        written = {"kind": member.__name__, **needed}
        assert TypeAdapter(Filter).validate_python(written) == plain


def test_lengths_that_no_text_has_are_refused():
    with pytest.raises(ValidationError, match="no text can pass"):
        Length(max_characters=50)


@given(st.text(st.characters()))
def test_any_text_at_all_gets_a_verdict(text: str):
    for reason in broken(text, identify(text)):
        kind, rule = reason.split(".")
        assert kind in vars(filters)
        assert rule
