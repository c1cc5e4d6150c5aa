"""Extraction of the main article of a page, at one of three qualities.

`fast` keeps what the page's structure and class names do not call furniture. The other qualities
ask decision trees, and three corrections follow these. Captions that a gallery repeats, as a
heading or beside a thumbnail, are removed. Code and formulas between kept blocks are kept. And
reference documentation is recognised by its declarations of functions and methods (`read(name,
pwd=None)`, `public void close() throws IOException`): most training pages are news and blogs, where
a short line without a full stop is furniture, but here such lines are the content. So what the
trees keep of such a page is compared with all that is not furniture.
"""

import dataclasses
import functools
import re
from typing import Final, NamedTuple

import numpy as np
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.array_types import Bools
from trainrig.corpus.extract import extractors, page_blocks
from trainrig.corpus.extract.block_format import Format
from trainrig.corpus.extract.block_scores import Ask, ScoredBlocks, cut_tree, score_blocks, vote
from trainrig.corpus.extract.extractors import TRAFILATURA_NODES, Favour, MainContent, Trafilatura
from trainrig.corpus.extract.page_blocks import PageBlocks
from trainrig.corpus.page_walk.page_elements import LANDMARK, WORD_FLAG
from trainrig.corpus.page_walk.page_text import (
    CODE,
    CONTAINER_AROUND,
    H1,
    H6,
    ITEM,
    PARAGRAPH,
    TEXT,
)

# The F1 figures below are of five-fold cross-validation over the hosts of the training pages
# (tests/benchmarks/train_block_model.py), where the error over hosts is .007. Trafilatura has .920,
# `balanced` .919 and `precise` .937.

# Characters. If the trees keep less, blocks that they are less sure of are kept too. F1 of
# `balanced` is .917 without this, .920 with a limit of 500, .917 with 1,000.
LITTLE: Final = 250
LENIENT: Final = -15_000  # log-odds, times SCALE, above which such blocks are kept
# Mean log-odds per character, times SCALE, below which `precise` runs trafilatura: two fifths of
# the pages. F1 is .936 with three tenths of the pages, .939 with half of them or more.
UNSURE: Final = 27_400


class Content(NamedTuple):
    """A text, and the share of the page that it has."""

    text: str
    # Share of the visible characters outside furniture; None if there are none.
    share: float | None


def extract_main_content(
    tree: HTMLTree, html: str, settings: MainContent, blocks: PageBlocks | None = None
) -> Content:
    """Extract the article of `tree`, which was parsed from `html`.

    `blocks` are those of the tree, if it has been cut already.
    """
    if blocks is None:
        blocks = cut_tree(tree)
    if settings.quality == "fast":
        return _keep_exactly(is_likely_text(blocks), blocks, settings)
    ask = (
        functools.partial(_ask_trafilatura, html) if _may_ask_trafilatura(html, settings) else None
    )
    if is_generated_documentation(html):
        main = find_main_part(blocks)
        if main.any():
            return _keep_exactly(main, blocks, settings)
    judged = score_blocks(blocks)
    posts = find_posts(blocks)
    # Where posts are kept anyhow, forums need not be recognised, which takes a tenth of the time.
    if (ask is not None or (judged.odds[posts] <= 0).any()) and is_forum(html):
        judged = favour_posts(judged, posts)
    return extract_by_blocks(judged, ask, settings.list_bullets, settings.format)


def _keep_exactly(kept: Bools, blocks: PageBlocks, settings: MainContent) -> Content:
    judged = ScoredBlocks(blocks, np.where(kept, 1, -1).astype(np.int32))
    return _write_content(judged, settings.list_bullets, settings.format)


# What generators of documentation write into the head of a page.
_GENERATORS: Final = (
    'content="Docutils',
    'content="mkdocs',
    'content="Docusaurus',
    'content="javadoc',
    'content="rustdoc',
    'content="VitePress',
    'content="Starlight',
    "documentation_options.js",
    "DOCUMENTATION_OPTIONS",
    "generated using mdBook",
)
_HEAD: Final = 20_000  # characters in which a generator names itself


def is_generated_documentation(html: str) -> bool:
    """Return whether a generator of documentation names itself at the start of the page."""
    head = html[:_HEAD]
    return any(name in head for name in _GENERATORS)


def find_main_part(blocks: PageBlocks) -> Bools:
    """Mark the blocks of the main part, or of the article in it, that are no furniture.

    Old pages of Sphinx have no element for the main part, but one of the class "body".
    """
    main = blocks.flags & LANDMARK["main"] != 0
    if not main.any():
        main = blocks.flags & WORD_FLAG["body"] != 0
    article = blocks.flags & LANDMARK["article"] != 0
    outside = blocks.outside_furniture
    in_both = main & article & outside
    return np.asarray(in_both if in_both.any() else main & outside)


