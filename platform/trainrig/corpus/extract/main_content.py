"""The article of a page, without what stands around it, at one of three prices."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract import trafilatura_text
from trainrig.corpus.extract.agreement import shares
from trainrig.corpus.extract.block_model import trees
from trainrig.corpus.extract.block_model.blocks import CHARACTERS, Blocks
from trainrig.corpus.extract.block_model.features import features
from trainrig.corpus.extract.block_model.text import lines_of, text_of
from trainrig.corpus.extract.kinds import TRAFILATURA_NODES, MainContent, Trafilatura

# The figures below are F1 of five-fold cross-validation over the hosts that the trees were trained
# on (tests/benchmarks/train_block_model.py), where trafilatura has .920.

# Characters; at fewer, the article may stand outside what resiliparse takes for the main content.
# .917 without a second look at the whole page, .923 with one at 250, at 500 and at 1,000.
LITTLE: Final = 250
# Mean log-odds of a character's block (times SCALE) below which `precise` asks trafilatura: half of
# the pages, .940. A fifth of them .933, three tenths .937, all .943.
UNSURE: Final = 27_500
_SURE: Final = 30_000  # log-odds that count as no surer than this
# What trafilatura's word counts for, in log-odds, either way. 1: .937, 3: .936.
_VOTE: Final = 2
# Where their text is as much longer than ours with their vote, the main content lacks some of it,
# and they vote on the whole page. 5% of the pages; 1.25, and never: as good.
_LONGER: Final = 1.1


def main_content(tree: HTMLTree, html: str, settings: MainContent) -> str:
    """The text of `tree`'s article; `html` is what it was parsed from."""
    if settings.quality == "fast":
        return str(
            extract_plain_text(
                tree,
                main_content=True,
                list_bullets=settings.list_bullets,
                alt_texts=False,
                comments=False,
            )
        )
    judged = judge(tree, "main")
    text = judged.text(settings.list_bullets)
    if len(text) < LITTLE:
        whole = judge(tree, "whole")
        other = whole.text(settings.list_bullets)
        if len(other) > len(text):
            judged, text = whole, other
    if (
        settings.quality == "precise"
        and judged.certainty < UNSURE
        and html.count("<") <= TRAFILATURA_NODES
    ):
        theirs = trafilatura_text.extract(html, Trafilatura(favour="precision"))
        if theirs:
            text = judged.voted_on(theirs).text(settings.list_bullets)
            if len(theirs) > _LONGER * len(text):
                return judge(tree, "whole").voted_on(theirs).text(settings.list_bullets)
    return text


@dataclass(frozen=True)
class Judged:
    """The blocks of a page, and how likely each is a part of its text."""

    page: bytes  # what the blocks are places in
    blocks: Blocks
    odds: NDArray[np.int32]  # log, times SCALE

    def text(self, bullets: bool) -> str:
        """The blocks that are more likely text than not."""
        return text_of(self.page, self.blocks, self.odds > 0, bullets)

    @property
    def certainty(self) -> int:
        """The mean size of the log-odds, over characters, times SCALE; 0 without blocks."""
        characters = self.blocks.numbers[:, CHARACTERS].astype(np.int64)
        sizes = np.minimum(np.abs(self.odds), _SURE)
        return int((characters * sizes).sum() // max(1, characters.sum()))

    def voted_on(self, theirs: str) -> "Judged":
        """The same when another extractor, whose text this is, has had its say."""
        share = shares(lines_of(self.page, self.blocks), theirs)
        vote = (2 * share - 1000) * (_VOTE * trees.SCALE // 1000)
        return Judged(self.page, self.blocks, self.odds + vote)


def judge(tree: HTMLTree, part: trees.Name) -> Judged:
    """The blocks of resiliparse's main content, or of the whole page."""
    page = minimal_html(tree, part).encode("utf-8", "replace")
    blocks = Blocks(page, tree.title or "")
    return Judged(page, blocks, trees.load(part).odds(features(blocks)))


def minimal_html(tree: HTMLTree, part: trees.Name) -> str:
    """What the blocks are cut from. The trees were trained on exactly this."""
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
