"""Supervised fine-tuning: next-token prediction on the assistant's messages.

The batches decide which ids are targets, and their weights: see WEIGHTS.

Shapes: B rows of a micro-batch, T positions, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from trainrig.objectives.causal import CausalLM
from trainrig.objectives.contract import Computed, DeviceBatch, Term
from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens.batches import IGNORE, TARGETS, WEIGHTS

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn


class SFT(CausalLM):
    """Cross-entropy of each token of the assistant, averaged over the global batch.

    A token has the weight of its message.
    """

    kind: Literal["SFT"] = "SFT"  # type: ignore[assignment]
    # Noise on embeddings in training: each channel gets a uniform number between plus and minus
    # noise / sqrt(tokens of the row x channels). Jain et al. 2023, "NEFTune", arXiv:2310.05914, use
    # 5 to 15. 0: no noise.
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    noise_seed: int = 0  # random seed of the noise; a sample always gets the same noise

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of next-token prediction, with the cross-entropy averaged by weight."""
        first, *others = super().terms
        return (Term(first.name, per=WEIGHTS, weight=first.weight), *others)

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the cross-entropy of each target of `batch`, times its weight in hundredths."""
        import torch

        hook = None
        if self.noise and torch.is_grad_enabled():
            hook = model.get_submodule("embedding").register_forward_hook(
                self._make_noise_hook(batch)
            )
        try:
            output = self.predict(model, batch)
        finally:
            if hook:
                hook.remove()
        targets_BT = batch.arrays[TARGETS]
        weights_BT = batch.arrays[WEIGHTS]
        terms = self.compute_losses(output, targets_BT, batch.all_targets, weights_BT)
        return Computed(terms, output.auxiliary)

    def _make_noise_hook(self, batch: DeviceBatch) -> Any:
        def add(module: nn.Module, given: Any, embedded_BTC: Tensor) -> Tensor:
            shape = embedded_BTC.shape[1:]
            noise_BTC = uniform_noise(self.noise_seed, batch.samples_B, shape).to(embedded_BTC)
            tokens_B = count_row_tokens(batch)
            scale_B = self.noise / (tokens_B * embedded_BTC.shape[2]).sqrt()
            return embedded_BTC + noise_BTC * scale_B[:, None, None].to(embedded_BTC)

        return add


def uniform_noise(seed: int, samples_B: Tensor, shape: Sequence[int]) -> Tensor:
    """Return uniform float64 noise [B, *shape] between -1 and 1.

    It depends on `seed`, the global sample number and the position in `shape` alone.
    """
    import torch

    places = torch.arange(math.prod(shape), device=samples_B.device)
    key = RandomKey(seed, "embedding noise")
    return (draw_uniforms(key, places[None], samples_B[:, None]) * 2 - 1).view(-1, *shape)


def count_row_tokens(batch: DeviceBatch) -> Tensor:
    """Return the number [B] of ids of each row up to its last target; padding follows."""
    import torch

    targets_BT = batch.arrays[TARGETS]
    places_T = torch.arange(1, targets_BT.shape[1] + 1, device=targets_BT.device)
    return ((targets_BT != IGNORE) * places_T).amax(1).clamp(min=1).float()
