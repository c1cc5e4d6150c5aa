"""Losses that tests compute directly."""

from torch import Tensor

from trainrig.objectives.cross_entropy import token_nats


def cross_entropy_sum(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the summed cross-entropy, in nats, of every target that is not IGNORE.

    A float32 scalar with gradients.
    """
    return token_nats(logits_BTV, targets_BT).sum()
