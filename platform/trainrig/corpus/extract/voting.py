"""A vote on the blocks of a page: the trees on one side, on the other trafilatura, twice."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.extract.agreement import measure_agreement
from trainrig.corpus.extract.block_model.trees import SCALE
from trainrig.corpus.extract.kinds import Favour
from trainrig.corpus.extract.verdict import ScoredBlocks

Ask = Callable[[Favour], str]  # trafilatura's text of the page at hand, "" where it finds none

# What voters may say, in log-odds times SCALE. F1 in cross-validation as in main_content.py: .945.
_TREES: Final = 2 * SCALE  # at most, either way; 1.5: .937, 3: .944
_OTHERS: Final = 2 * SCALE  # trafilatura, either way, half of it a run of two; 1.5: .944, 2.5: .938
_OUTSIDE: Final = SCALE  # against what is not in resiliparse's main content; 0: .942, 1.5: .945
# Thousandths of the characters that either keeps and the other does not, from which on trafilatura
# is asked a second time: of 22% of the pages. Always .943, never .937.
_APART: Final = 200


def vote(main: ScoredBlocks, whole: ScoredBlocks, ask: Ask) -> ScoredBlocks:
    """The blocks of `whole` when the trees for each part and trafilatura have voted.

    Trafilatura is asked for precision, and for balance where precision agrees little with the
    trees. Where it finds nothing, the trees decide.
    """
    ours = _vote_by_trees(main, whole)
    lines = whole.lines
    precise = _vote_by_text(lines, ask("precision"))
    if precise is not None and _measure_disagreement(whole, ours, precise) <= _APART:
        return ScoredBlocks(whole.page, whole.blocks, ours + precise)
    balance = _vote_by_text(lines, ask("balance"))
    texts = [each for each in (precise, balance) if each is not None]
    theirs = sum(texts, np.zeros(len(lines), np.int32)) // max(1, len(texts))
    return ScoredBlocks(whole.page, whole.blocks, ours + theirs)


def _vote_by_trees(main: ScoredBlocks, whole: ScoredBlocks) -> NDArray[np.int32]:
    """The mean of both, on the blocks of `whole`; `main` is of two minds about those it lacks."""
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
    """Of the characters that either keeps, how many thousandths the other does not."""
    one, other = ours > 0, theirs > 0
    of_either = int(whole.characters[one | other].sum())
    return 1000 * int(whole.characters[one != other].sum()) // max(1, of_either)
