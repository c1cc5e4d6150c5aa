"""Extraction of the main article of a page, at one of three qualities.

Two corrections follow the decision trees. Captions that a gallery repeats, as a heading or beside a
thumbnail, are removed. And reference documentation is recognised by its declarations of functions
and methods: the trees were trained on news and blogs, where a short line without a full stop is
furniture, but here such lines are the content (`read(name, pwd=None)`, `public void close() throws
IOException`). So what the trees keep of such a page is compared with all of its main content.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract import extractors, page_blocks
from trainrig.corpus.extract.block_scores import Ask, ScoredBlocks, score_blocks, vote
from trainrig.corpus.extract.block_trees import Name
from trainrig.corpus.extract.extractors import TRAFILATURA_NODES, Favour, MainContent, Trafilatura

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
    ask = (
        functools.partial(_ask_trafilatura, html) if _may_ask_trafilatura(html, settings) else None
    )
    return extract_by_blocks(functools.partial(score_blocks, tree), ask, settings.list_bullets)


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


def _may_ask_trafilatura(html: str, settings: MainContent) -> bool:
    return settings.quality == "precise" and html.count("<") <= TRAFILATURA_NODES


def _ask_trafilatura(html: str, favour: Favour) -> str:
    return extractors.extract_with_trafilatura(html, Trafilatura(favour=favour))


_LEAST_CAPTION_WORDS: Final = 5  # shorter lines may be repeated for other reasons


def remove_thumbnails(judged: ScoredBlocks) -> ScoredBlocks:
    """Return `judged` without thumbnail captions and headings that a kept line repeats in full.

    A thumbnail is a list item or a link, and the line that repeats its caption may be anywhere on
    the page; a heading counts only if the next kept line repeats it. No text is lost, as the line
    stays. Lines of ordinary text may repeat each other, as refrains do.
    """
    numbers = judged.blocks.numbers
    kept = judged.kept
    kind = numbers[:, page_blocks.KIND]
    characters = numbers[:, page_blocks.CHARACTERS]
    thumbnail = (kind == page_blocks.ITEM) | (numbers[:, page_blocks.LINK_CHARACTERS] >= characters)
    text = kept & ~thumbnail & ((kind == page_blocks.TEXT) | (kind == page_blocks.PARAGRAPH))
    again = kept & thumbnail & (numbers[:, page_blocks.WORDS] >= _LEAST_CAPTION_WORDS)
    again &= np.isin(judged.blocks.digests, judged.blocks.digests[text])
    again |= _find_repeated_headings(judged)
    return (
        dataclasses.replace(judged, odds=np.where(again, -1, judged.odds))
        if again.any()
        else judged
    )


def _find_repeated_headings(judged: ScoredBlocks) -> NDArray[np.bool_]:
    """Mark kept headings whose words the next kept line repeats."""
    numbers = judged.blocks.numbers
    heading = (numbers[:, page_blocks.KIND] >= page_blocks.H1) & (
        numbers[:, page_blocks.KIND] <= page_blocks.H4
    )
    again = np.zeros(len(numbers), np.bool_)
    kept = np.flatnonzero(judged.kept)
    first = kept[:-1]
    second = kept[1:]
    again[first] = (
        heading[first]
        & ~heading[second]
        & (numbers[first, page_blocks.WORDS] >= _LEAST_CAPTION_WORDS)
        & (judged.blocks.digests[first] == judged.blocks.digests[second])
    )
    return again


# A name directly followed by a bracket (or, as Doxygen writes it, with spaces around the bracket).
_CALL: Final = re.compile(rb"\((?:(?<=[A-Za-z0-9_>]\()|(?<=[A-Za-z0-9_>] \()(?= ))(?!\d)")
# The same for decoded text, but not for "Freund(e)" and "person(s)".
_NAMED: Final = re.compile(
    r"\((?:(?<=[A-Za-z0-9_>]\()|(?<=[A-Za-z0-9_>] \()(?= ))(?!\d|(?:e|s|n|r|en|es|in|innen)\))"
)
# Text that languages and generators write after the closing bracket of a declaration.
_BEHIND: Final = re.compile(
    r"(?:\[source\]|[\s#¶:;{])*"
    r"(?:(?:->|→|throws\b|const\b|noexcept\b|where\b|=).{0,200}|:[\w.<>\[\]|?, ]{1,80})?\Z"
)
_LEAST_DECLARATIONS: Final = 3  # declarations on a page of reference documentation
_LEAST_DECLARATIONS_SHARE: Final = 0.05  # declarations as a share of the page's blocks
_ENOUGH_KEPT: Final = (
    0.9  # smallest share of characters, and of declarations, that the trees must keep
)
# characters: dropping fewer is accepted, such as "Previous topic" and "Next topic"
_LITTLE_DROPPED: Final = 100


def is_gutted(main: ScoredBlocks) -> bool:
    """Return whether `main` is reference documentation of which the trees drop over a tenth."""
    if bool(main.kept.all()) or len(_CALL.findall(main.page)) < _LEAST_DECLARATIONS:
        return False
    declares = np.array([_declares(line) for line in main.lines], np.bool_)
    count = int(declares.sum())
    if count < max(_LEAST_DECLARATIONS, _LEAST_DECLARATIONS_SHARE * len(declares)):
        return False
    dropped = int(main.characters[~main.kept].sum())
    return _keeps_too_few(main.kept[declares]) or (
        dropped >= _LITTLE_DROPPED and dropped > (1 - _ENOUGH_KEPT) * int(main.characters.sum())
    )


def _keeps_too_few(kept: NDArray[np.bool_]) -> bool:
    return int(kept.sum()) < _ENOUGH_KEPT * len(kept)


def _declares(line: str) -> bool:
    """Return whether `line` is a declaration `name(…)`, with the usual words before and after."""
    end = line.rfind(")")
    if end < 0 or not _BEHIND.match(line, end + 1):
        return False
    return _NAMED.search(line, 0, end + 1) is not None
