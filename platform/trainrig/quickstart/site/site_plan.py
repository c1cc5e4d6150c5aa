"""The plan of the site: URLs, frames, and the faults injected into each page.

Every fault is listed with the URL of its page, so that the report can say what curation caught; an
exact or near copy also with its original. Pages in other languages are built from the sentences in
foreign.toml.
"""

import dataclasses
import functools
import itertools
import json
import random
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import numpy as np

from trainrig import storage
from trainrig.config import Field, Settings
from trainrig.corpus.curation_settings import PROSE
from trainrig.corpus.extract import NotExtracted, Resiliparse, extract
from trainrig.corpus.filters.filters import find_first_broken_rule
from trainrig.corpus.models.language_id import identify
from trainrig.corpus.read import RawPage
from trainrig.corpus.signals.text_signals import measure
from trainrig.quickstart.site.article import Article, Paragraph, build_main_text, count_prose_words
from trainrig.quickstart.site.page_frame import Frame, Link, render
from trainrig.quickstart.site.personal_data import make_personal_items
from trainrig.quickstart.site.source_pages import hash_with_seed


class PagesSettings(Settings):
    """Number of pages of each kind; a small installation may give fewer."""

    # Documentation pages, before copies and foreign pages are added.
    docs_pages: int = Field(2_400, ge=1)
    code_pages: int = Field(800, ge=0)  # Pages of source code.
    duplicates: int = Field(60, ge=0)  # Pages to repeat under a second URL.
    near_duplicates: int = Field(60, ge=0)  # Pages to copy with 0.2% to 2% of their words changed.
    foreign: int = Field(60, ge=0)  # Pages in other languages.
    # Items of invented personal data to insert into documentation pages.
    personal_data: int = Field(120, ge=0)
    instructions: int = Field(3_000, ge=0)  # Question-answer pairs for training.
    # Question-answer pairs for evaluation, on other names.
    held_out_instructions: int = Field(200, ge=0)
    # Training questions that also get a wrong answer, as preference pairs.
    pairs: int = Field(600, ge=0)
    # Archives of documentation pages; several, so that workers can share the work.
    docs_files: int = Field(8, ge=1)
    code_files: int = Field(4, ge=1)  # Archives of source code pages.
    seed: int = 0  # Random seed.


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
        if word.isdigit() or _PLAIN_WORD.fullmatch(word) is not None
    ]
    changes = draw.sample(places, min(len(places), max(1, round(share * total))))
    for index, place in changes:
        words[index][place] = _change_word(words[index][place], draw)
    blocks = list(article.blocks)
    for index, paragraph in words.items():
        blocks[index] = Paragraph(" ".join(word for word in paragraph if word))
    return dataclasses.replace(article, blocks=tuple(blocks)), len(changes) / total


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


DOCS = "https://docs.trainrig.example/"
MIRROR = "https://mirror.trainrig.example/"  # Host of exact copies.
HANDBOOK = "https://handbook.trainrig.example/"  # Host of near copies.
NOTES = "https://notes.trainrig.example/"  # Host of pages in other languages.
CODE = "https://code.trainrig.example/"

_MENU = 8  # Links in a menu.
# Mean number of items of personal data on the pages that have any. Most have one, some two.
_ITEMS_A_PAGE = 4 / 3


@dataclass(frozen=True)
class PlannedPage:
    """A page to render."""

    url: str
    article: Article
    frame: Frame


def plan_site(
    articles: Sequence[Article], wanted: PagesSettings
) -> tuple[list[PlannedPage], list[Plant]]:
    """Return all pages, shuffled by the seed, and the list of injected faults.

    Fewer faults than `wanted` are injected if too few pages are suitable. A page is the original of
    at most one copy, and a page with personal data is not copied.
    """
    seed = wanted.seed
    frames = _make_frames(articles, seed)
    private = max(1, round(wanted.personal_data / _ITEMS_A_PAGE))  # Pages that get personal data.
    copies = wanted.duplicates + wanted.near_duplicates
    suitable = choose_originals(articles, frames, copies + private, seed)
    share = min(1.0, len(suitable) / (copies + private))  # Share of the wanted pages that exist.
    begin = int(share * wanted.duplicates)
    end = begin + int(share * wanted.near_duplicates)
    exact, near, rest = suitable[:begin], suitable[begin:end], suitable[end:]
    changed, personal = _plant_personal_data(articles, rest, wanted.personal_data, seed)
    pages = [
        PlannedPage(DOCS + article.path, changed.get(index, article), frames[index])
        for index, article in enumerate(articles)
    ]
    plants = list(personal)
    for index in exact:
        page = pages[index]
        copy = PlannedPage(MIRROR + page.article.path, page.article, page.frame)
        pages.append(copy)
        plants.append(Plant("exact_duplicate", copy.url, original_url=page.url))
    for number, index in enumerate(near):
        copy, plant = _make_near_copy(pages[index], number / max(1, len(near) - 1), seed)
        pages.append(copy)
        plants.append(plant)
    for number in range(wanted.foreign):
        article, frame = make_foreign_page(number, layout=number, seed=seed)
        pages.append(PlannedPage(NOTES + article.path, article, frame))
        plants.append(Plant("foreign_language", pages[-1].url, language=frame.language))
    return sorted(pages, key=lambda page: hash_with_seed(seed, page.url)), plants


