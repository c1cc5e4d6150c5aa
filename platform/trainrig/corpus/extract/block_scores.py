"""The blocks of a page with the likelihood that each is part of its text, and their text.

Likelihoods come from the decision trees alone, or from votes of the trees and of trafilatura, which
runs at one or two settings and votes for the blocks that its text contains as well.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.array_types import Bools, Int32s, Int64s
from trainrig.corpus.extract import block_trees, page_blocks
from trainrig.corpus.extract.block_features import compute_features
from trainrig.corpus.extract.block_format import Format, extract_lines, format_blocks
from trainrig.corpus.extract.block_trees import SCALE
from trainrig.corpus.extract.extractors import Favour
from trainrig.corpus.page_walk.page_walk import walk_page

_SURE: Final = 3 * block_trees.SCALE  # log-odds above this are clipped


@dataclass(frozen=True)
class ScoredBlocks:
    """The blocks of a page, and the log-odds that each is part of its text."""

    blocks: page_blocks.PageBlocks
    odds: Int32s  # log-odds, times SCALE

    def format_text(self, bullets: bool, as_format: Format = "text") -> str:
        """Return the text of the blocks that are more likely text than not."""
        return format_blocks(self.blocks, self.kept, bullets, as_format)

    @property
    def kept(self) -> Bools:
        """Mask of the blocks that are more likely text than not."""
        return self.odds > 0

    @functools.cached_property
    def lines(self) -> list[str]:
        """The text of each block."""
        return extract_lines(self.blocks)

    @property
    def characters(self) -> Int64s:
        """Number of characters of each block."""
        return self.blocks.numbers[:, page_blocks.CHARACTERS].astype(np.int64)

    @property
    def certainty(self) -> int:
        """Mean absolute log-odds per character, clipped, times SCALE; 0 without blocks."""
        sizes = np.minimum(np.abs(self.odds), _SURE)
        return int((self.characters * sizes).sum() // max(1, self.characters.sum()))


def cut_tree(tree: HTMLTree) -> page_blocks.PageBlocks:
    """Cut a parsed page into blocks."""
    walked = walk_page(serialise(tree), stops=True)
    if walked.ambiguous:
        replace_raw_text(tree)
        walked = walk_page(serialise(tree), stops=False)
    return page_blocks.PageBlocks(walked, tree.title or "")


def serialise(tree: HTMLTree) -> bytes:
    """Return a parsed page as HTML in UTF-8, without its head, of which nothing is displayed."""
    body = tree.body
    if body is not None and body.tag == "body":
        html = f"<html>{body.html}</html>"
    else:  # a page of frames
        html = str(tree.document.html) if tree.document else ""
    if "\0" in html:  # most pages have none, and `replace` is slow
        html = html.replace("\0", "")
    return html.encode("utf-8", "replace")


_HIDDEN_RAW_TEXT: Final = (
    "template,svg,style,iframe,noembed,noframes,script:not([type^='math/tex']),math script"
)
_VISIBLE_RAW_TEXT: Final = "plaintext,math xmp"


def replace_raw_text(tree: HTMLTree) -> None:
    """Remove hidden elements with raw text from the tree, and make ordinary ones of the visible.

    A page that is serialised again then has one reading.
    """
    document = tree.document
    if document is None:
        return
    for element in document.query_selector_all(_HIDDEN_RAW_TEXT).values():
        element.remove()
    for element in document.query_selector_all("script").values():
        if "<!--" in (element.text or ""):  # the end tag may be hidden in it
            element.remove()
    for element in document.query_selector_all(_VISIBLE_RAW_TEXT).values():
        name = "mtext" if element.closest("math") else "pre"
        ordinary = tree.create_element(name)
        assert ordinary is not None
        while element.first_child is not None:
            ordinary.append_child(element.first_child)
        element.replace_with(ordinary)


def score_blocks(blocks: page_blocks.PageBlocks) -> ScoredBlocks:
    """Score the blocks of a page by the decision trees."""
    return ScoredBlocks(blocks, block_trees.load().compute_odds(compute_features(blocks)))


_WORD = re.compile(r"\w+")
_GRAM_WORDS = 3  # words


def measure_agreement(blocks: list[str], text: str) -> Int32s:
    """Return for each block the thousandths of its three-word runs that `text` contains.

    A block of three words or fewer counts 1000 if a line of `text` has exactly these words, else 0.
    """
    words = _WORD.findall(text)
    grams = set(zip(*(words[i:] for i in range(_GRAM_WORDS)), strict=False))
    lines = {tuple(_WORD.findall(line)) for line in text.split("\n")}
    result = np.zeros(len(blocks), np.int32)
    for number, block in enumerate(blocks):
        its_words = _WORD.findall(block)
        if len(its_words) <= _GRAM_WORDS:
            result[number] = 1000 * (tuple(its_words) in lines)
        else:
            its_grams = list(zip(*(its_words[i:] for i in range(_GRAM_WORDS)), strict=False))
            result[number] = 1000 * sum(gram in grams for gram in its_grams) // len(its_grams)
    return result


Ask = Callable[[Favour], str]  # trafilatura's text of the current page, or ""

# Weights of the votes, in log-odds times SCALE: the limit of the trees' vote, either way, and
# trafilatura's vote, the mean of one or two runs.
_TREES_WEIGHT: Final = 2 * SCALE
_TRAFILATURA_WEIGHT: Final = 2 * SCALE
# Trafilatura runs a second time if more than these thousandths of the characters that either side
# keeps are kept by only one. F1 of `precise` in cross-validation (main_content.py) is .933 if it
# never does, .936 with 300.
_MOST_DISAGREEMENT: Final = 300


def vote(judged: ScoredBlocks, ask: Ask) -> ScoredBlocks:
    """Score the blocks by the votes of the trees and of trafilatura.

    Trafilatura runs in favour of precision, and a second time balanced if its first result differs
    much from the trees' choice. Where it finds nothing, the trees decide.
    """
    ours = np.asarray(judged.odds.clip(-_TREES_WEIGHT, _TREES_WEIGHT), np.int32)
    lines = judged.lines
    precise = _vote_by_text(lines, ask("precision"))
    if precise is not None and _measure_disagreement(judged, ours, precise) <= _MOST_DISAGREEMENT:
        return ScoredBlocks(judged.blocks, ours + precise)
    balance = _vote_by_text(lines, ask("balance"))
    texts = [odds for odds in (precise, balance) if odds is not None]
    theirs = sum(texts, np.zeros(len(lines), np.int32)) // max(1, len(texts))
    return ScoredBlocks(judged.blocks, ours + theirs)


def _vote_by_text(lines: list[str], text: str) -> Int32s | None:
    if not text:
        return None
    return (2 * measure_agreement(lines, text) - 1000) * (_TRAFILATURA_WEIGHT // 1000)


def _measure_disagreement(judged: ScoredBlocks, ours: Int32s, theirs: Int32s) -> int:
    """Return the thousandths of the characters kept by either side that only one side keeps."""
    one = ours > 0
    other = theirs > 0
    of_either = int(judged.characters[one | other].sum())
    return 1000 * int(judged.characters[one != other].sum()) // max(1, of_either)
