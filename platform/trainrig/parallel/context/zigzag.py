"""Assignment of the parts of a row to the ranks of a context axis.

A row of T positions is cut into 2c chunks for c ranks. Rank r has chunks r and 2c - 1 - r, one from
the head and one from the tail. A causal query attends to all chunks before its own, so the two
chunks of every rank attend to 2c + 1 chunks together and all ranks have equal work (Llama 3,
arXiv:2407.21783, section 3.3.2).

Shapes: c ranks, T positions of a row, t = T / c of them on a rank.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def find_chunks(rank: int, degree: int) -> tuple[int, int]:
    """Return the two chunks of `rank` out of `degree` ranks, counted from 0 to 2 `degree` - 1."""
    return rank, 2 * degree - 1 - rank


def take_part(row: Tensor, rank: int, degree: int, dim: int) -> Tensor:
    """Return a copy of the t positions of `rank`, of the T along `dim` of `row`."""
    chunks = row.chunk(2 * degree, dim)
    return torch.cat([chunks[number] for number in find_chunks(rank, degree)], dim)


def cut(row: Tensor, degree: int, dim: int) -> Tensor:
    """Return [c, …], the parts of all ranks in order, of the T positions along `dim` of `row`."""
    return torch.stack([take_part(row, rank, degree, dim) for rank in range(degree)])


def join(parts: Sequence[Tensor] | Tensor, dim: int) -> Tensor:
    """Return the whole row in order, from the parts of all ranks: the inverse of `cut`."""
    heads, tails = zip(*(part.chunk(2, dim) for part in parts), strict=True)
    return torch.cat((*heads, *reversed(tails)), dim)
