"""What a model returns.

Shapes: B batch, T positions, V entries of the vocabulary.
"""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class ModelOutput(NamedTuple):
    """Logits, and what a model's own parts add to the loss.

    A named tuple because FSDP looks for tensors in tuples and mappings alone.
    """

    logits: Tensor  # [B, T, V]
    auxiliary: Mapping[str, Tensor] = {}  # weighted scalars by name; of experts, say
