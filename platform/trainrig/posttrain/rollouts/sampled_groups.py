"""A batch of the groups of several waves: those of which something is learnt.

Shapes: B completions of a unit, T positions, G prompts, S completions of each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.posttrain.rollouts.run_file import Rollouts
from trainrig.tokens.batch_makers import Arrays
from trainrig.tokens.batches import FLAT, IDS, IGNORE, SAMPLED, TARGETS, WAVES

# Beside the arrays of a batch, of what was sampled: weighted rewards, and numbers of prompts' rows.
TOTALS, PROMPTS = "totals", "prompts"  # [G, S] float64, [B]


def fill_batch(
    drawn: Sequence[Sequence[Arrays]], wanted: Rollouts, padding: int
) -> list[Arrays] | None:
    """The micro-batches of the first `wanted.prompts` groups that are not flat, in the order in
    which they were drawn; where the last wave leaves fewer, of the first flat ones too. None:
    there are fewer, and another wave may be drawn.

    `padding`: the id that fills rows up.
    """
    groups = [
        (unit, group)
        for wave in drawn
        for unit in wave
        for group in range(len(unit[IDS]) // wanted.samples)
    ]
    flat = [bool(unit[FLAT][group * wanted.samples]) for unit, group in groups]
    if flat.count(False) < wanted.prompts and len(drawn) < wanted.waves:
        return None
    by_use = sorted(range(len(groups)), key=flat.__getitem__)  # stable: as drawn
    kept = sorted(by_use[: wanted.prompts])
    each = wanted.micro_batch // wanted.samples
    return [
        _join([groups[n] for n in kept[begin : begin + each]], wanted.samples, padding, len(drawn))
        for begin in range(0, len(kept), each)
    ]


def _join(
    groups: Sequence[tuple[Arrays, int]], samples: int, padding: int, waves: int
) -> dict[str, NDArray[Any]]:
    """The arrays of some groups of units, as wide as their longest row needs."""
    cut = [
        {
            name: array[group : group + 1] if name == TOTALS else array[rows]
            for name, array in unit.items()
        }
        for unit, group in groups
        for rows in [slice(group * samples, (group + 1) * samples)]
    ]
    fillers = {IDS: padding, TARGETS: IGNORE, SAMPLED: 0}
    width = max(int((each[TARGETS] != IGNORE).any(0).nonzero()[0].max(initial=0)) for each in cut)
    joined: dict[str, NDArray[Any]] = {}
    for name in cut[0]:
        arrays = [each[name] for each in cut]
        if name in fillers:
            arrays = [set_width(each, width + 1, fillers[name]) for each in arrays]
        joined[name] = np.concatenate(arrays)
    joined[WAVES] = np.full(len(joined[IDS]), waves, dtype=np.float32)
    return joined


def set_width(array_BT: NDArray[Any], width: int, filler: int) -> NDArray[Any]:
    """Cut, or filled up at the end of rows."""
    missing = max(0, width - array_BT.shape[1])
    return np.pad(array_BT[:, :width], ((0, 0), (0, missing)), constant_values=filler)
