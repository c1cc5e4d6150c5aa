"""How tokens look at the tokens before them.

Shapes: B batch, T new positions, S positions seen in all (cached ones first), C channels of the
stream, H query heads, K key and value heads, D channels of one head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.positions import Rotation


class KeyValueCache:
    """The keys and values that one layer has computed so far, so that generation need not again."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def __len__(self) -> int:
        """Positions held."""
        return 0 if self._keys is None else self._keys.shape[2]

    def extend(self, keys_BKTD: Tensor, values_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of the newest positions; all that there are, [B, K, S, D] each."""
        if self._keys is not None and self._values is not None:
            keys_BKTD = torch.cat((self._keys, keys_BKTD), dim=2)
            values_BKTD = torch.cat((self._values, values_BKTD), dim=2)
        self._keys, self._values = keys_BKTD, values_BKTD
        return keys_BKTD, values_BKTD


class Attention(nn.Module):
    """Causal attention in which groups of query heads share a key and value head.

    Grouped queries: Ainslie et al. 2023, arXiv:2305.13245; with as many key heads as query heads
    it is the multi-head attention of Vaswani et al. 2017, arXiv:1706.03762.
    """

    def __init__(self, channels: int, heads: int, kv_heads: int, head_channels: int) -> None:
        super().__init__()
        self.head_channels = head_channels
        self.query = nn.Linear(channels, heads * head_channels, bias=False)
        self.key = nn.Linear(channels, kv_heads * head_channels, bias=False)
        self.value = nn.Linear(channels, kv_heads * head_channels, bias=False)
        self.output = nn.Linear(heads * head_channels, channels, bias=False)

    def forward(
        self,
        x_BTC: Tensor,
        rotation: Rotation,
        cache: KeyValueCache | None = None,
        mask_B1TS: Tensor | None = None,
    ) -> Tensor:
        """[B, T, C] to [B, T, C]; `cache`, if given, is extended by these T positions.

        `mask_B1TS` is true where a query may look; without one, at itself and all before it.
        """
        query_BHTD = rotation(self._split_heads(self.query(x_BTC)))
        key_BKSD = rotation(self._split_heads(self.key(x_BTC)))
        value_BKSD = self._split_heads(self.value(x_BTC))
        if cache is not None:
            key_BKSD, value_BKSD = cache.extend(key_BKSD, value_BKSD)
        seen_BHTD = self.attend(query_BHTD, key_BKSD, value_BKSD, mask_B1TS)
        mixed_BTC: Tensor = self.output(seen_BHTD.transpose(1, 2).flatten(2))
        return mixed_BTC

    def attend(
        self,
        query_BHTD: Tensor,
        key_BKSD: Tensor,
        value_BKSD: Tensor,
        mask_B1TS: Tensor | None = None,
    ) -> Tensor:
        """What each query sees, [B, H, T, D]; the queries are those of the last T of S positions.

        Apart from `forward` so that another way to attend (over devices, say) can take its place.
        """
        new, seen = query_BHTD.shape[2], key_BKSD.shape[2]
        if mask_B1TS is None and new != seen:
            mask_B1TS = _causal_mask(new, seen, query_BHTD.device)
        return F.scaled_dot_product_attention(
            query_BHTD,
            key_BKSD,
            value_BKSD,
            attn_mask=mask_B1TS,
            is_causal=mask_B1TS is None,
            enable_gqa=query_BHTD.shape[1] != key_BKSD.shape[1],
        )

    def _split_heads(self, x_BTE: Tensor) -> Tensor:
        return x_BTE.view(*x_BTE.shape[:2], -1, self.head_channels).transpose(1, 2)


def document_mask(positions_BT: Tensor) -> Tensor:
    """[B, 1, T, T], true where a query may look: at itself and before it, in its own document.

    `positions_BT` [B, T] counts from 0 in each document; a row may begin inside one. Takes
    B * T * T bytes, and attention is computed over whole rows, of which the mask drops most.
    """
    documents_BT = (positions_BT == 0).cumsum(dim=1)
    together_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
    return together_BTT.tril()[:, None]


def _causal_mask(new: int, seen: int, device: torch.device) -> Tensor:
    """[T, S], true where the query may look: torch's own causal mask counts from the other end."""
    return torch.ones(new, seen, dtype=torch.bool, device=device).tril(seen - new)
