"""Supervised fine-tuning: next-token prediction on the words of the assistant.

Which tokens are targets is a matter of the batches: all others are IGNORE.
"""

from typing import Literal

from trainrig.objectives.causal import CausalLM


class SFT(CausalLM):
    """Cross-entropy of each token of the assistant, a mean over those of the global batch."""

    kind: Literal["SFT"] = "SFT"  # type: ignore[assignment]