# What software of forums writes into a page of a discussion: before its content, and anywhere.
_FORUMS_IN_HEAD: Final = (
    'id="phpbb"',
    'id="XF"',
    'id="XenForo"',
    'content="vBulletin',
    'content="Discourse',
    'content="MyBB',
)
_BODY_TAG: Final = 2_000  # characters
_FORUMS: Final = (
    "DiscussionForumPosting",
    "schema.org/QAPage",
    "Simple Machines Forum",
    "ipsComment",
    "bbp-reply",
)
_POSTS: Final = WORD_FLAG["post"] | WORD_FLAG["comment"] | WORD_FLAG["body"] | WORD_FLAG["content"]
# Words; shorter lines of a post, such as names and dates, are left to the trees.
_LEAST_POST_WORDS: Final = 5
# Log-odds, times SCALE, added to the lines of posts: the trees were trained on pages where readers'
# contributions are furniture.
_POST_ODDS: Final = 25_000


def is_forum(html: str) -> bool:
    """Return whether software of forums, or of questions and answers, made the page."""
    body = html.find("<body")
    head = html[: body + _BODY_TAG if body >= 0 else _HEAD]
    return any(name in head for name in _FORUMS_IN_HEAD) or any(name in html for name in _FORUMS)


def find_posts(blocks: PageBlocks) -> Bools:
    """Mark the lines that would be posts if the page were one of a forum."""
    numbers = blocks.numbers
    posts = blocks.outside_furniture & (blocks.flags & _POSTS != 0)
    posts &= numbers[:, page_blocks.WORDS] >= _LEAST_POST_WORDS
    posts &= 2 * numbers[:, page_blocks.LINK_CHARACTERS] <= numbers[:, page_blocks.CHARACTERS]
    return np.asarray(posts)


def favour_posts(judged: ScoredBlocks, posts: Bools) -> ScoredBlocks:
    """Return `judged` with higher odds for the lines of posts."""
    odds = judged.odds + np.where(posts, _POST_ODDS, 0)
    return dataclasses.replace(judged, odds=odds.astype(np.int32))


def extract_by_blocks(
    judged: ScoredBlocks, ask: Ask | None, bullets: bool, as_format: Format
) -> Content:
    """Extract the text of the blocks of a page, which the trees have scored.

    `ask` returns trafilatura's text, for pages of which the trees are uncertain; None: the trees
    decide alone.
    """
    if is_gutted(judged):
        outside = judged.blocks.outside_furniture
        judged = dataclasses.replace(judged, odds=np.where(outside, 1, -1).astype(np.int32))
        return _write_content(judged, bullets, as_format)
    if ask is not None and judged.certainty < UNSURE:
        judged = vote(judged, ask)
    if int(judged.characters[judged.kept].sum()) < LITTLE:
        judged = dataclasses.replace(judged, odds=judged.odds - LENIENT)
    return _write_content(keep_insets(remove_thumbnails(judged)), bullets, as_format)


def _write_content(judged: ScoredBlocks, bullets: bool, as_format: Format) -> Content:
    share = compute_extracted_share(judged.blocks, judged.kept)
    return Content(judged.format_text(bullets, as_format), share)


# Groups of class names that say of the nearest elements that they hold furniture.
_FURNITURE_WORDS: Final = sum(
    WORD_FLAG[group]
    for group in (
        "comment",
        "sidebar",
        "menu",
        "related",
        "share",
        "cookie",
        "advert",
        "foot",
        "subscribe",
        "breadcrumb",
        "popup",
        "pages",
    )
)
_LEAST_TEXT_WORDS: Final = 3  # F1 of `fast` on the tuning half is .859, without this .853


def is_likely_text(blocks: PageBlocks) -> Bools:
    """Mark the blocks that cheap rules call text: what `fast` keeps.

    These are outside furniture, by their place and by the class names of the nearest elements, and
    at least half of their characters are outside links, but for code. One or two words that stand
    alone are no text, unless their element says otherwise.
    """
    numbers = blocks.numbers
    kind = numbers[:, page_blocks.KIND]
    linked = 2 * numbers[:, page_blocks.LINK_CHARACTERS] > numbers[:, page_blocks.CHARACTERS]
    label = (kind == TEXT) & (numbers[:, page_blocks.WORDS] < _LEAST_TEXT_WORDS)
    label &= numbers[:, page_blocks.ENDS_SENTENCE] == 0
    named = blocks.near & _FURNITURE_WORDS != 0
    furniture = named | label | (linked & (kind != CODE))
    return np.asarray(blocks.outside_furniture & ~furniture)


