from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.models.language_id import identify_all
from trainrig.corpus.models.paragraph_languages import PARAGRAPH, measure_language_share

ENGLISH = "The mill stands by the river, and its wheel has turned there for two hundred years."
GERMAN = "Die Mühle steht am Fluss, und ihr Rad dreht sich dort seit zweihundert Jahren."
MENU = "Home | About"


def test_the_share_is_of_the_characters_of_long_lines():
    text = "\n".join([ENGLISH, MENU, GERMAN, ENGLISH])
    share = 2 * len(ENGLISH) / (2 * len(ENGLISH) + len(GERMAN))
    assert measure_language_share([text], ["en"], "blend").tolist() == [round(share, 3)]
    assert measure_language_share([text], ["de"], "blend").tolist() == [round(1 - share, 3)]


def test_texts_without_long_lines_have_the_share_1():
    assert (
        measure_language_share(["", MENU, "7" * 100], ["", "en", ""], "blend").tolist() == [1.0] * 3
    )
    assert len(measure_language_share([], [], "blend")) == 0


@given(st.lists(st.lists(st.sampled_from([ENGLISH, GERMAN, MENU, "", "12 " * 30])), max_size=4))
def test_the_shares_are_those_of_a_loop_over_lines(documents: list[list[str]]):
    texts = ["\n".join(lines) for lines in documents]
    languages, _ = identify_all(texts)
    expected = []
    for text, language in zip(texts, languages, strict=True):
        long = [line for line in text.split("\n") if len(line) >= PARAGRAPH]
        codes = dict(zip(long, identify_all(long)[0], strict=True))
        total = sum(len(line) for line in long if codes[line])
        own = sum(len(line) for line in long if codes[line] and codes[line] == language)
        expected.append(round(own / total, 3) if total else 1.0)
    assert measure_language_share(texts, languages, "blend").tolist() == expected
