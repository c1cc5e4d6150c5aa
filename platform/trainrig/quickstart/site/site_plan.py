"""The plan of the quickstart's synthetic website, whose pages are written to web archives.

It lists all pages, each with a URL, an article and a frame: everything on the page except the
article. It also lists the *faults* (`Plant`) that curation should remove: copies, pages in other
languages and personal data.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.quickstart.site.article import Article, build_main_text
from trainrig.quickstart.site.foreign import make_foreign_page
from trainrig.quickstart.site.page_frame import Frame, Link
from trainrig.quickstart.site.personal_data import make_personal_items
from trainrig.quickstart.site.planted import (
    LARGEST_EDIT,
    SMALLEST_EDIT,
    Plant,
    choose_originals,
    compute_shingle_jaccard,
    edit_article,
    with_sentence,
)
from trainrig.quickstart.site.source_pages import hash_with_seed

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


@dataclass(frozen=True)
class Wanted:
    """Number of faults of each kind to inject; fewer are injected if too few pages are suitable."""

    exact_duplicates: int
    near_duplicates: int
    foreign: int
    personal_data: int


def plan_site(
    articles: Sequence[Article], wanted: Wanted, seed: int
) -> tuple[list[PlannedPage], list[Plant]]:
    """Return all pages, shuffled by `seed`, and the list of injected faults.

    A page is the original of at most one copy, and a page with personal data is not copied.
    """
    frames = _make_frames(articles, seed)
    private = max(1, round(wanted.personal_data / _ITEMS_A_PAGE))  # Pages that get personal data.
    copies = wanted.exact_duplicates + wanted.near_duplicates
    suitable = choose_originals(articles, frames, copies + private, seed)
    share = min(1.0, len(suitable) / (copies + private))  # Share of the wanted pages that exist.
    exact, rest = _divide(suitable, int(share * wanted.exact_duplicates))
    near, rest = _divide(rest, int(share * wanted.near_duplicates))
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


def _divide(items: list[int], count: int) -> tuple[list[int], list[int]]:
    return items[:count], items[count:]


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
