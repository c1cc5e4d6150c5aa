from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.signals.text_signals import SIGNALS
from trainrig.corpus.signals.text_signals import measure as measure_all


def measure(text: str, language: str = "en") -> Any:
    found = measure_all([text], [language])
    return SimpleNamespace(**{name: column[0].item() for name, column in found.items()})


ALICE = """The cat sat on the mat.

- one # two...
• 42 of them…

The cat sat on the mat.
The cat sat on the mat."""


def test_columns_come_in_order_and_in_their_types():
    found = measure_all([ALICE, ""], ["en", "en"])
    assert {name: column.dtype for name, column in found.items()} == SIGNALS
    assert list(found) == list(SIGNALS)


def test_no_texts_are_no_rows():
    assert {len(column) for column in measure_all([], []).values()} == {0}


def test_every_text_needs_a_language():
    with pytest.raises(ValueError, match="2 texts, but 1 languages"):
        measure_all(["a", "b"], ["en"])


def test_the_signals_of_a_small_text_worked_by_hand():
    found = measure(ALICE)
    # 3 x 6 words, "- one # two..." 4, "• 42 of them…" 4. Their characters: 3 x 18, 11, 10.
    assert found.words == 26
    assert found.lines == 5
    assert found.characters == len(ALICE) == 102
    assert found.mean_word_length == round((3 * 18 + 11 + 10) / 26, 4)
    assert found.hashes_per_word == round(1 / 26, 4)
    assert found.ellipses_per_word == round(2 / 26, 4)
    # Three full stops, a dash, a hash, three dots, a bullet, an ellipsis.
    assert found.symbols == round(10 / 102, 4)
    assert found.alphabetic_words == round((26 - 4) / 26, 4)  # not alphabetic: - # • 42
    assert found.stop_words == 2  # the, of
    assert found.bullet_lines == 0.4
    assert found.ellipsis_lines == 0.4
    assert found.terminal_lines == 0.6
    assert found.short_lines == 1.0
    assert found.longest_run_of_equal_lines == 2
    assert found.duplicate_lines == 0.4
    assert found.duplicate_line_characters == round(46 / (3 * 23 + 14 + 13), 4)
    # The paragraphs are the sentence, the list, and the sentence twice. No two are equal.
    assert found.duplicate_paragraphs == 0
    # The sentence occurs three times. Its longest 2-gram ("the mat.") has 7 characters, its longest
    # 3-grams ("on the mat.", "the cat sat") 9, its longest 4-gram ("sat on the mat.") 12.
    assert found.top_2_gram == round(3 * 7 / 75, 4)
    assert found.top_3_gram == round(3 * 9 / 75, 4)
    assert found.top_4_gram == round(3 * 12 / 75, 4)
    assert found.duplicate_5_grams == round(36 / 75, 4)
    assert found.duplicate_6_grams == round(36 / 75, 4)
    # A 7-gram crosses a boundary: "mat. the cat sat on the mat." does not occur before.
    assert found.duplicate_7_grams == 0


@pytest.mark.parametrize("text", ["", " \n\n\t "])
def test_an_empty_text_has_zeros(text: str):
    found = measure(text)
    assert set(vars(found).values()) == {0, len(text)}


def test_an_n_gram_that_occurs_once_is_no_repetition():
    found = measure("four quite different words")
    assert (found.top_2_gram, found.top_3_gram, found.top_4_gram) == (0, 0, 0)


def test_blank_lines_are_no_duplicates():
    found = measure("one\n\n\n\ntwo\n\n\n\nthree")
    assert (found.lines, found.duplicate_lines, found.longest_run_of_equal_lines) == (3, 0, 1)


def test_the_vowel_signs_of_hindi_and_thai_are_no_symbols():
    assert measure("हिन्दी में लिखा है").symbols == 0
    assert measure("ภาษาไทยน่ารู้").symbols == 0


def test_an_underscore_is_a_symbol():
    assert measure("snake_case").symbols == 0.1


def test_words_are_compared_without_case():
    assert measure("The THE the Of").stop_words == 2
    assert measure("A b c d e a B C D E").duplicate_5_grams == 0.5


def slow_duplicates(words: list[str], n: int) -> float:
    seen = set()
    inside = set()
    for i in range(len(words) - n + 1):
        gram = tuple(words[i : i + n])
        if gram in seen:
            inside |= set(range(i, i + n))
        seen.add(gram)
    return round(sum(len(words[i]) for i in inside) / sum(map(len, words)), 4) if words else 0.0


def slow_top(words: list[str], n: int) -> float:
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    most = max(map(grams.count, grams), default=0)
    if most < 2:
        return 0.0
    longest = max(sum(map(len, gram)) for gram in grams if grams.count(gram) == most)
    return min(1.0, round(most * longest / sum(map(len, words)), 4))


@given(st.lists(st.sampled_from(["a", "bb", "ccc", "dddd"]), max_size=40))
def test_repetition_equals_a_plain_count(words: list[str]):
    found = measure(" ".join(words))
    for n in (2, 3, 4):
        assert getattr(found, f"top_{n}_gram") == slow_top(words, n)
    for n in range(5, 11):
        assert getattr(found, f"duplicate_{n}_grams") == slow_duplicates(words, n)


@given(st.text(st.characters()))
def test_any_text_has_shares_between_nought_and_one(text: str):
    found = measure(text)
    counted = {"characters", "words", "lines", "stop_words", "longest_run_of_equal_lines"}
    counted |= {"c4_sentences", "c4_sentences_any_end", "lorem_ipsum", "curly_brackets"}
    unbounded = {"mean_word_length", *(name for name in SIGNALS if name.endswith("_per_word"))}
    for name, value in vars(found).items():
        assert value >= 0
        if name not in counted:
            assert value == round(value, 4)
            assert value <= 1 or name in unbounded


def test_signs_and_new_lines_are_counted_by_words():
    found = measure("one, {two}\nthree\nfour")
    assert found.symbols_per_word == round(3 / 4, 4)
    assert found.new_lines_per_word == 0.5
    assert found.curly_brackets == 1


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("en", "the cat sat", 3),
        ("en", "水車小屋は川", 1),
        ("ja", "水車小屋は川", 3),  # two characters a word
        ("zh", "我们用 Python 写。", 4),  # 我们 用 Python 写。
        ("th", "ภาษาไทย", 2),  # six letters with a mark among them
        ("th", "", 0),
    ],
)
def test_languages_without_spaces_have_words_by_length(language: str, text: str, words: int):
    assert measure(text, language).words == words


def test_every_character_of_a_text_without_spaces_is_in_one_word():
    text = "中文abc中文字，ก่ก็ก้กก ดี。"
    found = measure(text, "zh")
    assert found.mean_word_length == round(len(text.replace(" ", "")) / found.words, 4)


@pytest.mark.parametrize(("language", "count"), [("de", 3), ("en", 0), ("", 0), ("ceb", 0)])
def test_stop_words_are_by_language(language: str, count: int):
    assert measure("Der Hund und die Katze, und der Vogel", language).stop_words == count


def test_a_texts_signals_do_not_depend_on_the_batch():
    texts = [ALICE, "", "one two " * 50, ALICE.upper()]
    together = measure_all(texts, ["en"] * 4)
    for number, text in enumerate(texts):
        alone = measure_all([text], ["en"])
        assert {name: column[0] for name, column in alone.items()} == {
            name: column[number] for name, column in together.items()
        }
