"""Votes on the blocks of a page by the trees and by trafilatura, at one or two settings."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.extract.agreement import measure_agreement
from trainrig.corpus.extract.block_model.trees import SCALE
from trainrig.corpus.extract.kinds import Favour
from trainrig.corpus.extract.verdict import ScoredBlocks

Ask = Callable[[Favour], str]  # trafilatura's text of the current page, or ""

# Weights of the votes, in log-odds times SCALE. F1 in cross-validation as in main_content.py: .945.
_TREES: Final = 2 * SCALE  # limit of the trees' vote, either way; F1 with 1.5: .937, 3: .944
# trafilatura's vote, either way, the mean of one or two runs; F1 with 1.5: .944, 2.5: .938
_OTHERS: Final = 2 * SCALE
# vote against blocks outside resiliparse's main content; F1 with 0: .942, 1.5: .945
_OUTSIDE: Final = SCALE
# Trafilatura runs a second time (on 22% of the pages) if more than these thousandths of the
# characters that either side keeps are kept by only one. F1 if it always runs: .943, never: .937.
_APART: Final = 200


def vote(main: ScoredBlocks, whole: ScoredBlocks, ask: Ask) -> ScoredBlocks:
    """Score the blocks of `whole` by the votes of the trees for both parts and of trafilatura.

    Trafilatura runs in favour of precision, and a second time balanced if its first result differs
    much from the trees' choice. Where it finds nothing, the trees decide.
    """
    ours = _vote_by_trees(main, whole)
    lines = whole.lines
    precise = _vote_by_text(lines, ask("precision"))
    if precise is not None and _measure_disagreement(whole, ours, precise) <= _APART:
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
    both = of_main.clip(-_TREES, _TREES) + whole.odds.clip(-_TREES, _TREES)
    return np.asarray(both // 2 - np.where(inside, 0, _OUTSIDE), np.int32)


def _vote_by_text(lines: list[str], text: str) -> NDArray[np.int32] | None:
    if not text:
        return None
    return (2 * measure_agreement(lines, text) - 1000) * (_OTHERS // 1000)


def _measure_disagreement(
    whole: ScoredBlocks, ours: NDArray[np.int32], theirs: NDArray[np.int32]
) -> int:
    """Return the thousandths of the characters kept by either side that only one side keeps."""
    one = ours > 0
    other = theirs > 0
    of_either = int(whole.characters[one | other].sum())
    return 1000 * int(whole.characters[one != other].sum()) // max(1, of_either)
