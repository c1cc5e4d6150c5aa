"""Sizes of the blocks that our Triton kernel of attention works on, by what a card's memory holds.

A GPU refuses to launch a kernel whose blocks of threads ask for more shared memory than it has: 99
KiB on consumer cards (capabilities 8.6, 8.9 and 12.0), 163 KiB on an A100, 227 KiB on an H100.
"""

from dataclasses import dataclass

STAGES = 2  # loads that are under way at once, as the kernels are launched


@dataclass(frozen=True)
class Tile:
    """One block: so many queries and keys, of heads padded to a power of two of channels."""

    queries: int
    keys: int
    width: int


def pad_width(width: int) -> int:
    """Return the smallest power of two that `width` channels fit in, at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def estimate_forward_bytes(tile: Tile, element: int = 2, stages: int = STAGES) -> int:
    """Return the bytes of shared memory that the forward kernel takes for numbers of `element`
    bytes: the queries stay, keys and values are loaded ahead, and the softmax goes through it.

    It gives the 106,496 bytes that Triton asked for with 64 queries, 64 keys and 256 channels.
    """
    loaded = tile.queries + 2 * tile.keys * (stages - 1)
    return element * (tile.width * loaded + tile.queries * tile.keys)


def estimate_backward_bytes(tile: Tile, element: int = 2, stages: int = STAGES) -> int:
    """Return the same for the larger of the two backward kernels: two tensors stay, two are loaded
    ahead, and the softmax and its gradient go through it."""
    stays, ahead = max(tile.queries, tile.keys), min(tile.queries, tile.keys)
    loaded = 2 * stays + 2 * ahead * (stages - 1)
    return element * (tile.width * loaded + 2 * tile.queries * tile.keys)


def choose_forward_tile(width: int, shared_memory: int) -> Tile | None:
    """Return the largest block of the forward kernel for heads of `width` channels that fits in
    `shared_memory` bytes; None if none does."""
    padded = pad_width(width)
    first = [(128, 64)] if width <= 128 else []
    sizes = [*first, (64, 64), (64, 32), (32, 32), (16, 16)]
    tiles = [Tile(queries, keys, padded) for queries, keys in sizes]
    return next((tile for tile in tiles if estimate_forward_bytes(tile) <= shared_memory), None)


def choose_backward_tile(width: int, shared_memory: int) -> Tile | None:
    """Return the largest block of the backward kernels that fits; None if none does."""
    padded = pad_width(width)
    sizes = [32, 16] if width > 128 else [64, 32, 16]
    tiles = [Tile(size, size, padded) for size in sizes]
    return next((tile for tile in tiles if estimate_backward_bytes(tile) <= shared_memory), None)
