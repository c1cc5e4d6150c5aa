"""Reduction of the losses of a step's micro-batches over all ranks, in a fixed order.

Each micro-batch fills one row of a table, on whichever rank computes it. The ranks all-reduce their
tables, in which a row is zero on all ranks but one; then the rows are added in the order of their
indices. So every figure is bit-identical on any number of ranks.

Shapes: M micro-batches, B rows of one, S sources, N terms, A auxiliary terms, D diagnostics, K
columns.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from trainrig.objectives import objective_interface
from trainrig.parallel.axes.row_split import RowSplit
from trainrig.tokens.batches import MicroBatchSlot


@dataclass(frozen=True)
class Loss:
    """Loss of a global batch, with its parts."""

    total: float  # weighted sum of all terms, plus the auxiliary terms
    terms: Mapping[str, float]  # value of each term and auxiliary term, before weighting
    by_source: Mapping[str, float]  # loss of each source that has rows, without auxiliary terms
    # Further figures of the objective: each is a mean over its own count; those with a count of 0
    # are left out.
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    # Variance of the micro-batches' mean losses around the global mean, weighted by their targets;
    # None if the loss has several terms, each with another denominator.
    variance: float | None = None
    # Integer counts of the model by name, such as `expert_tokens/3`: tokens of each expert of layer
    # 3.
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class LossTable:
    """Sums and counts of a step's loss terms, by micro-batch and source."""

    def __init__(
        self,
        objective: objective_interface.Objective,
        sources: Sequence[str],
        micro_batches: int,
        device: torch.device,
        double: bool = False,
        split: RowSplit | None = None,
    ) -> None:
        """Allocate the table for `micro_batches` micro-batches.

        Args:
            objective: The loss whose terms are added.
            sources: Names of the sources; the rows' source numbers index them.
            micro_batches: Number of micro-batches of the global batch, M.
            device: Device of the table.
            double: Whether to sum a micro-batch in float64; otherwise its sum is exactly the one
            that the backward pass starts from.
            split: The part of each row that this rank computes; None means whole rows.
        """
        self._double = double
        self._split = split or RowSplit()
        self._terms = tuple(objective.terms)
        self._sources = tuple(sources)
        self._derive = (
            objective.derive if isinstance(objective, objective_interface.Deriving) else None
        )
        # Columns of each term: its total sum, its sums by source, its counts by source.
        shape = (micro_batches, len(self._terms), 1 + 2 * len(sources))
        self._sums_MNK = torch.zeros(shape, dtype=torch.float64, device=device)
        self._auxiliary: tuple[str, ...] = ()
        self._auxiliary_MA = self._sums_MNK.new_zeros(micro_batches, 0)
        self._counts: dict[str, Tensor] = {}  # int64 sums are exact in any order
        self._diagnostics: tuple[str, ...] = ()
        # sum and count of each
        self._diagnostics_MD2 = self._sums_MNK.new_zeros(micro_batches, 0, 2)

    def fill(
        self, slot: MicroBatchSlot, computed: objective_interface.Computed, sources_B: Tensor
    ) -> None:
        """Enter the results of the micro-batch of `slot`, whose rows belong to `sources_B`."""
        self.expect(computed.auxiliary)
        self.expect_diagnostics(tuple(computed.diagnostics))
        if not slot.real or (computed.alike and self._split.over.rank):  # entered by another rank
            return
        for number, term in enumerate(self._terms):
            self._fill_term(
                self._sums_MNK[slot.index, number], computed.terms[term.name], sources_B
            )
        for number, name in enumerate(self._auxiliary):
            self._auxiliary_MA[slot.index, number] = computed.auxiliary[name].detach()
        for name, total in self._counts.items():
            total += computed.auxiliary[name].to(torch.int64)
        for number, found in enumerate(computed.diagnostics.values()):
            self._diagnostics_MD2[slot.index, number, 0] = found.sum_rows_B().sum()
            self._diagnostics_MD2[slot.index, number, 1] = found.counts_B.sum()

    @property
    def diagnostics(self) -> tuple[str, ...]:
        """Names of the diagnostics that the table has columns for."""
        return self._diagnostics

    def expect(self, auxiliary: Mapping[str, Tensor]) -> None:
        """Add columns for the auxiliary terms, whose names are known only after a micro-batch.

        Ranks that compute no micro-batch call this too, so that all ranks reduce equal tables.
        """
        rows = len(self._sums_MNK)
        added = tuple(name for name, value in auxiliary.items() if value.ndim == 0)
        if not self._counts:
            self._counts = {
                name: torch.zeros(value.shape, dtype=torch.int64, device=self._sums_MNK.device)
                for name, value in auxiliary.items()
                if value.ndim
            }
        if added != self._auxiliary:
            assert not self._auxiliary, "auxiliary terms differ between micro-batches"
            self._auxiliary = added
            self._auxiliary_MA = self._sums_MNK.new_zeros(rows, len(self._auxiliary))

    def expect_diagnostics(self, names: tuple[str, ...]) -> None:
        """Add columns for the diagnostics `names`."""
        if names != self._diagnostics:
            assert not self._diagnostics, "diagnostics differ between micro-batches"
            self._diagnostics = names
            rows = len(self._sums_MNK)
            self._diagnostics_MD2 = self._sums_MNK.new_zeros(rows, len(names), 2)

    def _fill_term(
        self, sums_K: Tensor, found: objective_interface.Contributions, sources_B: Tensor
    ) -> None:
        count = len(self._sources)
        values = found.values.detach()
        sums_K[0] = (values.double() if self._double else values).sum()
        sums_K[1 : 1 + count].index_add_(0, sources_B, found.sum_rows_B())
        sums_K[1 + count :].index_add_(0, sources_B, found.counts_B.double())

    def reduce(self, denominators: Mapping[str, int] | None = None) -> Loss:
        """Compute the loss of the global batch. Collective, after a rank's last micro-batch.

        `denominators`: what each term's gradient was divided by, by name; None means the counts of
        the rows.
        """
        tables = (self._sums_MNK, self._auxiliary_MA, self._diagnostics_MD2)
        for table in tables:
            self._split.add(table)
        squares_M1 = self._divide_squares()
        parts = [*(table.flatten(1) for table in tables), squares_M1]
        sums_K = add_rows(torch.cat(parts, dim=1))
        micro_batches, terms_N, width = self._sums_MNK.shape
        ends = np.cumsum([terms_N * width, len(self._auxiliary)]).tolist()
        sums_NK = sums_K[: ends[0]].reshape(terms_N, width)
        auxiliary_A = sums_K[ends[0] : ends[1]] / micro_batches
        diagnostics_D2 = sums_K[ends[1] : -1].reshape(-1, 2)
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
        diagnostics = {
            name: float(value / count)
            for name, (value, count) in zip(self._diagnostics, diagnostics_D2, strict=True)
            if count
        }
        if self._derive:
            diagnostics |= self._derive(diagnostics)
        variance = None
        if terms_N == 1 and counted_N[0]:
            mean = float(sums_NK[0, 0] / counted_N[0])
            variance = max(0.0, float(sums_K[-1] / counted_N[0]) - mean**2)
        counts = self._add_counts()
        return Loss(total, terms, self._average_by_source(sums_NK), diagnostics, variance, counts)

    def _divide_squares(self) -> Tensor:
        """Return the squared sum of the first term over its count, for each micro-batch: [M, 1]."""
        counts_M = self._sums_MNK[:, 0, 1 + len(self._sources) :].sum(1)
        return (self._sums_MNK[:, 0, 0].square() / counts_M.clamp(min=1))[:, None]

    def _add_counts(self) -> dict[str, tuple[int, ...]]:
        if not self._counts:
            return {}
        whole = torch.cat(list(self._counts.values()))
        # ranks that share layers have equal counts, so only one adds them
        if self._split.alike.rank > 0:
            whole.zero_()
        dist.all_reduce(whole)
        parts = torch.split(whole.cpu(), [len(count) for count in self._counts.values()])
        return {name: tuple(part.tolist()) for name, part in zip(self._counts, parts, strict=True)}

    def _average_by_source(self, sums_NK: NDArray[np.float64]) -> dict[str, float]:
        count = len(self._sources)
        weights_N = np.array([term.weight for term in self._terms])
        sums_NS = sums_NK[:, 1 : 1 + count]
        counts_NS = sums_NK[:, 1 + count :]
        seen_S = np.min(counts_NS, axis=0) > 0
        means_NS = sums_NS / np.where(counts_NS, counts_NS, 1)
        losses_S = weights_N @ means_NS
        return {
            source: float(loss)
            for source, loss, seen in zip(self._sources, losses_S, seen_S.tolist(), strict=True)
            if seen
        }


