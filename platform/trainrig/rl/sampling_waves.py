"""Sampling waves of a batch with partial rollouts, and assembly of a batch from sampled groups.

A wave continues each unfinished completion by up to `budget` tokens. If the wave has room left, it
also starts the groups of further prompts. So if no completion needs more than the budget, a batch
is one wave of new prompts. The groups of a batch, and the completions left for the next batch,
follow from what the previous batch left and from the weights. A batch prefers groups with unequal
rewards.

A group is identified by the place of its prompt in the order of prompts. Groups start, and are
stored, in that order. Shapes: R completions, T tokens of the longest, G groups, S completions of
one group; in a batch, B completions of a unit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.rl.reinforcement_run_file import Rollouts
from trainrig.rl.rollout_maker import Arrays, Waves
from trainrig.tokens import batches

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
        for group in range(len(unit[batches.IDS]) // wanted.samples)
    ]
    flat = [bool(unit[batches.FLAT][group * wanted.samples]) for unit, group in groups]
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
    fillers = {batches.IDS: padding, batches.TARGETS: batches.IGNORE, batches.SAMPLED: 0}
    width = max(
        int((unit[batches.TARGETS] != batches.IGNORE).any(0).nonzero()[0].max(initial=0))
        for unit in cut
    )
    joined: dict[str, NDArray[Any]] = {}
    for name in cut[0]:
        arrays = [unit[name] for unit in cut]
        if name in fillers:
            arrays = [set_width(array, width + 1, fillers[name]) for array in arrays]
        joined[name] = np.concatenate(arrays)
    joined[batches.WAVES] = np.full(len(joined[batches.IDS]), waves, dtype=np.float32)
    return joined


def set_width(array_BT: NDArray[Any], width: int, filler: int) -> NDArray[Any]:
    """Return the array cut, or padded with `filler` at the end of each row, to `width`."""
    missing = max(0, width - array_BT.shape[1])
    return np.pad(array_BT[:, :width], ((0, 0), (0, missing)), constant_values=filler)


# Arrays of completions in progress. Further arrays are SAMPLED and BEHAVIOUR [R, T], FINISHED [R],
# and for ended completions TOTALS, REWARD_FAULTS and the parts of the reward, all [R].
PLACE = "place"  # [R] place of the prompt
SAMPLE = "sample"  # [R] number of the completion in its group
BORN = "born"  # [R] number of the batch that started the completion
OVER = "over"  # [R] 1: the completion has ended
LENGTH = "length"  # [R] tokens so far
COMPLETIONS = "completions"  # [R, T] token ids
VERSIONS = "versions"  # [R, T] batch whose weights sampled the token
NEXT = "next"  # [1] place of the next prompt to start
NUMBER = "number"  # [1] batch that the wave samples for

Rows = dict[str, NDArray[Any]]
# Function that builds the sampled micro-batches of a batch from its number, the rows of its groups,
# the number of waves it took, and the number of completions that are still unfinished.
Assemble = Callable[[int, Rows, int, int], list[Arrays]]


class PartialWaves(Waves):
    """Sampling waves of one batch with partial rollouts."""

    def __init__(
        self,
        wanted: Rollouts,
        parts: Sequence[str],
        number: int,
        left: Arrays,
        assemble: Assemble,
    ) -> None:
        """Continue the completions that the previous batch left.

        Args:
            wanted: Settings of the rollouts.
            parts: Names of the rewards.
            number: Number of the batch.
            left: Result of `list_left` of the batch before; empty for the first batch.
            assemble: Function that builds the sampled micro-batches.
        """
        assert wanted.partial, "completions are left off"
        self._wanted = wanted
        self._parts = parts
        self._number = number
        self._staleness = wanted.partial.staleness
        self._assemble = assemble
        self._rows: Rows = {name: array for name, array in left.items() if name != NEXT}
        self._next = int(left[NEXT][0]) if left else 0
        self._unfinished = np.zeros(0, dtype=np.int64)
        self._waves = 0

    def next(self) -> tuple[int, Arrays]:
        """Start new groups, and return the number of units and the completions to continue."""
        self._begin_groups()
        self._unfinished = np.flatnonzero(self._rows[OVER] == 0)
        units = -(-len(self._unfinished) // self._wanted.micro_batch)
        to_continue = _trim(_select_rows(self._rows, self._unfinished))
        return units, {**to_continue, NUMBER: np.array([self._number])}

    def take(self, units: Sequence[Arrays]) -> None:
        """Store the continued completions of the wave that `next` described."""
        rest = np.delete(np.arange(len(self._rows[PLACE])), self._unfinished)
        # Restore the order of the completions from before the wave.
        back = np.argsort(np.concatenate([rest, self._unfinished]), kind="stable")
        self._rows = _select_rows(_concatenate([_select_rows(self._rows, rest), *units]), back)
        self._waves += 1

    def find_filled(self) -> Sequence[Arrays] | None:
        """Return the sampled micro-batches of the batch, or None to request another wave."""
        if not self._rows:
            return None
        samples = self._wanted.samples
        born_G = self._rows[BORN][::samples]
        whole_G = self._rows[OVER].reshape(-1, samples).min(1) == 1
        groups = choose_groups(whole_G, born_G, self._number, self._wanted.prompts, self._staleness)
        if groups is None:
            return None
        is_taken_R = np.repeat(np.isin(np.arange(len(born_G)), groups), samples)
        taken = _select_rows(self._rows, is_taken_R)
        self._rows = _trim(_select_rows(self._rows, ~is_taken_R))
        unfinished = int((self._rows[OVER] == 0).sum())
        return self._assemble(self._number, taken, self._waves, unfinished)

    def list_left(self) -> Arrays:
        """Return the completions, and the place of the next prompt, for the next batch."""
        return {**self._rows, NEXT: np.array([self._next])}

    def _begin_groups(self) -> None:
        """Start the new groups that fit into a wave and can be trained on within the staleness."""
        wanted = self._wanted
        rows = len(self._rows[PLACE]) if self._rows else 0
        unfinished = int((self._rows[OVER] == 0).sum()) if self._rows else 0
        free_groups = wanted.prompts - -(-unfinished // wanted.samples)
        in_time = wanted.prompts * (self._staleness + 1) - rows // wanted.samples
        count = max(0, min(free_groups, in_time))
        begun = self._build_rows(np.arange(self._next, self._next + count))
        self._rows = _concatenate([self._rows, begun]) if self._rows else begun
        self._next += count

    def _build_rows(self, places: NDArray[np.int64]) -> Rows:
        """Return empty completions for the prompts at `places`."""
        samples = self._wanted.samples
        count = len(places) * samples
        zeros = np.zeros(count, dtype=np.int64)
        no_tokens = np.zeros((count, 0))
        scores: Rows = {
            TOTALS: zeros.astype(np.float64),
            batches.REWARD_FAULTS: zeros.astype(np.float32),
        }
        scores |= {batches.REWARD_PART + name: zeros.astype(np.float32) for name in self._parts}
        return {
            PLACE: np.repeat(places, samples),
            SAMPLE: np.tile(np.arange(samples), len(places)),
            BORN: zeros + self._number,
            OVER: zeros,
            batches.FINISHED: zeros,
            LENGTH: zeros,
            COMPLETIONS: no_tokens.astype(np.int64),
            VERSIONS: no_tokens.astype(np.int64),
            batches.SAMPLED: no_tokens.astype(np.float32),
            batches.BEHAVIOUR: no_tokens.astype(np.float32),
            **scores,
        }


def choose_groups(
    whole_G: NDArray[np.bool_],
    born_G: NDArray[np.int64],
    number: int,
    prompts: int,
    staleness: int,
) -> NDArray[np.int64] | None:
    """Choose the `prompts` oldest completed groups for batch `number`.

    Returns None if there are fewer completed groups, or if the remaining groups could not all be
    trained on in time.

    A group is due `staleness` batches after the batch that started it. The oldest completed groups
    are taken first, so the rest can be in time if, for each k, at most k × `prompts` groups are due
    within the next k batches. Once all groups are completed this holds, if it held before and at
    most `prompts` × (`staleness` + 1) groups were ever in progress.
    """
    chosen = np.flatnonzero(whole_G)[:prompts]
    if len(chosen) < prompts:
        return None
    due_G = np.delete(born_G, chosen) + staleness - number  # batches until each group is due
    within = [int((due_G <= k).sum()) <= k * prompts for k in range(staleness + 1)]
    return chosen if all(within) else None


def select_unit(wave_input: Arrays, index: int, micro_batch: int) -> Rows:
    """Return the completions of unit `index` of a wave."""
    rows = {name: array for name, array in wave_input.items() if name != NUMBER}
    return _trim(_select_rows(rows, slice(index * micro_batch, (index + 1) * micro_batch)))


def _select_rows(rows: Arrays, which: Any) -> Rows:
    return {name: array[which] for name, array in rows.items()}


def _trim(rows: Rows) -> Rows:
    """Cut the arrays of `rows` to the longest completion."""
    return _widen(rows, int(rows[LENGTH].max(initial=0)))


def _widen(rows: Arrays, width: int) -> Rows:
    return {
        name: set_width(array, width, 0) if array.ndim == 2 else array
        for name, array in rows.items()
    }


def _concatenate(parts: Sequence[Arrays]) -> Rows:
    """Concatenate `parts`, padded to the longest completion."""
    width = max(part[COMPLETIONS].shape[1] for part in parts)
    widened = [_widen(part, width) for part in parts]
    return {name: np.concatenate([part[name] for part in widened]) for name in widened[0]}
