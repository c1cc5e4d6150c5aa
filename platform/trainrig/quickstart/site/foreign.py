"""Pages in other languages, put together from sentences written for it (foreign.toml)."""

import functools
import random
import tomllib
from importlib.resources import files

from trainrig.quickstart.site.article import Article, Paragraph
from trainrig.quickstart.site.page_frame import Frame

_CHARACTERS = 1_500  # of a page, at least; enough for any language detector
_CHARACTERS_WITHOUT_SPACES = 300  # the same in scripts that say as much with a fifth of the signs
_WITHOUT_SPACES = ("zh", "ja")
_SENTENCES_A_PARAGRAPH = 4


@functools.cache
def _load_languages() -> dict[str, dict[str, list[str]]]:
    text = files("trainrig.quickstart.site").joinpath("foreign.toml").read_text("utf-8")
    return tomllib.loads(text)


def list_languages() -> tuple[str, ...]:
    """Their codes by ISO 639-1."""
    return tuple(_load_languages())


def make_foreign_page(number: int, layout: int, seed: int) -> tuple[Article, Frame]:
    """The page with this `number`; languages take turns."""
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
