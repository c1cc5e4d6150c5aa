"""The blocks of a page with the likelihood that each is part of its text, and their text.

Likelihoods come from the decision trees alone, or from votes of the trees and of trafilatura, which
runs at one or two settings and votes for the blocks that its text contains as well.
"""

import dataclasses
import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract import block_trees, page_blocks
from trainrig.corpus.extract.block_features import compute_features
from trainrig.corpus.extract.block_trees import SCALE
from trainrig.corpus.extract.extractors import Favour

_TAG = re.compile(r"""<(?:[^>"']++|"[^"]*+"|'[^']*+')*+>""")


_BLOCK_SEPARATOR = "\0"  # separates blocks; no page contains it


def extract_lines(page: bytes, blocks: page_blocks.PageBlocks) -> list[str]:
    """Return the text of each block, without tags and entities."""
    return _clean_lines(page, blocks.spans, blocks.numbers[:, page_blocks.KIND])


def format_blocks(
    page: bytes, blocks: page_blocks.PageBlocks, kept: NDArray[np.bool_], bullets: bool
) -> str:
    """Join the kept blocks' lines, with a blank line where the page had one between them."""
    lines = iter(_clean_lines(page, blocks.spans[kept], blocks.numbers[kept, page_blocks.KIND]))
    parts: list[str] = []
    gap = False
    rows = blocks.numbers[
        :, (page_blocks.KIND, page_blocks.GAP, page_blocks.LIST_DEPTH, page_blocks.OPENS)
    ].tolist()
    for keep, (kind, blank, depth, opens) in zip(kept.tolist(), rows, strict=True):
        gap = gap or blank > 0
        line = next(lines) if keep else ""
        if not line:
            continue
        if bullets and kind == page_blocks.ITEM and opens:
            line = "  " * (depth - 1) + "- " + line
        if parts:
            parts.append("\n\n" if gap else "\n")
        parts.append(line)
        gap = False
    return "".join(parts)


def _clean_lines(page: bytes, spans: NDArray[np.int64], kinds: NDArray[np.int32]) -> list[str]:
    """Return the text at each of `spans`, all in one pass, as each regex call has a fixed cost."""
    if not len(spans):
        return []
    cuttings = _BLOCK_SEPARATOR.encode().join(page[start:end] for start, end in spans.tolist())
    text = cuttings.decode("utf-8", "replace")
    if "<" in text:
        text = _TAG.sub("", text)
    if "&" in text:
        text = html.unescape(text)
    lines = []
    for kind, line in zip(kinds.tolist(), text.split(_BLOCK_SEPARATOR), strict=True):
        if kind == page_blocks.CODE:
            lines.append(line.strip("\n"))
        else:
            lines.append(line.strip() if kind == page_blocks.ROW else " ".join(line.split()))
    return lines


_SURE: Final = 3 * block_trees.SCALE  # log-odds above this are clipped


@dataclass(frozen=True)
class ScoredBlocks:
    """The blocks of a page, and the log-odds that each is part of its text."""

    page: bytes  # minimal HTML that the blocks' offsets refer to
    blocks: page_blocks.PageBlocks
    odds: NDArray[np.int32]  # log-odds, times SCALE

    def format_text(self, bullets: bool) -> str:
        """Return the text of the blocks that are more likely text than not."""
        return format_blocks(self.page, self.blocks, self.kept, bullets)

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Mask of the blocks that are more likely text than not."""
        return self.odds > 0

    def keep_all(self) -> "ScoredBlocks":
        """Return a copy that keeps every block."""
        return dataclasses.replace(self, odds=np.ones_like(self.odds))

    @property
    def lines(self) -> list[str]:
        """The text of each block."""
        return extract_lines(self.page, self.blocks)

    @property
    def characters(self) -> NDArray[np.int64]:
        """Number of characters of each block."""
        return self.blocks.numbers[:, page_blocks.CHARACTERS].astype(np.int64)

    @property
    def certainty(self) -> int:
        """Mean absolute log-odds per character, clipped, times SCALE; 0 without blocks."""
        sizes = np.minimum(np.abs(self.odds), _SURE)
        return int((self.characters * sizes).sum() // max(1, self.characters.sum()))


def score_blocks(tree: HTMLTree, part: block_trees.Name) -> ScoredBlocks:
    """Score the blocks of resiliparse's main content, or of the whole page."""
    page = render_minimal_html(tree, part).replace("\0", "").encode("utf-8", "replace")
    blocks = page_blocks.PageBlocks(page, tree.title or "")
    return ScoredBlocks(page, blocks, block_trees.load(part).compute_odds(compute_features(blocks)))


