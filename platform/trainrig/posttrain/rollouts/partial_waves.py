"""Waves of a batch whose completions are left off and gone on with: what each wave is asked, which
groups make the batch, and what is left for the next.

A wave goes on with each completion that is not whole, by so many tokens. Where that leaves room, it
begins the groups of further prompts; so with a budget that no completion needs more than, a batch
is one wave of its own prompts. What a batch is of, and what it leaves, follows from what the batch
before left and from the weights.

Groups are known by the place of their prompt in the order of prompts, in which they are begun and
lie here. Shapes: R completions, T tokens of the longest, G groups, S completions of each.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainrig.posttrain.rollouts.run_file import Rollouts
from trainrig.posttrain.rollouts.sampled_groups import TOTALS, set_width
from trainrig.tokens.batch_makers import Arrays, Waves
from trainrig.tokens.batches import BEHAVIOUR, FINISHED, REWARD_FAULTS, REWARD_PART, SAMPLED

# Of completions on their way, beside SAMPLED, BEHAVIOUR [R, T], FINISHED, and for those that are
# over TOTALS, REWARD_FAULTS and parts of the reward, all [R].
PLACE, SAMPLE = "place", "sample"  # [R] of the prompt, and number among those of its prompt
BORN = "born"  # [R] batch for which it was begun
OVER = "over"  # [R] 1: whole
LENGTH = "length"  # [R] tokens so far
COMPLETIONS, VERSIONS = "completions", "versions"  # [R, T] ids, and the batch that sampled each
NEXT = "next"  # [1] place of the next prompt
NUMBER = "number"  # [1] batch of a wave

Rows = dict[str, NDArray[Any]]
# Micro-batches, sampled, of rows of whole groups; how many waves that took, and how many
# completions are unfinished then.
Assemble = Callable[[int, Rows, int, int], list[Arrays]]


class PartialWaves(Waves):
    """The waves of one batch."""

    def __init__(
        self,
        wanted: Rollouts,
        parts: Sequence[str],
        number: int,
        left: Arrays,
        assemble: Assemble,
    ) -> None:
        """`parts`: names of those of the reward; `left`: by the batch before batch `number`."""
        assert wanted.partial, "completions are left off"
        self._wanted, self._parts, self._number = wanted, parts, number
        self._staleness, self._assemble = wanted.partial.staleness, assemble
        self._rows: Rows = {name: array for name, array in left.items() if name != NEXT}
        self._next = int(left[NEXT][0]) if left else 0
        self._asked = np.zeros(0, dtype=np.int64)
        self._waves = 0

    def next(self) -> tuple[int, Arrays]:
        """See Waves."""
        self._begin_groups()
        self._asked = np.flatnonzero(self._rows[OVER] == 0)
        units = -(-len(self._asked) // self._wanted.micro_batch)
        asked = _trim(_select_rows(self._rows, self._asked))
        return units, {**asked, NUMBER: np.array([self._number])}

    def take(self, units: Sequence[Arrays]) -> None:
        """See Waves."""
        rest = np.delete(np.arange(len(self._rows[PLACE])), self._asked)
        # Back in the order in which they were.
        back = np.argsort(np.concatenate([rest, self._asked]), kind="stable")
        self._rows = _select_rows(_concatenate([_select_rows(self._rows, rest), *units]), back)
        self._waves += 1

    def find_filled(self) -> Sequence[Arrays] | None:
        """See Waves."""
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
        """See Waves."""
        return {**self._rows, NEXT: np.array([self._next])}

    def _begin_groups(self) -> None:
        """Begin as many as a wave has room for, and as can be trained on in time."""
        wanted = self._wanted
        rows = len(self._rows[PLACE]) if self._rows else 0
        asked = int((self._rows[OVER] == 0).sum()) if self._rows else 0
        room = wanted.prompts - -(-asked // wanted.samples)
        in_time = wanted.prompts * (self._staleness + 1) - rows // wanted.samples
        count = max(0, min(room, in_time))
        begun = self._build_rows(np.arange(self._next, self._next + count))
        self._rows = _concatenate([self._rows, begun]) if self._rows else begun
        self._next += count

    def _build_rows(self, places: NDArray[np.int64]) -> Rows:
        """Completions of the prompts at `places`, none of which says anything yet."""
        samples = self._wanted.samples
        count = len(places) * samples
        whole, wide = np.zeros(count, dtype=np.int64), np.zeros((count, 0))
        scores: Rows = {TOTALS: whole.astype(np.float64), REWARD_FAULTS: whole.astype(np.float32)}
        scores |= {REWARD_PART + name: whole.astype(np.float32) for name in self._parts}
        return {
            PLACE: np.repeat(places, samples),
            SAMPLE: np.tile(np.arange(samples), len(places)),
            BORN: whole + self._number,
            OVER: whole,
            FINISHED: whole,
            LENGTH: whole,
            COMPLETIONS: wide.astype(np.int64),
            VERSIONS: wide.astype(np.int64),
            SAMPLED: wide.astype(np.float32),
            BEHAVIOUR: wide.astype(np.float32),
            **scores,
        }


def choose_groups(
    whole_G: NDArray[np.bool_],
    born_G: NDArray[np.int64],
    number: int,
    prompts: int,
    staleness: int,
) -> NDArray[np.int64] | None:
    """The `prompts` oldest groups that are whole, for batch `number`; None: there are fewer, or
    what would be left could not all be trained on in time.

    A group is due `staleness` batches after the one it was begun for. As the whole ones that were
    begun first are taken first, what is left can be in time if, for each k, at most k × `prompts`
    groups are due within the next k batches. Once all are whole this holds, if it held before and
    no more than `prompts` × (`staleness` + 1) groups were ever on their way.
    """
    chosen = np.flatnonzero(whole_G)[:prompts]
    if len(chosen) < prompts:
        return None
    due_G = np.delete(born_G, chosen) + staleness - number  # in so many batches
    within = [int((due_G <= k).sum()) <= k * prompts for k in range(staleness + 1)]
    return chosen if all(within) else None


def select_unit(asked: Arrays, index: int, micro_batch: int) -> Rows:
    """The completions of unit `index` of a wave."""
    rows = {name: array for name, array in asked.items() if name != NUMBER}
    return _trim(_select_rows(rows, slice(index * micro_batch, (index + 1) * micro_batch)))


def _select_rows(rows: Arrays, which: Any) -> Rows:
    return {name: array[which] for name, array in rows.items()}


def _trim(rows: Rows) -> Rows:
    """As wide as the longest of `rows` needs."""
    return _widen(rows, int(rows[LENGTH].max(initial=0)))


def _widen(rows: Arrays, width: int) -> Rows:
    return {
        name: set_width(array, width, 0) if array.ndim == 2 else array
        for name, array in rows.items()
    }


def _concatenate(parts: Sequence[Arrays]) -> Rows:
    """One after another."""
    width = max(part[COMPLETIONS].shape[1] for part in parts)
    widened = [_widen(part, width) for part in parts]
    return {name: np.concatenate([part[name] for part in widened]) for name in widened[0]}
