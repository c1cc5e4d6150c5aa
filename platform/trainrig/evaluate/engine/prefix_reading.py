"""A model reads rows of tokens that begin alike, each beginning once.

Shapes: B rows, T positions, N places of them, V entries of the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainrig.models.attention import KeyValueCache
from trainrig.models.decoder import Decoder

Ids = tuple[int, ...]


class Reader:
    """What a model has read: the keys and values of B rows of one length."""

    def __init__(self, model: Decoder, caches: list[KeyValueCache] | None = None) -> None:
        self.model = model
        self.device = model.embedding.weight.device
        self._caches = caches or [KeyValueCache() for _ in model.layers]

    def __len__(self) -> int:
        """Positions read."""
        return len(self._caches[0])

    def read(self, ids_BT: Sequence[Sequence[int]], places: Sequence[int] = ()) -> Tensor:
        """Read `ids_BT` behind what was read; the logits [N, V] of the tokens after `places`, which
        count the B * T places row by row."""
        ids = torch.tensor([list(row) for row in ids_BT], device=self.device)
        wanted_N = torch.tensor(list(places), dtype=torch.long, device=self.device)
        logits_NV: Tensor = self.model(ids, self._caches, places_N=wanted_N).logits
        return logits_NV

    def read_last(self, ids_BT: Sequence[Sequence[int]]) -> Tensor:
        """Read `ids_BT`; the logits [B, V] of the token after each row."""
        width = len(ids_BT[0])
        return self.read(ids_BT, [row * width + width - 1 for row in range(len(ids_BT))])

    def select_rows(self, chosen: Sequence[int]) -> "Reader":
        """A reader of the rows `chosen`, one of them as often as it is named."""
        if not len(self):
            return Reader(self.model)
        places = torch.tensor(list(chosen), device=self.device)
        return Reader(self.model, [cache.select(places) for cache in self._caches])


def count_common_prefix(rows: Sequence[Ids]) -> int:
    """The number of tokens with which all of `rows` begin."""
    first, last = min(rows), max(rows)
    count = 0
    for mine, other in zip(first, last, strict=False):
        if mine != other:
            break
        count += 1
    return count


def pad_rows(rows: Sequence[Ids]) -> list[Ids]:
    """`rows` filled on the right to one length; a causal model never looks there from before."""
    longest = max(map(len, rows))
    return [row + (0,) * (longest - len(row)) for row in rows]
