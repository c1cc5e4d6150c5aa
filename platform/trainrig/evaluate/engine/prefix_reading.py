"""Incremental reading of token rows with a key-value cache, so that common prefixes are read once.

Shapes: B rows, T positions, N places of them, V entries of the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainrig.models.attention import KeyValueCache
from trainrig.models.decoder import Decoder

Ids = tuple[int, ...]


class Reader:
    """A model with the cached keys and values of B rows of the same length."""

    def __init__(self, model: Decoder, caches: list[KeyValueCache] | None = None) -> None:
        self.model = model
        self.device = model.embedding.weight.device
        self._caches = caches or [KeyValueCache() for _ in model.layers]

    def __len__(self) -> int:
        """Return the number of positions read."""
        return len(self._caches[0])

    def read(self, ids_BT: Sequence[Sequence[int]], places: Sequence[int] = ()) -> Tensor:
        """Append `ids_BT` to the cached rows and return the logits [N, V] at `places`.

        `places` are indices into the B * T new positions, counted row by row.
        """
        ids = torch.tensor([list(row) for row in ids_BT], device=self.device)
        wanted_N = torch.tensor(list(places), dtype=torch.long, device=self.device)
        logits_NV: Tensor = self.model(ids, self._caches, places_N=wanted_N).logits
        return logits_NV

    def read_last(self, ids_BT: Sequence[Sequence[int]]) -> Tensor:
        """Append `ids_BT` and return the logits [B, V] of the token after each row."""
        width = len(ids_BT[0])
        return self.read(ids_BT, [row * width + width - 1 for row in range(len(ids_BT))])

    def select_rows(self, chosen: Sequence[int]) -> "Reader":
        """Return a reader of the rows `chosen`, indices that may repeat."""
        if not len(self):
            return Reader(self.model)
        places = torch.tensor(list(chosen), device=self.device)
        return Reader(self.model, [cache.select(places) for cache in self._caches])


def count_common_prefix(rows: Sequence[Ids]) -> int:
    """Return the length of the common prefix of all `rows`."""
    first = min(rows)  # the lexical extremes have no longer common prefix than all rows
    last = max(rows)
    count = 0
    for mine, other in zip(first, last, strict=False):
        if mine != other:
            break
        count += 1
    return count


def pad_rows(rows: Sequence[Ids]) -> list[Ids]:
    """Return `rows` padded on the right to the same length, which a causal model ignores."""
    longest = max(map(len, rows))
    return [row + (0,) * (longest - len(row)) for row in rows]
