"""Faults injected into pages, so that the report can say what curation caught.

Every fault is listed with the URL of its page; an exact or near copy also with its original.
"""

import dataclasses
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainrig import storage
from trainrig.corpus.curation_settings import PROSE
from trainrig.corpus.extract import NotExtracted, Resiliparse, extract
from trainrig.corpus.filters.filters import find_first_broken_rule
from trainrig.corpus.models.language_id import identify
from trainrig.corpus.read import RawPage
from trainrig.corpus.signals.text_signals import measure
from trainrig.quickstart.site.article import Article, Paragraph, build_main_text, count_prose_words
from trainrig.quickstart.site.page_frame import Frame, render
from trainrig.quickstart.site.source_pages import hash_with_seed

Kind = Literal["exact_duplicate", "near_duplicate", "foreign_language", "personal_data"]

# A changed word changes all five-word shingles that contain it. So if a share c of the words is
# changed, far apart, the Jaccard index is about (1 - 5c) / (1 + 5c): from .98 down to .82.
# The limits of the share of words to change:
SMALLEST_EDIT = 0.002
LARGEST_EDIT = 0.02
SHINGLE_WORDS = 5


@dataclass(frozen=True)
class Plant:
    """One fault, injected into the page at `url`."""

    kind: Kind
    url: str
    original_url: str | None = None  # Set for copies.
    words_changed: float | None = None  # For near copies: share of the words of the main text.
    # For near copies: Jaccard index of the sets of five-word shingles.
    jaccard: float | None = None
    language: str | None = None  # For foreign pages: ISO 639-1 code.
    what: str | None = None  # For personal data: "EMAIL", "IP", "PHONE", "CARD" or "IBAN".
    value: str | None = None  # For personal data: the value as it appears in the text.
    hard: bool = False  # For personal data: whether the value is disguised, and so harder to find.


def write_plants(path: str, plants: Sequence[Plant]) -> None:
    """Write the list of faults as JSON, `{"plants": […]}`."""
    entries = [dataclasses.asdict(plant) for plant in plants]
    text = json.dumps({"plants": entries}, ensure_ascii=False, indent=1)
    storage.write(path, f"{text}\n".encode())


def read_plants(path: str) -> tuple[Plant, ...]:
    """Read the list of faults that `write_plants` wrote."""
    return tuple(Plant(**entry) for entry in json.loads(storage.read(path))["plants"])


_FEWEST_WORDS = 200
_MOST_WORDS = 5_000
_PROSE_SHARE = 0.6  # Minimum share of the words that are in paragraphs.
_UNIQUE_SHARE = 0.9  # Minimum share of the prose that is on no other page.
_FROM_ONE_SECTION = 4  # Pages taken from a section before other sections have their turn.


def choose_originals(
    articles: Sequence[Article], frames: Sequence[Frame], count: int, seed: int
) -> list[int]:
    """Choose at most `count` articles of unique prose that the default rules keep.

    Their order is shuffled by `seed`. `frames` are the frames of `articles`, in the same order. The
    result is indices of `articles`.
    """
    copies = Counter(
        block.text
        for article in articles
        for block in article.blocks
        if isinstance(block, Paragraph)
    )
    prose = [index for index, article in enumerate(articles) if _is_own_prose(article, copies)]
    prose.sort(key=lambda index: hash_with_seed(seed, f"original/{articles[index].path}"))
    # Sections are packages, whose pages are similar: few pages are taken from each at a time.
    sections: Counter[str] = Counter()
    turns: dict[int, int] = {}
    for index in prose:
        turns[index] = sections[articles[index].section] // _FROM_ONE_SECTION
        sections[articles[index].section] += 1
    prose.sort(key=lambda index: turns[index])
    kept = (index for index in prose if _is_kept(articles[index], frames[index]))
    return list(itertools.islice(kept, count))


def _is_own_prose(article: Article, copies: Counter[str]) -> bool:
    words = len(build_main_text(article).split())
    prose = count_prose_words(article)
    own = sum(
        len(block.text.split())
        for block in article.blocks
        if isinstance(block, Paragraph) and copies[block.text] == 1
    )
    return (
        _FEWEST_WORDS <= words <= _MOST_WORDS
        and prose >= _PROSE_SHARE * words
        and own >= _UNIQUE_SHARE * prose
    )


