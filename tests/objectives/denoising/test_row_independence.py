"""Corruptions are functions of a row and its number, not of its micro-batch."""

from typing import Any

import numpy as np
import pytest

from trainrig.objectives.denoising.mixture import take_rows
from trainrig.objectives.objective_interface import find_corruption
from trainrig.objectives.objective_kinds import (
    UL2,
    FillInTheMiddle,
    MaskedLM,
    PrefixLM,
    ReplacedTokenDetection,
    SpanCorruption,
)
from trainrig.tokens.batches import IDS, IGNORE, TARGETS

LENGTH = 128
ROWS = 6
CASES: dict[str, Any] = {
    "MaskedLM": MaskedLM(unit="word"),
    "FillInTheMiddle": FillInTheMiddle(rate=1.0),
    "PrefixLM": PrefixLM(),
    "ReplacedTokenDetection": ReplacedTokenDetection(),
    "SpanCorruption": SpanCorruption(),
    # Joined rows hold the spans of whole documents, and differ in their width.
    "without mode": SpanCorruption(joined=True),
    "closed": SpanCorruption(joined=True, closing_sentinel=True, mode="X"),
    **{named.name: named.objective for named in UL2(joined=True).list_named()},
}


@pytest.mark.parametrize("name", CASES)
def test_a_row_does_not_depend_on_the_other_rows(name, encoder, make_rows):
    """Neither does it depend on the step. Rows of a micro-batch differ only in their padding."""
    objective = CASES[name]
    apart = getattr(objective, "joined", False) or name == "PrefixLM"
    corruption = find_corruption(objective, encoder, LENGTH)
    micro = make_rows(ROWS, LENGTH, mean=40, first=100, apart=apart)
    together = corruption.apply(micro, 0)
    for row in range(ROWS):
        alone = corruption.apply(take_rows(micro, np.array([row])), 9)
        for kind, array in alone.arrays.items():
            width = array.shape[1] if array.ndim > 1 else None
            np.testing.assert_array_equal(array[0], together.arrays[kind][row][..., :width], kind)
        mine = together.pieces[together.pieces[:, 0] == row, 1:]
        np.testing.assert_array_equal(alone.pieces[:, 1:], mine)
        width = alone.arrays[TARGETS].shape[1]
        assert (together.targets[row, width:] == IGNORE).all()
        assert (
            together.arrays[IDS][row, alone.ids.shape[1] :] == encoder.special_tokens.padding
        ).all()


# A prefix that a row's end follows is not drawn.
@pytest.mark.parametrize("name", [name for name in CASES if name != "S-0.25-end"])
def test_another_row_number_or_seed_gives_another_corruption(name, encoder, make_rows):
    objective = CASES[name]
    apart = getattr(objective, "joined", False) or name == "PrefixLM"
    reseeded = objective.model_copy(update={"corruption_seed": 1})
    drawn = []
    for other, first in ((objective, 100), (objective, 101), (reseeded, 100)):
        micro = make_rows(ROWS, LENGTH, mean=40, first=first, apart=apart)
        before = micro.ids.copy()
        found = find_corruption(other, encoder, LENGTH).apply(micro, 0)
        drawn.append({kind: array.tobytes() for kind, array in found.arrays.items()})
        np.testing.assert_array_equal(micro.ids, before)  # not changed in place
    assert drawn[0] != drawn[1] and drawn[0] != drawn[2]
