"""Both answers to a prompt with a single reading of the prompt.

Wang and Hegde 2024, arXiv:2410.20305. A pair is laid out as the common beginning of both rows, the
rest of the chosen one, and the rest of the rejected one. The latter attends only to the beginning
and itself, and its positions continue from the beginning. Several pairs are packed into a row, up
to the length of the longest, so that there is little padding. The logits equal those of each answer
read separately, up to rounding.

Shapes: B rows of answers, T positions; R rows of pairs, W positions; N positions to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainrig.objectives.objective_interface import Output, RowParts
from trainrig.tokens.batches import IGNORE

# branch numbers; 0 is the common beginning
CHOSEN = 1
REJECTED = 2
NOWHERE = -1


def read_answers(
    model: nn.Module,
    ids_BT: Tensor,
    targets_BT: Tensor,
    places_N: Tensor,
    sets: int,
    parts: RowParts | None = None,
) -> Output:
    """Return the output of `model` at the positions `places_N` of the B * T of `ids_BT`.

    All of these positions have a target. With two `sets` of rows concatenated, the n-th row of each
    is an answer to the same prompt. The common beginning is read once if the model supports it,
    this reduces the work of attention, and rows are whole. `parts`: set if ranks share the rows.
    """
    if parts is not None:
        divided: Output = model(
            ids_BT, places_N=places_N, positions_BT=parts.positions_BT.repeat(sets, 1)
        )
        return divided
    if sets == 2 and len(ids_BT) and getattr(model, "reads_branches", False):
        layout = lay_out(ids_BT, targets_BT)
        if layout.looks < ids_BT.numel() * ids_BT.shape[1]:
            found: Output = model(
                **layout.arrange_inputs(ids_BT),
                places_N=layout.to_device(places_N.device, layout.cells)[places_N],
            )
            return found
    apart: Output = model(ids_BT, places_N=places_N)
    return apart


@dataclass(frozen=True)
class SharedRows:
    """Layout of pairs in rows: the source, position and visibility of each token."""

    sources_RW: NDArray[np.int64]  # index among the B * T source positions; NOWHERE: padding
    positions_RW: NDArray[np.int64]
    documents_RW: NDArray[np.int64]  # number of the pair in the row; 0 for padding
    branches_RW: NDArray[np.int64]
    cells: NDArray[np.int64]  # [B * T] index among the R * W positions of each token that is read

    @property
    def looks(self) -> int:
        """Number of query-key pairs that attention computes."""
        rows, width = self.sources_RW.shape
        return int(rows * width * width)

    def arrange_inputs(self, ids_BT: Tensor) -> Mapping[str, Tensor]:
        """Return the inputs of a model, by argument name."""
        device = ids_BT.device
        sources_RW = self.to_device(device, self.sources_RW)
        ids_RW = ids_BT.flatten()[sources_RW.clamp(min=0)].where(sources_RW >= 0, 0)
        return {
            "ids_BT": ids_RW,
            "positions_BT": self.to_device(device, self.positions_RW),
            "documents_BS": self.to_device(device, self.documents_RW),
            "branches_BT": self.to_device(device, self.branches_RW),
        }

    @staticmethod
    def to_device(device: torch.device, array: NDArray[Any]) -> Tensor:
        """Copy `array` to `device`."""
        return torch.from_numpy(array).to(device)


def lay_out(ids_BT: Tensor, targets_BT: Tensor) -> SharedRows:
    """Lay out the rows of `ids_BT`: chosen answers, followed by as many rejected ones.

    Each row is used up to its last target. Pairs are packed by first fit, the longest first.
    """
    width = ids_BT.shape[1]
    pairs = len(ids_BT) // 2
    places_T = torch.arange(1, width + 1, device=ids_BT.device)
    lengths_B = places_T.where(targets_BT != IGNORE, 1).amax(1)
    same_PT = (ids_BT[:pairs] == ids_BT[pairs:]).long().cumprod(1)
    lengths = torch.stack([lengths_B[:pairs], lengths_B[pairs:]])
    same = same_PT.sum(1)
    shared = torch.minimum(same, lengths.amin(0))
    [*sides, common] = torch.cat([lengths, shared[None]]).tolist()  # the only wait for the device
    totals = [
        sum(lengths_of_pair) - both for *lengths_of_pair, both in zip(*sides, common, strict=True)
    ]
    rows = fill_rows(totals)
    shape = len(rows), max(totals)
    sources = np.full(shape[0] * shape[1], NOWHERE)
    positions, documents, branches = np.zeros((3, len(sources)), dtype=np.int64)
    cells = np.zeros(ids_BT.numel(), dtype=np.int64)
    for row, members in enumerate(rows):
        at = row * shape[1]
        for number, pair in enumerate(members, 1):
            chosen = pair * width
            rejected = (pairs + pair) * width
            both = common[pair]
            for branch, first, begin, end in (
                (0, chosen, 0, both),
                (CHOSEN, chosen, both, sides[0][pair]),
                (REJECTED, rejected, both, sides[1][pair]),
            ):
                here = slice(at, at + end - begin)
                there = slice(first + begin, first + end)
                sources[here] = np.arange(there.start, there.stop)
                positions[here] = np.arange(begin, end)
                documents[here] = number
                branches[here] = branch
                cells[there] = np.arange(here.start, here.stop)
                at = here.stop
            cells[rejected : rejected + both] = cells[chosen : chosen + both]
    return SharedRows(
        sources.reshape(shape),
        positions.reshape(shape),
        documents.reshape(shape),
        branches.reshape(shape),
        cells,
    )


def fill_rows(lengths: list[int]) -> list[list[int]]:
    """Pack the indices of `lengths` into rows as long as the longest, by first fit decreasing."""
    rows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        row = next((at for at, left in enumerate(room) if left >= lengths[number]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(max(lengths))
        rows[row].append(number)
        room[row] -= lengths[number]
    return rows
