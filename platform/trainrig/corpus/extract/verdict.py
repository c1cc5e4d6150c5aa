"""The blocks of a page with the likelihood that each is part of its text."""

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract.block_model import trees
from trainrig.corpus.extract.block_model.blocks import CHARACTERS, PageBlocks
from trainrig.corpus.extract.block_model.features import compute_features
from trainrig.corpus.extract.block_model.text import extract_lines, format_blocks

_SURE: Final = 3 * trees.SCALE  # log-odds above this are clipped


@dataclass(frozen=True)
class ScoredBlocks:
    """The blocks of a page, and the log-odds that each is part of its text."""

    page: bytes  # minimal HTML that the blocks' offsets refer to
    blocks: PageBlocks
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
        return self.blocks.numbers[:, CHARACTERS].astype(np.int64)

    @property
    def certainty(self) -> int:
        """Mean absolute log-odds per character, clipped, times SCALE; 0 without blocks."""
        sizes = np.minimum(np.abs(self.odds), _SURE)
        return int((self.characters * sizes).sum() // max(1, self.characters.sum()))


def judge(tree: HTMLTree, part: trees.Name) -> ScoredBlocks:
    """Score the blocks of resiliparse's main content, or of the whole page."""
    page = render_minimal_html(tree, part).replace("\0", "").encode("utf-8", "replace")
    blocks = PageBlocks(page, tree.title or "")
    return ScoredBlocks(page, blocks, trees.load(part).compute_odds(compute_features(blocks)))


def render_minimal_html(tree: HTMLTree, part: trees.Name) -> str:
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
