"""Which source each sample of a stretch of constant weights is of."""

import functools
import heapq
import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from trainrig.errors import ConfigError
from trainrig.tokens.permutation import Integers

# Slots of the mixture's table. Weights are rounded to hundred-thousandths, so those that people
# write down are exact, and the table takes about a tenth of a second to build.
SLOTS = 100_000


class Mixture:
    """Which source each sample is of: a table of slots, repeated for ever.

    With nothing owed from before, each source has had its share of any number k of samples to
    within one sample. With debts, the sources that are owed samples get them as early as can be
    without another being given a whole sample too many; the table then repeats after a lead.
    `spread` says what can be promised.
    """

    def __init__(
        self, slots: Mapping[str, int], owed: Mapping[str, Fraction] | None = None
    ) -> None:
        """`slots`: how many of the table's slots each source gets, at least 1. `owed`: samples by
        which each is behind its share as this begins, each above -1, in sum 0."""
        self.sources = tuple(slots)
        self.slots = tuple(slots.values())
        self._owed = tuple((owed or {}).get(source, Fraction(0)) for source in self.sources)
        self._table, self._lead = spread(self.slots, self._owed)
        self._before = np.empty_like(self._table)  # slots of the same source
        for number in range(len(self.slots)):
            of = self._table == number
            self._before[of] = np.arange(of.sum())

    @classmethod
    def of(
        cls, weights: Mapping[str, float], owed: Mapping[str, Fraction] | None = None
    ) -> "Mixture":
        """The mixture nearest to `weights`, which are at least 0 and not all 0.

        Whole numbers that sum to at most SLOTS are met exactly, others to within 1 / SLOTS. Raises
        ConfigError for a weight too small for one slot.
        """
        exact = {source: Fraction(w) for source, w in sorted(weights.items()) if w > 0}
        total = sum(exact.values())
        if total > SLOTS or any(weight.denominator > 1 for weight in exact.values()):
            exact = {source: weight * SLOTS / total for source, weight in exact.items()}
            total = Fraction(SLOTS)
        # Largest remainders: round all down, then those up that lost most.
        slots = {source: math.floor(share) for source, share in exact.items()}
        by_loss = sorted(exact, key=lambda source: slots[source] - exact[source])
        for source in by_loss[: int(total) - sum(slots.values())]:
            slots[source] += 1
        for source, count in slots.items():
            if count == 0:
                share = float(exact[source] / SLOTS)
                raise ConfigError(
                    f"weights: source '{source}' would be {share:.1e} of the samples; give it at "
                    f"least {1 / SLOTS:.0e} of the sum, or 0"
                )
        shortest = math.gcd(*slots.values())
        return cls({source: count // shortest for source, count in slots.items()}, owed)

    @property
    def shares(self) -> dict[str, float]:
        """The share of the samples that each source has."""
        return {s: n / sum(self.slots) for s, n in zip(self.sources, self.slots, strict=True)}

    def find_places(self, samples: Integers) -> tuple[Integers, Integers]:
        """[B] each: the number of the sample's source, and how many of that source came before."""
        rounds = np.maximum(samples - self._lead, 0) // sum(self.slots)
        slot = samples - rounds * sum(self.slots)
        sources = self._table[slot].astype(np.int64)
        counts = np.array(self.slots, dtype=np.int64)[sources]
        return sources, rounds * counts + self._before[slot]

    def find_sample(self, source: str, ordinal: int) -> int:
        """The sample before which `source` has had `ordinal` of them, and which is its next."""
        number = self.sources.index(source)
        slots = np.flatnonzero(self._table == number)
        in_lead = int((slots < self._lead).sum())
        rounds = max(0, ordinal - in_lead) // self.slots[number]
        return int(slots[ordinal - rounds * self.slots[number]]) + rounds * sum(self.slots)

    def count_samples(self, samples: int) -> dict[str, int]:
        """How many of the first `samples` are of each source."""
        rounds = max(0, samples - self._lead) // sum(self.slots)
        rest = np.bincount(
            self._table[: samples - rounds * sum(self.slots)], minlength=len(self.slots)
        )
        return {
            source: int(rest[number]) + rounds * self.slots[number]
            for number, source in enumerate(self.sources)
        }

    def compute_owed_after(self, samples: int) -> dict[str, Fraction]:
        """Samples by which each source is behind its share after the first `samples`."""
        counts = self.count_samples(samples)
        return {
            source: owed + Fraction(count * samples, sum(self.slots)) - counts[source]
            for source, count, owed in zip(self.sources, self.slots, self._owed, strict=True)
        }


def carry_over(owed: Mapping[str, Fraction], weights: Mapping[str, float]) -> dict[str, Fraction]:
    """What of `owed` a stretch of `weights` begins with.

    A source of weight 0 can neither be paid nor pay: what it is owed or has had too much is written
    off, and so is as much on the other side, in proportion. Accounts only shrink by that, and those
    that go on sum to 0 again.
    """
    active = {source: owed.get(source, Fraction(0)) for source, w in weights.items() if w > 0}
    behind = sum((a for a in active.values() if a > 0), Fraction(0))
    ahead = -sum((a for a in active.values() if a < 0), Fraction(0))
    settled = min(behind, ahead)
    return {
        source: account * settled / (behind if account > 0 else ahead) if account else account
        for source, account in active.items()
    }


@functools.lru_cache(maxsize=64)
def spread(slots: tuple[int, ...], owed: tuple[Fraction, ...]) -> tuple[NDArray[np.int32], int]:
    """(Table, lead): which number each slot is of, number i in `slots[i]` of L = sum(slots) as
    evenly as can be; the first `lead` slots come once, the L after them repeat.

    Write E_i(k) = owed_i + k slots_i / L for what number i should have had before slot k. Its j-th
    may stand in the first slot k with E_i(k + 1) > j, and is due before the first k with
    E_i(k) >= j + 1. Each slot goes to the most urgent number that may have it, ties to the first.
    As the E_i sum to k, one always may. Of the deviation |count - E|:

    - None is ever a whole sample too many, in this stretch and, if debts are carried from stretch
      to stretch, in any after it: a number that may have the slot stays below E + 1. So none is
      ever n - 1 samples too few, for n numbers: the deviations sum to 0. Two never deviate by 1.
    - With nothing owed all is on time: every prefix is within one of each share (Baruah, Cohen,
      Plaxton & Varvel 1996, "Proportionate progress"; Tijdeman 1980, "The chairman assignment
      problem", for what holds when later weights are known).
    - With debts that is so again once every E_i(k) >= 0, in at most L slots: from there on, what is
      due before k is at most k.
    - Within one sample at once cannot be promised to those who do not know later weights: let half
      of n equal numbers be 1/2 behind, give these alone weight until half of them are 1 behind,
      and again; log2(n) / 2 is reached.
    - Let m = L / min(slots), the longest time between the first slot that a job may have and that
      before which it is due. After 2 m slots the table repeats every L. For after m all is on time,
      as above; and two schedules of the same jobs that differ in which are done differ by pairs of
      jobs, of which a pair vanishes when the later one is run, within m: what comes then does not
      depend on what had been done.
    """
    length = sum(slots)
    scale = math.lcm(*(each.denominator for each in owed))
    debts = [int(each * scale) for each in owed]
    waiting = [
        (-debts[number] * length // (slots[number] * scale), number, 0)
        for number in range(len(slots))
    ]  # (from slot, number, j)
    heapq.heapify(waiting)
    urgent: list[tuple[int, int, int]] = []  # (before slot, number, j)
    table: list[int] = []
    lead = 2 * (length // min(slots) + 1) if any(debts) else 0
    for slot in range(lead + length):
        while waiting and waiting[0][0] <= slot:
            _, number, j = heapq.heappop(waiting)
            deadline = -(-((j + 1) * scale - debts[number]) * length // (slots[number] * scale))
            heapq.heappush(urgent, (deadline, number, j))
        _, number, j = heapq.heappop(urgent)
        table.append(number)
        release = ((j + 1) * scale - debts[number]) * length // (slots[number] * scale)
        heapq.heappush(waiting, (release, number, j + 1))
    return np.array(table, dtype=np.int32), lead
