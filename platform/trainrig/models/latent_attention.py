"""Multi-head latent attention, and the choice of the attention module for a layer.

Shapes as in attention.py, and: L channels of the latent, Q of the queries' latent, R rotated
channels of a head, N channels of a head's key that are not rotated, V channels of a head's value.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.architecture.attention_settings import AttentionSettings, LatentAttention
from trainrig.models.architecture.layer_settings import Normalisation, RMSNorm
from trainrig.models.architecture.shapes import AttentionShape
from trainrig.models.attention import Attention
from trainrig.models.layer_parts import Norm, Rotation


class MultiHeadLatentAttention(Attention):
    """Attention whose keys and values are computed from one narrow vector of each token.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1. The rotated channels of a head come first.
    """

    query_down: nn.Linear
    query_down_norm: Norm
    rotated_key: nn.Linear
    latent: nn.Linear
    latent_norm: Norm

    def __init__(
        self,
        shape: AttentionShape,
        head_channels: int,
        settings: LatentAttention,
        alibi: bool = False,
        rotated: bool = True,
    ) -> None:
        norm = RMSNorm(epsilon=settings.norm_epsilon)
        super().__init__(shape, head_channels, norm, settings, alibi, rotated)
        self.has_query_latent = settings.query_channels is not None
        self.value_channels = settings.value_channels

    def compute_heads(
        self, x_BTC: Tensor, rotation: Rotation | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of `x_BTC`, [B, H, T, D], values padded with zeros."""
        query_BTE = self.query(self._read_query_input(x_BTC))
        query_BHTD = self._split_heads(query_BTE, None)
        key_BTR, latent_BTL = self.multiply(x_BTC, (self.rotated_key, self.latent))
        key_B1TR = key_BTR[:, None]
        if rotation is not None:
            query_BHTD = rotation(query_BHTD)
            key_B1TR = rotation(key_B1TR)
        heads = query_BHTD.shape[1]
        key_BTE, value_BTE = self.multiply(self.latent_norm(latent_BTL), (self.key, self.value))
        split = (*key_BTE.shape[:2], heads, -1)
        key_BHTN = key_BTE.view(split).transpose(1, 2)
        value_BHTV = value_BTE.view(split).transpose(1, 2)
        key_BHTD = torch.cat((key_B1TR.expand(-1, heads, -1, -1), key_BHTN), dim=-1)
        value_BHTD = F.pad(value_BHTV, (0, self.head_channels - self.value_channels))
        return query_BHTD, key_BHTD, value_BHTD

    def join_heads(self, seen_BHTD: Tensor) -> Tensor:
        """Return what the output projection reads, [B, T, H V], without the padding of values."""
        return super().join_heads(seen_BHTD[..., : self.value_channels])

    def _read_query_input(self, x_BTC: Tensor) -> Tensor:
        """Return what queries are computed from: their latent [B, T, Q], or `x_BTC` itself."""
        if not self.has_query_latent:
            return x_BTC
        latent_BTQ: Tensor = self.query_down_norm(self.query_down(x_BTC))
        return latent_BTQ


def build_attention(
    shape: AttentionShape,
    head_channels: int,
    norm: Normalisation,
    settings: AttentionSettings,
    alibi: bool = False,
    rotated: bool = True,
) -> Attention:
    """Return the attention module of a layer, of the kind that `settings` choose."""
    if isinstance(settings, LatentAttention):
        return MultiHeadLatentAttention(shape, head_channels, settings, alibi, rotated)
    return Attention(shape, head_channels, norm, settings, alibi, rotated)
