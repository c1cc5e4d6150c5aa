"""Rows that are split over neighbouring ranks, and what those come to together.

Rank r of W has the places of context rank r mod c, in the micro-batches of worker r // c of W / c:
all that divides data among workers counts these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from trainrig.objectives.contract import DeviceBatch
from trainrig.parallel.context.gathered import gather_parts
from trainrig.parallel.context.settings import Gathered, RingAttention
from trainrig.parallel.context.zigzag import part_of
from trainrig.parallel.mesh import CONTEXT_AXIS, DATA_AXIS
from trainrig.tokens.batches import IDS, POSITIONS


@dataclass(frozen=True)
class RowSplit:
    """Which part of which rows this rank has."""

    degree: int = 1  # ranks that share a row
    group: dist.ProcessGroup | None = None  # they; None: this rank has whole rows

    @classmethod
    def over(cls, settings: Gathered | RingAttention | None, device: torch.device) -> "RowSplit":
        """As `settings` say, over all ranks, which all call it; None: whole rows."""
        if settings is None:
            return cls()
        sizes = dist.get_world_size() // settings.ranks, settings.ranks
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=(DATA_AXIS, CONTEXT_AXIS))
        return cls(settings.ranks, mesh.get_group(CONTEXT_AXIS))

    @property
    def rank(self) -> int:
        """Which of the ranks that share its rows this is."""
        return 0 if self.group is None else self.group.rank()

    @property
    def worker(self) -> tuple[int, int]:
        """Which of how many workers this rank is part of, as data is divided among them."""
        return dist.get_rank() // self.degree, dist.get_world_size() // self.degree

    def part(self, batch: DeviceBatch) -> DeviceBatch:
        """This rank's places of all rows of `batch`, with their positions."""
        if self.group is None:
            return batch
        arrays: Mapping[str, Tensor] = batch.arrays
        shape_BT = arrays[IDS].shape
        if POSITIONS not in arrays:  # each row is one document
            places_T = torch.arange(shape_BT[1], device=arrays[IDS].device)
            arrays = {**arrays, POSITIONS: places_T.expand(shape_BT)}
        own = {
            name: part_of(array, self.rank, self.degree, 1) if array.ndim > 1 else array
            for name, array in arrays.items()
        }
        return replace(batch, arrays=own)

    def add(self, table: Tensor) -> None:
        """Make of `table` its sum over the ranks that share rows, added in their order: on the
        first of them, zeros on the others. Collective."""
        if self.group is None or not table.numel():
            return
        total, *others = gather_parts(table, self.group)
        for other in others:
            total = total + other
        table.copy_(total if self.rank == 0 else torch.zeros_like(total))
