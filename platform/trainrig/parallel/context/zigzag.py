"""Which part of a row each rank of a context axis has.

A row of T places is cut into 2c chunks for c ranks; rank r has chunks r and 2c - 1 - r, one from
the head and one from the tail. A causal query sees all chunks before its own, so the two of every
rank see 2c + 1 chunks together: the ranks have equal work (Llama 3, arXiv:2407.21783, section
3.3.2).

Shapes: c ranks, T places of a row, t = T / c of them on a rank.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def find_chunks(rank: int, degree: int) -> tuple[int, int]:
    """The chunks of `rank` out of `degree`, counted from 0 to 2 `degree` - 1."""
    return rank, 2 * degree - 1 - rank


def take_part(row: Tensor, rank: int, degree: int, dim: int) -> Tensor:
    """The t places of `rank` of the T along `dim` of `row`; a copy."""
    chunks = row.chunk(2 * degree, dim)
    return torch.cat([chunks[number] for number in find_chunks(rank, degree)], dim)


def cut(row: Tensor, degree: int, dim: int) -> Tensor:
    """[c, …] the parts of all ranks in their order, of the T places along `dim` of `row`."""
    return torch.stack([take_part(row, rank, degree, dim) for rank in range(degree)])


def join(parts: Sequence[Tensor] | Tensor, dim: int) -> Tensor:
    """The whole row, in its order, of the parts of all ranks: what undoes `cut`."""
    heads, tails = zip(*(part.chunk(2, dim) for part in parts), strict=True)
    return torch.cat((*heads, *reversed(tails)), dim)
