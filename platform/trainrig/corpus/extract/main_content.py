"""Extracts the main article of a page, at one of three qualities."""

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

# The F1 figures below are of five-fold cross-validation over the hosts of the training pages, as
# the mean of four ways to make the folds (tests/benchmarks/train_block_model.py). Trafilatura has
# .920.

# Characters. A shorter main content may miss the article, so the whole page is examined. F1 is .910
# without this, .924 with a limit of 250, .925 with 500, .926 with 1,000.
LITTLE: Final = 250
# Mean log-odds per character, times SCALE, below which `precise` runs trafilatura: four fifths of
# the pages, F1 .945. For three tenths of the pages F1 is .936, half .941, three fifths .944, all
# .944.
UNSURE: Final = 29_000


class Content(NamedTuple):
    """A text, and its share of the page's main content."""

    text: str
    # Share of the characters of resiliparse's main content; None if that is empty or was not
    # measured.
    share: float | None


def extract_main_content(tree: HTMLTree, html: str, settings: MainContent) -> Content:
    """Extract the article of `tree`, which was parsed from `html`."""
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
    """Extract the text of the blocks that `judged` scores for a part of the page.

    `ask` returns trafilatura's text, for pages of which the trees are uncertain; None: the trees
    decide alone.
    """
    main = best = judged("main")
    if is_gutted(main):
        return Content(main.keep_all().format_text(bullets), 1.0)
    text = main.format_text(bullets)
    whole = None
    if len(text) < LITTLE:
        whole = judged("whole")
        other = whole.format_text(bullets)
        if len(other) > len(text):
            best = whole
            text = other
    if ask is not None and best.certainty < UNSURE:
        best = vote(main, whole or judged("whole"), ask)
        text = best.format_text(bullets)
    once = remove_thumbnails(best)
    if once is not best:
        text = once.format_text(bullets)
    return Content(text, _compute_kept_share(best, main))


def _compute_kept_share(best: ScoredBlocks, main: ScoredBlocks) -> float | None:
    """Return the share of the characters of `main` that `best` keeps, at most 1."""
    all_of_it = int(main.characters.sum())
    if not all_of_it:
        return None
    return round(min(1.0, int(best.characters[best.kept].sum()) / all_of_it), 4)


def _may_ask(html: str, settings: MainContent) -> bool:
    return settings.quality == "precise" and html.count("<") <= TRAFILATURA_NODES


def _ask(html: str, favour: Favour) -> str:
    return trafilatura_text.extract(html, Trafilatura(favour=favour))