def compute_extracted_share(blocks: PageBlocks, kept: Bools) -> float | None:
    """Return the share of the characters outside furniture that are kept; None without any."""
    outside = blocks.outside_furniture
    characters = blocks.numbers[:, page_blocks.CHARACTERS]
    everything = int(characters[outside].sum())
    if not everything:
        return None
    return round(int(characters[outside & kept].sum()) / everything, 4)


def _may_ask_trafilatura(html: str, settings: MainContent) -> bool:
    return settings.quality == "precise" and html.count("<") <= TRAFILATURA_NODES


def _ask_trafilatura(html: str, favour: Favour) -> str:
    return extractors.extract_with_trafilatura(html, Trafilatura(favour=favour))


_FORMULA_STARTS: Final = ("$$", "\\[", "\\begin{")


def keep_insets(judged: ScoredBlocks) -> ScoredBlocks:
    """Return `judged` with the code and the formulas that stand between kept blocks.

    Such a block is kept if the last other block before it is, and the next other block after it is
    kept as well or the one before it is directly beside the element with the code.
    """
    blocks = judged.blocks
    kind = blocks.numbers[:, page_blocks.KIND]
    inset = kind == CODE
    if any(start.encode() in blocks.text.tobytes() for start in _FORMULA_STARTS):
        inset |= np.array([line.startswith(_FORMULA_STARTS) for line in judged.lines], np.bool_)
    if not (inset & ~judged.kept).any():
        return judged
    others = np.flatnonzero(~inset)
    if not len(others):
        return judged
    places = np.flatnonzero(inset & blocks.outside_furniture)
    after = np.searchsorted(others, places)
    before = others[np.maximum(after - 1, 0)]
    following = others[np.minimum(after, len(others) - 1)]
    kept = judged.kept
    between = (after > 0) & kept[before]
    between &= ((after < len(others)) & kept[following]) | (
        blocks.container[before] == blocks.containers[blocks.container[places], CONTAINER_AROUND]
    )
    odds = judged.odds.copy()
    odds[places[between]] = np.maximum(odds[places[between]], 1)
    return dataclasses.replace(judged, odds=odds)


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
    thumbnail = (kind == ITEM) | (numbers[:, page_blocks.LINK_CHARACTERS] >= characters)
    text = kept & ~thumbnail & ((kind == TEXT) | (kind == PARAGRAPH))
    again = kept & thumbnail & (numbers[:, page_blocks.WORDS] >= _LEAST_CAPTION_WORDS)
    repeated = set(judged.blocks.digests[text].tolist())  # np.isin is slower for so few
    places = np.flatnonzero(again)
    again[places] = [digest in repeated for digest in judged.blocks.digests[places].tolist()]
    again |= _find_repeated_headings(judged)
    return (
        dataclasses.replace(judged, odds=np.where(again, -1, judged.odds))
        if again.any()
        else judged
    )


def _find_repeated_headings(judged: ScoredBlocks) -> Bools:
    """Mark kept headings whose words the next kept line repeats."""
    numbers = judged.blocks.numbers
    kind = numbers[:, page_blocks.KIND]
    heading = (kind >= H1) & (kind <= H6)
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


def is_gutted(judged: ScoredBlocks) -> bool:
    """Return whether the page is reference documentation of which the trees drop over a tenth."""
    if len(_CALL.findall(judged.blocks.text.tobytes())) < _LEAST_DECLARATIONS:
        return False
    outside = judged.blocks.outside_furniture
    dropped = int(judged.characters[outside & ~judged.kept].sum())
    declares = np.array([is_declaration(line) for line in judged.lines], np.bool_)
    declares &= outside & (judged.blocks.numbers[:, page_blocks.KIND] != CODE)
    count = int(declares.sum())
    if count < max(_LEAST_DECLARATIONS, _LEAST_DECLARATIONS_SHARE * int(outside.sum())):
        return False
    return _keeps_too_few(judged.kept[declares]) or (
        dropped >= _LITTLE_DROPPED
        and dropped > (1 - _ENOUGH_KEPT) * int(judged.characters[outside].sum())
    )


def _keeps_too_few(kept: Bools) -> bool:
    return int(kept.sum()) < _ENOUGH_KEPT * len(kept)


def is_declaration(line: str) -> bool:
    """Return whether `line` is a declaration `name(…)`, with the usual words before and after."""
    end = line.rfind(")")
    if end < 0 or not _BEHIND.match(line, end + 1):
        return False
    return _NAMED.search(line, 0, end + 1) is not None
