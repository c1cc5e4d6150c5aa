"""Features of a page's text counted by hand, and the order of the rules on them."""

import dataclasses

import pytest
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract.block_scores import cut_tree
from trainrig.corpus.extract.page_kind_features import TextFeatures, judge_text, measure_text

SENTENCE = "The keeper of the lock writes the level of the lake into a book."


def measure(body: str) -> TextFeatures:
    return measure_text(cut_tree(HTMLTree.parse(f"<html><body>{body}</body></html>")))


def test_shares_are_of_the_characters_outside_furniture() -> None:
    heading = "Lock"
    link = "gates"
    code = "open()"
    found = measure(
        f"<nav><a href='/'>{SENTENCE}</a></nav><h1>{heading}</h1><p>{SENTENCE}</p>"
        f"<ul><li><a href='/'>{link}</a></li></ul><pre>{code}</pre>"
    )
    everything = sum(map(len, (heading, SENTENCE, link, code)))
    assert found == TextFeatures(
        characters=everything,
        blocks=4,
        prose_blocks=1,
        prose=round(len(SENTENCE) / everything, 4),
        links=round(len(link) / everything, 4),
        code=round(len(code) / everything, 4),
        declarations=0,
    )


@pytest.mark.parametrize(
    ("body", "prose_blocks"),
    [
        (f"<p>{SENTENCE}</p><div>{SENTENCE}</div>", 2),
        (f"<p>{SENTENCE[:-1]}</p>", 0),  # no end mark
        (f"<p>{' '.join(SENTENCE.split()[:10])}.</p>", 0),  # too few words
        (f"<p>{'这是一个很长的句子。' * 8}</p>", 1),  # no spaces between words
        (f"<p><a href='/'>{SENTENCE}</a></p>", 0),
        (f"<li>{SENTENCE}</li>", 0),
        ("", 0),
    ],
)
def test_prose_is_long_sentences_without_links(body: str, prose_blocks: int) -> None:
    assert measure(body).prose_blocks == prose_blocks


def test_declarations_are_counted_outside_code() -> None:
    lines = "<dt>open(lock, width=None)</dt><dt>close(lock)</dt><dt>He (the keeper) came</dt>"
    assert measure(f"<dl>{lines}</dl><pre>read(book)</pre>").declarations == 2


TEXT = TextFeatures(1000, 20, 0, 0.0, 0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("changes", "is_dated", "posts", "kind"),
    [
        ({"characters": 199, "code": 0.9}, False, 9, "other"),
        ({"declarations": 3}, False, 0, "documentation"),
        ({"declarations": 3, "blocks": 40}, False, 0, "other"),
        ({"declarations": 3}, True, 0, "other"),
        ({"code": 0.05}, False, 0, "documentation"),
        ({"code": 0.04}, False, 0, "other"),
        ({"links": 0.5}, True, 9, "listing"),
        ({"links": 0.6, "prose_blocks": 3}, False, 0, "article"),
        ({"links": 0.7, "prose_blocks": 3}, False, 0, "listing"),
        ({"prose": 0.9}, False, 3, "forum"),
        ({"prose": 0.9}, False, 2, "article"),
        ({"prose": 0.9}, True, 3, "article"),
        ({"prose": 0.3}, False, 0, "article"),
        ({"prose": 0.2, "prose_blocks": 2}, False, 0, "other"),
    ],
)
def test_rules_apply_in_order(
    changes: dict[str, float], is_dated: bool, posts: int, kind: str
) -> None:
    found, evidence = judge_text(dataclasses.replace(TEXT, **changes), is_dated, posts)
    assert found == kind
    assert evidence.startswith("text: ")
