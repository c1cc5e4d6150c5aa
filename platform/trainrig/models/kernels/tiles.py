"""Tile sizes of the Triton attention kernels, by the shared memory of a GPU.

A GPU refuses to launch a kernel whose thread blocks need more shared memory than it has: 99 KiB on
consumer cards (capabilities 8.6, 8.9 and 12.0), 163 KiB on an A100, 227 KiB on an H100.
"""

from dataclasses import dataclass

STAGES = 2  # number of loads in flight (Triton's `num_stages`)


@dataclass(frozen=True)
class Tile:
    """Size of one block: queries, keys, and channels padded to a power of two."""

    queries: int
    keys: int
    width: int


def pad_width(width: int) -> int:
    """Return the smallest power of two that is at least `width` channels and at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def estimate_forward_bytes(tile: Tile, element: int = 2, stages: int = STAGES) -> int:
    """Return the bytes of shared memory that the forward kernel needs.

    `element` is the size of a number in bytes. The queries stay in memory, keys and values are
    loaded ahead, and the softmax passes through it. For 64 queries, 64 keys and 256 channels the
    result is the 106,496 bytes that Triton asked for.
    """
    loaded = tile.queries + 2 * tile.keys * (stages - 1)
    return element * (tile.width * loaded + tile.queries * tile.keys)


def estimate_backward_bytes(tile: Tile, element: int = 2, stages: int = STAGES) -> int:
    """Return the bytes of shared memory that the larger of the two backward kernels needs.

    Two tensors stay in memory, two are loaded ahead, and the softmax and its gradient pass through.
    """
    stays = max(tile.queries, tile.keys)
    ahead = min(tile.queries, tile.keys)
    loaded = 2 * stays + 2 * ahead * (stages - 1)
    return element * (tile.width * loaded + 2 * tile.queries * tile.keys)


def choose_forward_tile(width: int, shared_memory: int) -> Tile | None:
    """Return the largest tile of the forward kernel that fits, or None if none does.

    `width` is the number of channels of a head, `shared_memory` the available bytes.
    """
    padded = pad_width(width)
    first = [(128, 64)] if width <= 128 else []
    sizes = [*first, (64, 64), (64, 32), (32, 32), (16, 16)]
    tiles = [Tile(queries, keys, padded) for queries, keys in sizes]
    return next((tile for tile in tiles if estimate_forward_bytes(tile) <= shared_memory), None)


def choose_backward_tile(width: int, shared_memory: int) -> Tile | None:
    """Return the largest tile of the backward kernels that fits, or None if none does."""
    padded = pad_width(width)
    sizes = [32, 16] if width > 128 else [64, 32, 16]
    tiles = [Tile(size, size, padded) for size in sizes]
    return next((tile for tile in tiles if estimate_backward_bytes(tile) <= shared_memory), None)
