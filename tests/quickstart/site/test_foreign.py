import pytest

from trainrig.corpus.models.language_id import identify
from trainrig.quickstart.site.article import build_main_text
from trainrig.quickstart.site.foreign import _load_languages, list_languages, make_foreign_page
from trainrig.quickstart.site.site_plan import compute_shingle_jaccard

PAGES = [make_foreign_page(number, layout=0, seed=0) for number in range(60)]


def test_there_are_at_least_six_languages_and_they_take_turns():
    assert len(list_languages()) >= 6
    assert {frame.language for _, frame in PAGES[: len(list_languages())]} == set(list_languages())


def test_pages_are_long_enough_to_be_judged():
    for article, frame in PAGES:
        least = 300 if frame.language in ("zh", "ja") else 1_500
        assert sum(len(block.text) for block in article.blocks) >= least


def test_a_language_detector_agrees():
    for article, frame in PAGES:
        assert identify(build_main_text(article)).code == frame.language


@pytest.mark.parametrize("language", list_languages())
def test_no_sentence_comes_twice(language):
    sentences = _load_languages()[language]["sentences"]
    assert len(set(sentences)) == len(sentences) >= 24


def test_pages_of_one_language_are_no_copies_of_each_other():
    german = [build_main_text(article) for article, frame in PAGES if frame.language == "de"]
    pairs = [(a, b) for i, a in enumerate(german) for b in german[:i]]
    assert max(compute_shingle_jaccard(a, b) for a, b in pairs) < 0.6


def test_a_page_is_a_function_of_its_number_and_the_seed():
    assert make_foreign_page(3, layout=0, seed=0) == PAGES[3]
    assert make_foreign_page(3, layout=0, seed=1) != PAGES[3]
