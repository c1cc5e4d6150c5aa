"""Pages in other languages, built from sentences in foreign.toml."""

import functools
import random
import tomllib
from importlib.resources import files

from trainrig.quickstart.site.article import Article, Paragraph
from trainrig.quickstart.site.page_frame import Frame

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
