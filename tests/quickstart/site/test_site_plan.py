import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.models.language_id import identify
from trainrig.quickstart.site.article import Article, Bullets, Code, Paragraph, build_main_text
from trainrig.quickstart.site.page_frame import Frame
from trainrig.quickstart.site.site_plan import (
    Plant,
    _load_languages,
    choose_originals,
    compute_shingle_jaccard,
    edit_article,
    list_languages,
    make_foreign_page,
    read_plants,
    with_sentence,
    write_plants,
)

NOUNS = ["river", "bridge", "garden", "window", "letter", "market", "summer", "engine", "harbor"]
VERBS = ["keeps", "follows", "changes", "reaches", "carries", "opens", "watches", "remembers"]
KINDS = ["old", "quiet", "narrow", "bright", "heavy", "distant", "green", "empty", "broken", "warm"]
LINKS = ["that", "and", "with", "of", "beyond", "before", "under", "because of", "to be"]
FRAME = Frame(0, "Test", ())


def make_prose_article(number, section="s", sentences=30):
    """Return random sentences with the words, lengths and variety of English ones."""
    draw = random.Random(number)

    def thing():
        return f"{draw.choice(('the', 'a', 'that'))} {draw.choice(KINDS)} {draw.choice(NOUNS)}"

    text = [
        f"With {thing()} {thing()} {draw.choice(VERBS)} {thing()} {draw.choice(LINKS)} {thing()} "
        f"and {draw.choice(VERBS)} {draw.randrange(2, 90)} {draw.choice(NOUNS)}s "
        f"{draw.choice(('to have', 'of the house', 'at once'))}."
        for _ in range(sentences)
    ]
    paragraphs = tuple(Paragraph(" ".join(text[at : at + 5])) for at in range(0, sentences, 5))
    return Article(f"page{number}.html", f"Page {number}", section, paragraphs)


def count_changed_words(one, other):
    """Return the number of words by which two texts differ, by longest common subsequence.

    An addition, a removal and a replacement count one each.
    """
    a = one.split()
    b = other.split()
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last = row[0]
        row[0] = i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(last + (x != y), row[j] + 1, row[j - 1] + 1)
    return row[-1]


@pytest.mark.parametrize("share", [0.002, 0.01, 0.02])
def test_a_near_copy_differs_by_the_share_it_is_said_to(share):
    article = make_prose_article(1)
    copy, changed = edit_article(article, share, random.Random(0))
    before = build_main_text(article)
    after = build_main_text(copy)
    words = len(before.split())
    assert abs(changed - share) <= 1 / words
    assert count_changed_words(before, after) == round(changed * words)


def test_a_near_copy_leaves_code_and_lists_alone():
    still = (Code("total(1)"), Bullets(("one point", "two")))
    article = Article("a.html", "A", "s", (*make_prose_article(2).blocks, *still))
    copy, _ = edit_article(article, 0.02, random.Random(0))
    assert copy.blocks[-2:] == still
    assert copy.blocks[:-2] != article.blocks[:-2]


def test_the_jaccard_index_by_hand():
    assert compute_shingle_jaccard("a b c d e f", "a b c d e g") == pytest.approx(1 / 3)
    assert compute_shingle_jaccard("A, b. c", "a b c") == 1
    assert compute_shingle_jaccard("a b", "c d") == 0


@given(st.integers(0, 20), st.integers())
def test_an_injected_sentence_occurs_once_and_the_rest_is_unchanged(number, seed):
    article = make_prose_article(number)
    sentence = "This sentence was planted."
    text = build_main_text(with_sentence(article, sentence, random.Random(seed)))
    assert text.count(sentence) == 1
    assert text.replace(f" {sentence}", "") == build_main_text(article)


def test_originals_are_prose_of_their_own_that_ordinary_rules_keep():
    short = make_prose_article(3, sentences=5)
    code = Article("c.html", "C", "s", tuple(Code("x = 1\n" * 20) for _ in range(20)))
    repeated = Article("r.html", "R", "s", make_prose_article(4).blocks[:1] * 12)
    twins = [make_prose_article(6), Article("t.html", "T", "s", make_prose_article(6).blocks)]
    good = [make_prose_article(7), make_prose_article(8)]
    german, _ = make_foreign_page(0, layout=0, seed=0)
    articles = [short, code, repeated, german, *twins, *good]
    frames = [FRAME] * len(articles)
    found = choose_originals(articles, frames, 10, seed=0)
    assert sorted(articles[index].path for index in found) == ["page7.html", "page8.html"]
    assert len(choose_originals(articles, frames, 1, seed=0)) == 1


def test_no_section_gives_more_than_four_originals_while_others_have_some():
    articles = [make_prose_article(n, section="large") for n in range(12)]
    articles += [make_prose_article(n, section=f"small{n}") for n in range(12, 16)]
    found = choose_originals(articles, [FRAME] * 16, 8, seed=0)
    sections = [articles[index].section for index in found]
    assert sections.count("large") == 4
    assert len(choose_originals(articles, [FRAME] * 16, 16, seed=0)) == 16


def test_the_list_reads_back_as_it_was_written(tmp_path):
    path = str(tmp_path / "planted.json")
    plants = (
        Plant("near_duplicate", "u", original_url="o", words_changed=0.01, jaccard=0.9),
        Plant("personal_data", "ü", what="EMAIL", value="x at y", hard=True),
    )
    write_plants(path, plants)
    assert read_plants(path) == plants


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
