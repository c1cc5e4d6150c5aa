"""Next-token prediction: the negative log-likelihood of each token, given those before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.objectives.contract import Computed, Contributions, DeviceBatch, Output, Term
from trainrig.objectives.padding import mark_text
from trainrig.tokens.batches import IDS, IGNORE, POSITIONS, TARGETS, TOKENS

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

CROSS_ENTROPY = "cross_entropy"
Z_LOSS = "z_loss"
UNIFORM = "uniform_cross_entropy"


class CausalLM(Settings):
    """Cross-entropy of each next token that is a target, averaged over the global batch."""

    kind: Literal["CausalLM"] = "CausalLM"

    # Weight of the z-loss, the squared log-normaliser of the softmax, which keeps logits from
    # drifting (PaLM, arXiv:2204.02311, section 5, uses 1e-4). 0: no z-loss.
    z_loss: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    # Label smoothing: the share of the target's probability that is spread evenly over the
    # vocabulary (Szegedy et al. 2016, arXiv:1512.00567, section 7). 0: none.
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The cross-entropy, and the z-loss and label smoothing if they have a weight."""
        found = [Term(CROSS_ENTROPY, per=TOKENS, weight=1 - self.label_smoothing)]
        if self.z_loss:
            found.append(Term(Z_LOSS, per=TOKENS, weight=self.z_loss))
        if self.label_smoothing:
            found.append(Term(UNIFORM, per=TOKENS, weight=self.label_smoothing))
        return tuple(found)

    @property
    def statistics(self) -> tuple[str, ...]:
        """No statistics."""
        return ()

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """Return no statistics."""
        return {}

    def predict(self, model: nn.Module, batch: DeviceBatch) -> Output:
        """Return the model output for `batch`; its logits predict each position's target."""
        output: Output
        text = mark_text(model, batch)
        if (positions_BT := batch.arrays.get(POSITIONS)) is None:
            output = model(batch.arrays[IDS], **text)
        else:
            output = model(batch.arrays[IDS], positions_BT=positions_BT, **text)
        return output

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the cross-entropy, in nats, of each target of `batch` under `model`."""
        output = self.predict(model, batch)
        terms = self.compute_losses(output, batch.arrays[TARGETS], batch.all_targets)
        return Computed(terms, output.auxiliary)

    def compute_losses(
        self,
        output: Output,
        targets_BT: Tensor,
        all_targets: bool = False,
        weights_BT: Tensor | None = None,
    ) -> dict[str, Contributions]:
        """Compute each loss term for `targets_BT` under the logits of `output`.

        `all_targets`: no target is IGNORE. `weights_BT`: weight of each target in the
        cross-entropy, in hundredths.
        """
        from trainrig.objectives.chunked_head import Extras, compute_head_loss

        counts_B = (targets_BT != IGNORE).sum(1)
        # The backward pass of the cross-entropy includes the gradients of all terms relative to the
        # cross-entropy's weight, because the denominator is the same.
        own = 1 - self.label_smoothing
        extras = Extras(self.z_loss / own, self.label_smoothing / own)
        given = output.hidden, output.head, targets_BT, extras, all_targets
        loss = compute_head_loss(*given, weights_BT)
        values = {CROSS_ENTROPY: loss.nats_BT, Z_LOSS: loss.z_BT, UNIFORM: loss.uniform_BT}
        found = {
            name: Contributions(values_BT, counts_B)
            for name, values_BT in values.items()
            if name in {term.name for term in self.terms}
        }
        if weights_BT is not None:
            found[CROSS_ENTROPY] = Contributions(loss.nats_BT, weights_BT.sum(1))
        return found