def measure_statistics(
    objective: objective_interface.Objective,
    model: torch.nn.Module,
    batches: Iterable[tuple[MicroBatchSlot, objective_interface.DeviceBatch]],
    micro_batches: int,
    agreed_to_stop: Callable[[], bool],
    split: RowSplit,
) -> Mapping[str, float] | None:
    """Sum the objective's statistics over the global batch, in a forward pass without gradients.

    Returns {} if the objective has none, and None if all ranks agreed to stop. Collective. The
    caller must reshard the model afterwards: no backward pass follows to do it.

    `batches`: this rank's micro-batches, of `micro_batches` in all, in the row parts of `split`.
    """
    names = tuple(objective.statistics)
    if not names:
        return {}
    table_MK: Tensor | None = None
    with torch.no_grad():
        for slot, batch in batches:
            if table_MK is None:
                shape = (micro_batches, len(names))
                device = batch.sources_B.device
                table_MK = torch.zeros(shape, dtype=torch.float64, device=device)
            if agreed_to_stop():
                return None
            found = objective.measure(model, batch)
            # A padding slot only takes part in collectives. Of the ranks that share whole rows, one
            # counts.
            if slot.real and (batch.parts is None or split.over.rank == 0):
                table_MK[slot.index] = torch.stack([found[name] for name in names])
    assert table_MK is not None, "every rank has a micro-batch, if of no use"
    split.add(table_MK)
    return dict(zip(names, add_rows(table_MK).tolist(), strict=True))


def add_rows(table_MK: Tensor) -> NDArray[np.float64]:
    """Add all rows over all ranks, in the order of their indices: [K]. Collective.

    A row must be zero on all ranks but the one that filled it.
    """
    dist.all_reduce(table_MK)
    total_K = np.zeros(table_MK.shape[1])
    for row_K in table_MK.cpu().numpy():
        total_K += row_K
    return total_K
