"""Extracts the article of a page without its surroundings, at one of three speeds."""

import functools
from collections.abc import Callable
from typing import Final, NamedTuple

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract import trafilatura_text
from trainrig.corpus.extract.block_model.trees import Name
from trainrig.corpus.extract.captions import remove_thumbnails
from trainrig.corpus.extract.declarations import is_gutted
from trainrig.corpus.extract.kinds import TRAFILATURA_NODES, Favour, MainContent, Trafilatura
from trainrig.corpus.extract.verdict import ScoredBlocks, judge
from trainrig.corpus.extract.voting import Ask, vote

# The figures below are F1 of five-fold cross-validation over the hosts that the trees were trained
# on, the mean of four ways to make the folds (tests/benchmarks/train_block_model.py), where
# trafilatura has .920.

# Characters; at fewer, the article may stand outside what resiliparse takes for the main content.
# .910 without a second look at the whole page, .924 with one at 250, .925 at 500, .926 at 1,000.
LITTLE: Final = 250
# Mean log-odds of a character's block (times SCALE) below which `precise` asks trafilatura: four
# fifths of the pages, .945. Three tenths .936, half .941, three fifths .944, all .944.
UNSURE: Final = 29_000


class Content(NamedTuple):
    """A text, and how much of the page's main content it is."""

    text: str
    # Of the characters of resiliparse's main content; None where it has none, or was not asked.
    share: float | None


def extract_main_content(tree: HTMLTree, html: str, settings: MainContent) -> Content:
    """The text of `tree`'s article; `html` is what it was parsed from."""
    if settings.quality == "fast":
        text = extract_plain_text(
            tree,
            main_content=True,
            list_bullets=settings.list_bullets,
            alt_texts=False,
            comments=False,
        )
        return Content(str(text), None)
    ask = functools.partial(_ask, html) if _may_ask(html, settings) else None
    return extract_by_blocks(functools.partial(judge, tree), ask, settings.list_bullets)


def extract_by_blocks(
    judged: Callable[[Name], ScoredBlocks], ask: Ask | None, bullets: bool
) -> Content:
    """The text of the blocks that `judged` gives for each part of a page, and `ask`'s vote."""
    main = best = judged("main")
    if is_gutted(main):
        return Content(main.keep_all().format_text(bullets), 1.0)
    text, whole = main.format_text(bullets), None
    if len(text) < LITTLE:
        whole = judged("whole")
        other = whole.format_text(bullets)
        if len(other) > len(text):
            best, text = whole, other
    if ask is not None and best.certainty < UNSURE:
        best = vote(main, whole or judged("whole"), ask)
        text = best.format_text(bullets)
    once = remove_thumbnails(best)
    if once is not best:
        text = once.format_text(bullets)
    return Content(text, _compute_kept_share(best, main))


def _compute_kept_share(best: ScoredBlocks, main: ScoredBlocks) -> float | None:
    """Of the characters of `main`, how many `best` keeps; what it has besides is not counted."""
    all_of_it = int(main.characters.sum())
    if not all_of_it:
        return None
    return round(min(1.0, int(best.characters[best.kept].sum()) / all_of_it), 4)


def _may_ask(html: str, settings: MainContent) -> bool:
    return settings.quality == "precise" and html.count("<") <= TRAFILATURA_NODES


def _ask(html: str, favour: Favour) -> str:
    return trafilatura_text.extract(html, Trafilatura(favour=favour))
