"""What the micro-batches of a step come to, added over all ranks in one order.

Each micro-batch fills a row of a table, whoever computes it. Ranks add their tables, in which a row
is zero on all ranks but one; then rows are added in the order of their numbers. So every figure has
the same bits on any number of ranks.

Shapes: M micro-batches, B rows of one, S sources, N terms, A auxiliary terms, K columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from trainrig.objectives.contract import Computed, Contributions, Objective
from trainrig.tokens.batches import MicroBatchSlot


@dataclass(frozen=True)
class Loss:
    """The loss of a global batch, and what it is made of."""

    total: float  # of all terms, each times its weight
    terms: Mapping[str, float]  # of each term and auxiliary term, before a term's weight
    by_source: Mapping[str, float]  # of the rows of each source that has any, without auxiliary


class LossTable:
    """The sums of a step's terms, by micro-batch and source."""

    def __init__(
        self,
        objective: Objective,
        sources: Sequence[str],
        micro_batches: int,
        device: torch.device,
        double: bool = False,
    ) -> None:
        """`sources`: the names that the rows' sources number. `double`: a micro-batch's sum is
        taken in float64, where it is not the very sum that goes backward."""
        self._double = double
        self._terms, self._sources = tuple(objective.terms), tuple(sources)
        # Of each term: its sum, then its sum by source, then its count by source.
        shape = (micro_batches, len(self._terms), 1 + 2 * len(sources))
        self._sums_MNK = torch.zeros(shape, dtype=torch.float64, device=device)
        self._auxiliary: tuple[str, ...] = ()
        self._auxiliary_MA = self._sums_MNK.new_zeros(micro_batches, 0)

    def fill(self, slot: MicroBatchSlot, computed: Computed, sources_B: Tensor) -> None:
        """Enter what the micro-batch of `slot` came to, whose rows are of `sources_B`."""
        if tuple(computed.auxiliary) != self._auxiliary:
            assert not self._auxiliary, "auxiliary terms differ between micro-batches"
            self._auxiliary = tuple(computed.auxiliary)
            rows = len(self._sums_MNK)
            self._auxiliary_MA = self._sums_MNK.new_zeros(rows, len(self._auxiliary))
        if not slot.real:  # another rank enters it
            return
        for number, term in enumerate(self._terms):
            self._fill_term(
                self._sums_MNK[slot.index, number], computed.terms[term.name], sources_B
            )
        for number, value in enumerate(computed.auxiliary.values()):
            self._auxiliary_MA[slot.index, number] = value.detach()

    def _fill_term(self, sums_K: Tensor, found: Contributions, sources_B: Tensor) -> None:
        count = len(self._sources)
        values = found.values.detach()
        sums_K[0] = (values.double() if self._double else values).sum()
        sums_K[1 : 1 + count].index_add_(0, sources_B, found.rows_B())
        sums_K[1 + count :].index_add_(0, sources_B, found.counts_B.double())

    def reduce(self, denominators: Mapping[str, int] | None = None) -> Loss:
        """The loss of the global batch. Every rank calls it, after its last micro-batch.

        `denominators`: those that went into the gradient; None: as the rows were counted.
        """
        flat_MK = torch.cat([self._sums_MNK.flatten(1), self._auxiliary_MA], dim=1)
        sums_K = add_rows(flat_MK)
        _, terms_N, width = self._sums_MNK.shape
        sums_NK = sums_K[: terms_N * width].reshape(terms_N, width)
        auxiliary_A = sums_K[terms_N * width :] / len(flat_MK)
        counted_N = sums_NK[:, 1 + len(self._sources) :].sum(axis=1)
        terms = {
            term.name: float(row_K[0])
            / (float(counted) if denominators is None else denominators[term.per])
            for term, row_K, counted in zip(self._terms, sums_NK, counted_N, strict=True)
        }
        total = sum(term.weight * terms[term.name] for term in self._terms)
        for name, value in zip(self._auxiliary, auxiliary_A.tolist(), strict=True):
            terms[name] = value
            total += value
        return Loss(total, terms, self._by_source(sums_NK))

    def _by_source(self, sums_NK: NDArray[np.float64]) -> dict[str, float]:
        count = len(self._sources)
        weights_N = np.array([term.weight for term in self._terms])
        sums_NS, counts_NS = sums_NK[:, 1 : 1 + count], sums_NK[:, 1 + count :]
        seen_S = np.min(counts_NS, axis=0) > 0
        means_NS = sums_NS / np.where(counts_NS, counts_NS, 1)
        losses_S = weights_N @ means_NS
        return {
            source: float(loss)
            for source, loss, seen in zip(self._sources, losses_S, seen_S.tolist(), strict=True)
            if seen
        }


def add_rows(table_MK: Tensor) -> NDArray[np.float64]:
    """[K] the sum of all rows over all ranks, in the order of rows. Every rank calls it.

    A row is zero on all ranks but on the one that filled it.
    """
    dist.all_reduce(table_MK)
    total_K = np.zeros(table_MK.shape[1])
    for row_K in table_MK.cpu().numpy():
        total_K += row_K
    return total_K