def _is_kept(article: Article, frame: Frame) -> bool:
    extracted = extract(
        RawPage("", "text/html", render(article, frame), "", "utf-8"), Resiliparse()
    )
    if isinstance(extracted, NotExtracted):
        return False
    text = extracted.text
    # A page that a rule drops anyway would lose its fault before the fault is looked for.
    language = identify(text)
    columns = measure([text], [language.code]) | {
        "language": np.array([language.code]),
        "language_score": np.array([language.score]),
    }
    return find_first_broken_rule(PROSE, columns) == [None]


_SYNONYMS = {
    "returns": "gives",
    "return": "give",
    "function": "routine",
    "create": "make",
    "creates": "makes",
    "used": "employed",
    "uses": "employs",
    "if": "when",
    "given": "supplied",
    "example": "instance",
    "method": "operation",
    "default": "standard",
    "must": "should",
    "contains": "holds",
    "specified": "stated",
    "allows": "permits",
    "however": "yet",
    "because": "since",
}
_ADDED = ("also", "usually", "now", "simply", "still", "often", "here")
_PLAIN_WORD = re.compile(r"[a-z]{2,}")


def edit_article(article: Article, share: float, draw: random.Random) -> tuple[Article, float]:
    """Return a near copy with about `share` of its words changed, and the exact share.

    All changes are in paragraphs: digits are incremented, words become synonyms, and plain words
    are removed or get a second word before them.
    """
    total = len(build_main_text(article).split())
    words = {
        index: block.text.split()
        for index, block in enumerate(article.blocks)
        if isinstance(block, Paragraph)
    }
    places = [
        (index, place)
        for index, paragraph in words.items()
        for place, word in enumerate(paragraph)
        if _can_change(word)
    ]
    changes = draw.sample(places, min(len(places), max(1, round(share * total))))
    for index, place in changes:
        words[index][place] = _change_word(words[index][place], draw)
    blocks = list(article.blocks)
    for index, paragraph in words.items():
        blocks[index] = Paragraph(" ".join(word for word in paragraph if word))
    return dataclasses.replace(article, blocks=tuple(blocks)), len(changes) / total


def _can_change(word: str) -> bool:
    return word.isdigit() or _PLAIN_WORD.fullmatch(word) is not None


def _change_word(word: str, draw: random.Random) -> str:
    if word.isdigit():
        return str(int(word) + 1)
    if word in _SYNONYMS:
        return _SYNONYMS[word]
    return "" if draw.random() < 0.5 else f"{draw.choice(_ADDED)} {word}"


def with_sentence(article: Article, sentence: str, draw: random.Random) -> Article:
    """Insert `sentence` after a sentence of one of the longer paragraphs of `article`.

    The article must have a paragraph.
    """
    paragraphs = [(i, b.text) for i, b in enumerate(article.blocks) if isinstance(b, Paragraph)]
    longest = max(len(text) for _, text in paragraphs)
    index, text = draw.choice([(i, text) for i, text in paragraphs if len(text) >= longest / 2])
    ends = [match.end() for match in re.finditer(r"[a-z]{3}\. (?=[A-Z])", text)]
    place = draw.choice([*ends, len(text)])
    whole = f"{text[:place].rstrip()} {sentence} {text[place:]}".strip()
    blocks = (*article.blocks[:index], Paragraph(whole), *article.blocks[index + 1 :])
    return dataclasses.replace(article, blocks=blocks)


def compute_shingle_jaccard(one: str, other: str) -> float:
    """Return the Jaccard index of the five-word shingles of two texts, in lower case."""
    first = _cut_shingles(one)
    second = _cut_shingles(other)
    return len(first & second) / len(first | second)


def _cut_shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    last = max(1, len(words) - SHINGLE_WORDS + 1)
    return {tuple(words[start : start + SHINGLE_WORDS]) for start in range(last)}
