"""Assembly of a batch from the groups of several waves, preferring groups with unequal rewards.

Shapes: B completions of a unit, T positions, G prompts, S completions of each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.posttrain.rollouts.run_file import Rollouts
from trainrig.tokens.batch_makers import Arrays
from trainrig.tokens.batches import FLAT, IDS, IGNORE, SAMPLED, TARGETS, WAVES

# Names of arrays that sampled units have and finished micro-batches lack.
TOTALS = "totals"  # [G, S] float64 weighted total rewards
PROMPTS = "prompts"  # [B] row numbers of the prompts


def fill_batch(
    drawn: Sequence[Sequence[Arrays]], wanted: Rollouts, padding: int
) -> list[Arrays] | None:
    """Build the micro-batches of the first `wanted.prompts` groups that are not flat.

    A group is flat if all its completions have the same reward. Groups stay in the order in which
    they were drawn. Returns None if there are too few and another wave may be drawn; after the last
    wave, the first flat groups fill the batch. `padding` is the token id that pads rows.
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
    by_use = sorted(
        range(len(groups)), key=flat.__getitem__
    )  # stable sort: keeps the order of drawing
    kept = sorted(by_use[: wanted.prompts])
    size = wanted.micro_batch // wanted.samples  # groups of a micro-batch
    return [
        _join([groups[n] for n in kept[begin : begin + size]], wanted.samples, padding, len(drawn))
        for begin in range(0, len(kept), size)
    ]


def _join(
    groups: Sequence[tuple[Arrays, int]], samples: int, padding: int, waves: int
) -> dict[str, NDArray[Any]]:
    """Concatenate the arrays of `groups`, trimmed to the longest of their rows."""
    cut = [
        {
            name: array[group : group + 1] if name == TOTALS else array[rows]
            for name, array in unit.items()
        }
        for unit, group in groups
        for rows in [slice(group * samples, (group + 1) * samples)]
    ]
    fillers = {IDS: padding, TARGETS: IGNORE, SAMPLED: 0}
    width = max(int((unit[TARGETS] != IGNORE).any(0).nonzero()[0].max(initial=0)) for unit in cut)
    joined: dict[str, NDArray[Any]] = {}
    for name in cut[0]:
        arrays = [unit[name] for unit in cut]
        if name in fillers:
            arrays = [set_width(array, width + 1, fillers[name]) for array in arrays]
        joined[name] = np.concatenate(arrays)
    joined[WAVES] = np.full(len(joined[IDS]), waves, dtype=np.float32)
    return joined


def set_width(array_BT: NDArray[Any], width: int, filler: int) -> NDArray[Any]:
    """Return the array cut, or padded with `filler` at the end of each row, to `width`."""
    missing = max(0, width - array_BT.shape[1])
    return np.pad(array_BT[:, :width], ((0, 0), (0, missing)), constant_values=filler)
