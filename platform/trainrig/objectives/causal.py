"""Next-token prediction: the negative log-likelihood of each token, given those before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from trainrig.config import Settings
from trainrig.objectives.contract import Computed, Contributions, DeviceBatch, Output, Term
from trainrig.tokens.batches import IDS, IGNORE, POSITIONS, TARGETS, TOKENS

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

CROSS_ENTROPY = "cross_entropy"


class CausalLM(Settings):
    """Cross-entropy of each next token that is a target, a mean over those of the global batch."""

    kind: Literal["CausalLM"] = "CausalLM"

    @property
    def terms(self) -> tuple[Term, ...]:
        """The cross-entropy alone."""
        return (Term(CROSS_ENTROPY, per=TOKENS),)

    @property
    def statistics(self) -> tuple[str, ...]:
        """None."""
        return ()

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """Nothing."""
        return {}

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Nats of each target of `batch` under `model`."""
        from trainrig.objectives.cross_entropy import token_nats

        if (positions_BT := batch.arrays.get(POSITIONS)) is None:
            output: Output = model(batch.arrays[IDS])
        else:
            output = model(batch.arrays[IDS], positions_BT=positions_BT)
        targets_BT = batch.arrays[TARGETS]
        nats_BT = token_nats(output.logits, targets_BT)
        counts_B = (targets_BT != IGNORE).sum(1)
        return Computed({CROSS_ENTROPY: Contributions(nats_BT, counts_B)}, output.auxiliary)
