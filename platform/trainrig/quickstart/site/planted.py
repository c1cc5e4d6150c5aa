"""What is hidden among the pages on purpose, so that the report can say what curation caught.

Every plant is listed with where it is; an exact or near copy also with what it was made from.
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
from trainrig.corpus.extract import NotExtracted, Resiliparse, extract
from trainrig.corpus.filters import find_first_broken_rule
from trainrig.corpus.language import identify
from trainrig.corpus.read import RawPage
from trainrig.corpus.run_file import PROSE
from trainrig.corpus.signals import measure
from trainrig.quickstart.site.article import Article, Paragraph, build_main_text, count_prose_words
from trainrig.quickstart.site.page_frame import Frame, render
from trainrig.quickstart.site.source_pages import hash_with_seed

Kind = Literal["exact_duplicate", "near_duplicate", "foreign_language", "personal_data"]

# A shingle of five words dies with any of its words, so changing a share c of the words, far apart,
# leaves a Jaccard index of about (1 - 5c) / (1 + 5c): from .98 down to .82.
SMALLEST_EDIT, LARGEST_EDIT = 0.002, 0.02  # share of words changed
SHINGLE_WORDS = 5


@dataclass(frozen=True)
class Plant:
    """One thing planted, in the page at `url`."""

    kind: Kind
    url: str
    original_url: str | None = None  # of copies
    words_changed: float | None = None  # of near copies: share of the words of the main text
    jaccard: float | None = None  # of near copies: of the sets of five-word shingles
    language: str | None = None  # of foreign pages: ISO 639-1
    what: str | None = None  # of personal data: "EMAIL", "IP", "PHONE", "CARD", "IBAN"
    value: str | None = None  # of personal data: as it stands in the text
    hard: bool = False  # of personal data: disguised, harder to find


def write_plants(path: str, plants: Sequence[Plant]) -> None:
    """Write the list as JSON, `{"plants": […]}`."""
    entries = [dataclasses.asdict(plant) for plant in plants]
    text = json.dumps({"plants": entries}, ensure_ascii=False, indent=1)
    storage.write(path, f"{text}\n".encode())


def read_plants(path: str) -> tuple[Plant, ...]:
    """The list that `write_plants` wrote."""
    return tuple(Plant(**entry) for entry in json.loads(storage.read(path))["plants"])


_FEWEST_WORDS, _MOST_WORDS = 200, 5_000
_PROSE_SHARE = 0.6  # of the words stand in paragraphs
_UNIQUE_SHARE = 0.9  # of the prose stands on this page alone
_FROM_ONE_SECTION = 4  # pages, before those of other sections had their turn


def choose_originals(
    articles: Sequence[Article], frames: Sequence[Frame], count: int, seed: int
) -> list[int]:
    """At most `count` of `articles`: unrepeated prose that ordinary rules keep, shuffled by `seed`.

    `frames` are the articles', in the same order.
    """
    copies = Counter(
        block.text
        for article in articles
        for block in article.blocks
        if isinstance(block, Paragraph)
    )
    prose = [index for index, article in enumerate(articles) if _is_own_prose(article, copies)]
    prose.sort(key=lambda index: hash_with_seed(seed, f"original/{articles[index].path}"))
    # Sections are packages, whose pages resemble each other: few from each, unless they run out.
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
    # Else a plant's page could be lost for another reason before its turn comes.
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
    """A near copy: about `share` of its words changed, all in paragraphs, and the share it became.

    Digits go up by one, words give way to synonyms, plain words are left out or get a neighbour.
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
    """The article with `sentence` put after one of the sentences of one of its longer paragraphs.

    It must have a paragraph.
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
    """The Jaccard index of the sets of five-word shingles of two texts, in lower case."""
    first, second = _cut_shingles(one), _cut_shingles(other)
    return len(first & second) / len(first | second)


def _cut_shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    last = max(1, len(words) - SHINGLE_WORDS + 1)
    return {tuple(words[start : start + SHINGLE_WORDS]) for start in range(last)}
