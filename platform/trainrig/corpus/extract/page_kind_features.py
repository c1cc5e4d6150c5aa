"""Features of a page's text, and the rules that tell its kind where the page declares none.

The rules were chosen on pages of other hosts than those that docs/evidence/curation.md reports on.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainrig.corpus.extract import page_blocks
from trainrig.corpus.extract.block_format import extract_lines
from trainrig.corpus.extract.main_content import is_declaration
from trainrig.corpus.extract.page_blocks import PageBlocks
from trainrig.corpus.extract.page_kinds import PageKind
from trainrig.corpus.page_walk.page_text import CODE, PARAGRAPH, TEXT

# Words, or characters in languages without spaces, from which on a sentence is prose.
_LEAST_PROSE_WORDS: Final = 12
_LEAST_PROSE_CHARACTERS: Final = 80


@dataclass(frozen=True)
class TextFeatures:
    """Counts of a page's text outside furniture, and shares of its characters."""

    characters: int
    blocks: int
    prose_blocks: int  # paragraphs of sentences with few links
    prose: float  # share in prose blocks
    links: float  # share in links, without their white space: .8 if all text is linked
    code: float  # share in code
    declarations: int  # lines such as "read(name, pwd=None)"


def measure_text(blocks: PageBlocks) -> TextFeatures:
    """Measure the text of `blocks` outside furniture."""
    outside = blocks.outside_furniture
    numbers = blocks.numbers
    characters = np.where(outside, numbers[:, page_blocks.CHARACTERS], 0).astype(np.int64)
    linked = np.where(outside, numbers[:, page_blocks.LINK_CHARACTERS], 0).astype(np.int64)
    kind = numbers[:, page_blocks.KIND]
    prose = (
        ((kind == PARAGRAPH) | (kind == TEXT))
        & (
            (numbers[:, page_blocks.WORDS] >= _LEAST_PROSE_WORDS)
            | (characters >= _LEAST_PROSE_CHARACTERS)
        )
        & (numbers[:, page_blocks.ENDS_SENTENCE] != 0)
        & (2 * linked < characters)
    )
    code = kind == CODE
    lines = extract_lines(blocks)
    declares = [
        is_declaration(line) for line, counts in zip(lines, outside & ~code, strict=True) if counts
    ]
    everything = int(characters.sum())

    def share(part: int) -> float:
        return round(part / max(1, everything), 4)

    return TextFeatures(
        characters=everything,
        blocks=int(outside.sum()),
        prose_blocks=int(prose.sum()),
        prose=share(int(characters[prose].sum())),
        links=share(int(linked.sum())),
        code=share(int(characters[code].sum())),
        declarations=sum(declares),
    )


# The text of a page with fewer characters tells nothing.
_LITTLE_TEXT: Final = 200
_LEAST_DECLARATIONS: Final = 3
_LEAST_DECLARATIONS_SHARE: Final = 0.1  # declarations as a share of the blocks
_MUCH_CODE: Final = 0.05  # share of the characters
_MANY_POSTS: Final = 3
_MANY_LINKS: Final = 0.5
# Share of the text in links from which on paragraphs do not count. Menus of old pages are not
# marked as navigation, so that over half of the text around an article may be links.
MOSTLY_LINKS: Final = 0.7
_SOME_PROSE: Final = 0.3
_LEAST_PROSE_BLOCKS: Final = 3


def judge_text(text: TextFeatures, is_dated: bool, posts: int) -> tuple[PageKind, str]:
    """Return the kind of a page that declares none, and the feature that decided.

    Args:
        text: features of the page's text.
        is_dated: whether the page declares a day of publication, as articles do.
        posts: number of elements that are numbered as posts.
    """
    if text.characters < _LITTLE_TEXT:
        return "other", "text: little"
    if not is_dated:
        least = max(_LEAST_DECLARATIONS, _LEAST_DECLARATIONS_SHARE * text.blocks)
        if text.declarations >= least:
            return "documentation", "text: declarations"
        if text.code >= _MUCH_CODE:
            return "documentation", "text: code"
    has_prose = text.prose_blocks >= _LEAST_PROSE_BLOCKS
    if text.links >= (MOSTLY_LINKS if has_prose else _MANY_LINKS):
        return "listing", "text: links"
    if posts >= _MANY_POSTS and not is_dated:
        return "forum", "text: numbered posts"
    if text.prose >= _SOME_PROSE or has_prose:
        return "article", "text: prose"
    return "other", "text: neither prose nor links"
