"""Which source each sample is of."""

import heapq
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from trainrig.errors import ConfigError
from trainrig.tokens.permutation import Integers

# Slots of the mixture's table. Weights are rounded to hundred-thousandths, so those that people
# write down are exact, and the table takes about a tenth of a second to build.
SLOTS = 100_000


class Mixture:
    """Which source each sample is of: a table of slots, repeated for ever.

    After any number k of samples, each source has had its share of k to within one sample.
    """

    def __init__(self, slots: Mapping[str, int]) -> None:
        """`slots`: how many of the table's slots each source gets, at least 1."""
        self.sources = tuple(slots)
        self.slots = tuple(slots.values())
        self._table = _spread(self.slots)
        self._before = np.empty(len(self._table), dtype=np.int64)  # slots of the same source
        for number, count in enumerate(self.slots):
            self._before[self._table == number] = np.arange(count)

    @classmethod
    def of(cls, weights: Mapping[str, float]) -> "Mixture":
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
        return cls({source: count // shortest for source, count in slots.items()})

    @property
    def shares(self) -> dict[str, float]:
        """The share of the samples that each source has."""
        return {s: n / len(self._table) for s, n in zip(self.sources, self.slots, strict=True)}

    def places(self, samples: Integers) -> tuple[Integers, Integers]:
        """[B] each: the number of the sample's source, and how many of that source came before."""
        rounds, slot = np.divmod(samples, len(self._table))
        sources = self._table[slot]
        counts = np.array(self.slots, dtype=np.int64)[sources]
        return sources, rounds * counts + self._before[slot]


def _spread(slots: Sequence[int]) -> Integers:
    """A table in which number i stands `slots[i]` times, as evenly as can be.

    Of L slots, the j-th of a source's n may stand from slot floor(jL/n) on and must before slot
    ceil((j+1)L/n): then every prefix is within one of each share. Such a table always exists
    (Baruah, Cohen, Plaxton & Varvel 1996, "Proportionate progress"), and giving each slot to the
    most urgent source that may have it finds one.
    """
    length = sum(slots)
    table = np.empty(length, dtype=np.int64)
    waiting = [(0, number, 0) for number in range(len(slots))]  # (from slot, source, j)
    urgent: list[tuple[int, int, int]] = []  # (before slot, source, j)
    for slot in range(length):
        while waiting and waiting[0][0] <= slot:
            _, number, j = heapq.heappop(waiting)
            deadline = -(-(j + 1) * length // slots[number])
            heapq.heappush(urgent, (deadline, number, j))
        _, number, j = heapq.heappop(urgent)
        table[slot] = number
        if j + 1 < slots[number]:
            heapq.heappush(waiting, ((j + 1) * length // slots[number], number, j + 1))
    return table
