"""Schemes for the standard deviation of initial weights.

In all of them gains begin at 1 and biases at 0.
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import Settings


class GPT2Init(Settings):
    """`initial_std`, divided by sqrt(2 layers) for projections that add to the residual stream.

    The stream then does not grow with depth (Radford et al. 2019, section 2.3).
    """

    kind: Literal["GPT2Init"] = "GPT2Init"

    def residual_std(self, std: float, layers: int, layer: int, channels: int) -> float:
        """Return the standard deviation for projections of `layer` that add to the stream."""
        return std / math.sqrt(2 * layers)

    def matrix_std(self, std: float, channels: int) -> float:
        """Return the standard deviation for every other matrix."""
        return std


class LlamaInit(Settings):
    """`initial_std` for every matrix, as Transformers does for Llama, Mistral, Qwen and Gemma."""

    kind: Literal["LlamaInit"] = "LlamaInit"

    def residual_std(self, std: float, layers: int, layer: int, channels: int) -> float:
        """Return the standard deviation for projections of `layer` that add to the stream."""
        return std

    def matrix_std(self, std: float, channels: int) -> float:
        """Return the standard deviation for every other matrix."""
        return std


class DepthScaledInit(Settings):
    """GPT2Init with sqrt(2 n) in the n-th layer as the divisor, so later layers add less.

    Sources: Zhang et al. 2019, arXiv:1908.11365; torchtitan's Llama 3 does the same.
    """

    kind: Literal["DepthScaledInit"] = "DepthScaledInit"

    def residual_std(self, std: float, layers: int, layer: int, channels: int) -> float:
        """Return the standard deviation for projections of `layer` that add to the stream."""
        return std / math.sqrt(2 * (layer + 1))

    def matrix_std(self, std: float, channels: int) -> float:
        """Return the standard deviation for every other matrix."""
        return std


class SmallInit(Settings):
    """sqrt(2 / (5 channels)); `initial_std` cannot be set with it.

    Projections that add to the residual stream have 2 / (layers sqrt(channels)) instead (Nguyen &
    Salazar 2019, arXiv:1910.05895; Black et al. 2022, arXiv:2204.06745, section 2.1).
    """

    kind: Literal["SmallInit"] = "SmallInit"

    def residual_std(self, std: float, layers: int, layer: int, channels: int) -> float:
        """Return the standard deviation for projections of `layer` that add to the stream."""
        return 2 / (layers * math.sqrt(channels))

    def matrix_std(self, std: float, channels: int) -> float:
        """Return the standard deviation for every other matrix."""
        return math.sqrt(2 / (5 * channels))


Initialisation = Annotated[
    GPT2Init | LlamaInit | DepthScaledInit | SmallInit, Field(discriminator="kind")
]
