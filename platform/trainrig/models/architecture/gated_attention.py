"""Settings of gated attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from trainrig.models.architecture.attention import AttentionSettings
from trainrig.models.architecture.shapes import AttentionShape, ProjectionShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


@dataclass(frozen=True)
class GatedAttentionShape(AttentionShape):
    """Shapes of one layer's attention, with a gate for each channel of each query head."""

    gate: ProjectionShape


class GatedAttention(AttentionSettings):
    """Attention whose output is multiplied by a sigmoid gate, computed from the query's token.

    A token can switch off what it attends to, so it needs no attention sink (Qiu et al. 2025,
    arXiv:2505.06708).
    """

    kind: Literal["GatedAttention"] = "GatedAttention"  # type: ignore[assignment]

    def add_parts(self, plain: AttentionShape) -> GatedAttentionShape:
        """Return `plain` with the gate added."""
        gate = ProjectionShape(plain.query.inputs, plain.query.outputs)
        return GatedAttentionShape(**vars(plain), gate=gate)

    def attend(
        self,
        layer: nn.Module,
        x_BTC: Tensor,
        query_BHTD: Tensor,
        key_BKSD: Tensor,
        value_BKSD: Tensor,
        see: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Return the output of the heads times the gate, [B, H, T, D]."""
        gate_BTE: Tensor = cast("nn.Module", layer.gate)(x_BTC)
        gate_BTHD = gate_BTE.view(*gate_BTE.shape[:2], -1, query_BHTD.shape[-1])
        return see(query_BHTD, key_BKSD, value_BKSD) * gate_BTHD.transpose(1, 2).sigmoid()