def render_minimal_html(tree: HTMLTree, part: block_trees.Name) -> str:
    """Render the HTML that the blocks are cut from; the trees were trained on exactly this form."""
    return str(
        extract_plain_text(
            tree,
            preserve_formatting="minimal_html",
            main_content=part == "main",
            links=True,
            alt_texts=False,
            comments=False,
        )
    )


_WORD = re.compile(r"\w+")
_GRAM_WORDS = 3  # words


def measure_agreement(blocks: list[str], text: str) -> NDArray[np.int32]:
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

# Weights of the votes, in log-odds times SCALE. F1 in cross-validation as in main_content.py: .945.
_TREES_WEIGHT: Final = 2 * SCALE  # limit of the trees' vote, either way; F1 with 1.5: .937, 3: .944
# trafilatura's vote, either way, the mean of one or two runs; F1 with 1.5: .944, 2.5: .938
_TRAFILATURA_WEIGHT: Final = 2 * SCALE
# vote against blocks outside resiliparse's main content; F1 with 0: .942, 1.5: .945
_OUTSIDE_WEIGHT: Final = SCALE
# Trafilatura runs a second time (on 22% of the pages) if more than these thousandths of the
# characters that either side keeps are kept by only one. F1 if it always runs: .943, never: .937.
_MOST_DISAGREEMENT: Final = 200


def vote(main: ScoredBlocks, whole: ScoredBlocks, ask: Ask) -> ScoredBlocks:
    """Score the blocks of `whole` by the votes of the trees for both parts and of trafilatura.

    Trafilatura runs in favour of precision, and a second time balanced if its first result differs
    much from the trees' choice. Where it finds nothing, the trees decide.
    """
    ours = _vote_by_trees(main, whole)
    lines = whole.lines
    precise = _vote_by_text(lines, ask("precision"))
    if precise is not None and _measure_disagreement(whole, ours, precise) <= _MOST_DISAGREEMENT:
        return ScoredBlocks(whole.page, whole.blocks, ours + precise)
    balance = _vote_by_text(lines, ask("balance"))
    texts = [odds for odds in (precise, balance) if odds is not None]
    theirs = sum(texts, np.zeros(len(lines), np.int32)) // max(1, len(texts))
    return ScoredBlocks(whole.page, whole.blocks, ours + theirs)


def _vote_by_trees(main: ScoredBlocks, whole: ScoredBlocks) -> NDArray[np.int32]:
    """Average both scores on the blocks of `whole`; blocks that `main` lacks count 0 in it."""
    places = {digest: at for at, digest in reversed(list(enumerate(main.blocks.digests.tolist())))}
    at = np.array([places.get(digest, -1) for digest in whole.blocks.digests.tolist()], np.int64)
    inside = at >= 0
    of_main = np.zeros(len(at), np.int32)
    of_main[inside] = main.odds[at[inside]]
    both = of_main.clip(-_TREES_WEIGHT, _TREES_WEIGHT) + whole.odds.clip(
        -_TREES_WEIGHT, _TREES_WEIGHT
    )
    return np.asarray(both // 2 - np.where(inside, 0, _OUTSIDE_WEIGHT), np.int32)


def _vote_by_text(lines: list[str], text: str) -> NDArray[np.int32] | None:
    if not text:
        return None
    return (2 * measure_agreement(lines, text) - 1000) * (_TRAFILATURA_WEIGHT // 1000)


def _measure_disagreement(
    whole: ScoredBlocks, ours: NDArray[np.int32], theirs: NDArray[np.int32]
) -> int:
    """Return the thousandths of the characters kept by either side that only one side keeps."""
    one = ours > 0
    other = theirs > 0
    of_either = int(whole.characters[one | other].sum())
    return 1000 * int(whole.characters[one != other].sum()) // max(1, of_either)