def _make_frames(articles: Sequence[Article], seed: int) -> list[Frame]:
    """Build a frame for each article, whose menu links to the neighbouring articles."""
    links = [Link(article.title, article.path) for article in articles]
    frames = []
    for index, article in enumerate(articles):
        start = max(0, min(index - _MENU // 2, len(links) - _MENU))
        menu = tuple(links[start : start + _MENU])
        layout = hash_with_seed(seed, f"layout/{article.section}")[0]
        frames.append(Frame(layout, f"{article.section} documentation", menu))
    return frames


def _make_near_copy(page: PlannedPage, level: float, seed: int) -> tuple[PlannedPage, Plant]:
    """Make a near copy in another frame; `level` is from 0 (least changed) to 1 (most)."""
    draw = random.Random(f"near/{seed}/{page.url}")
    share = SMALLEST_EDIT + level * (LARGEST_EDIT - SMALLEST_EDIT)
    article, changed_share = edit_article(page.article, share, draw)
    frame = Frame(page.frame.layout + draw.randrange(1, 5), "The handbook", page.frame.menu[:4])
    copy = PlannedPage(HANDBOOK + article.path, article, frame)
    jaccard = compute_shingle_jaccard(build_main_text(page.article), build_main_text(article))
    return copy, Plant(
        "near_duplicate",
        copy.url,
        original_url=page.url,
        words_changed=round(changed_share, 4),
        jaccard=round(jaccard, 4),
    )


def _plant_personal_data(
    articles: Sequence[Article], places: Sequence[int], count: int, seed: int
) -> tuple[dict[int, Article], list[Plant]]:
    """Insert personal data; return the changed articles by index, and the faults."""
    changed: dict[int, Article] = {}
    plants: list[Plant] = []
    for number, item in enumerate(make_personal_items(count if places else 0, seed)):
        index = places[number % len(places)]
        draw = random.Random(f"place/{seed}/{number}")
        article = changed.get(index, articles[index])
        changed[index] = with_sentence(article, item.sentence, draw)
        url = DOCS + article.path
        plants.append(Plant("personal_data", url, what=item.what, value=item.value, hard=item.hard))
    return changed, plants


_CHARACTERS = 1_500  # Minimum characters of a page; enough for any language detector.
# The minimum for scripts that need about a fifth of the characters for the same text.
_CHARACTERS_WITHOUT_SPACES = 300
_WITHOUT_SPACES = ("zh", "ja")
_SENTENCES_A_PARAGRAPH = 4


@functools.cache
def _load_languages() -> dict[str, dict[str, list[str]]]:
    text = files("trainrig.quickstart.site").joinpath("foreign.toml").read_text("utf-8")
    return tomllib.loads(text)


def list_languages() -> tuple[str, ...]:
    """Return the ISO 639-1 codes of all languages."""
    return tuple(_load_languages())


def make_foreign_page(number: int, layout: int, seed: int) -> tuple[Article, Frame]:
    """Build the page with this `number`; the language changes with each number."""
    language = list_languages()[number % len(list_languages())]
    words = _load_languages()[language]
    draw = random.Random(f"foreign/{seed}/{number}")
    spaced = language not in _WITHOUT_SPACES
    sentences = _sample(words["sentences"], spaced, draw)
    title = draw.choice(words["titles"])
    paragraphs = tuple(
        Paragraph((" " if spaced else "").join(sentences[start : start + _SENTENCES_A_PARAGRAPH]))
        for start in range(0, len(sentences), _SENTENCES_A_PARAGRAPH)
    )
    article = Article(f"{language}/{number:04}.html", title, words["labels"][1], paragraphs)
    home, contents, about, contact = words["labels"]
    return article, Frame(layout, title, (), language, (home, contents, about, contact))


def _sample(sentences: list[str], spaced: bool, draw: random.Random) -> list[str]:
    least = _CHARACTERS if spaced else _CHARACTERS_WITHOUT_SPACES
    chosen: list[str] = []
    for sentence in draw.sample(sentences, len(sentences)):
        chosen.append(sentence)
        if sum(map(len, chosen)) >= least:
            break
    return chosen
