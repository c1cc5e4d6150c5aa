"""How large fresh weights are. Gains begin at 1, biases at 0, whichever is chosen."""

import math
from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import Settings


class GPT2Init(Settings):
    """`initial_std`, and by the root of their number smaller where a layer adds to the stream, so
    that the stream does not grow with depth (Radford et al. 2019, section 2.3)."""

    kind: Literal["GPT2Init"] = "GPT2Init"

    def residual_std(self, std: float, layers: int, layer: int, channels: int) -> float:
        """Of the projections of `layer` that add to the stream."""
        return std / math.sqrt(2 * layers)

    def matrix_std(self, std: float, channels: int) -> float:
        """Of every other matrix."""
        return std


class LlamaInit(Settings):
    """`initial_std` for every matrix: what Transformers gives Llama, Mistral, Qwen and Gemma."""

    kind: Literal["LlamaInit"] = "LlamaInit"

    def residual_std(self, std: float, layers: int, layer: int, channels: int) -> float:
        """Of the projections of `layer` that add to the stream."""
        return std

    def matrix_std(self, std: float, channels: int) -> float:
        """Of every other matrix."""
        return std


class DepthScaledInit(Settings):
    """As GPT2Init, but by the root of the layers so far: less is added the later (Zhang et al.
    2019, arXiv:1908.11365; so torchtitan's Llama 3)."""

    kind: Literal["DepthScaledInit"] = "DepthScaledInit"

    def residual_std(self, std: float, layers: int, layer: int, channels: int) -> float:
        """Of the projections of `layer` that add to the stream."""
        return std / math.sqrt(2 * (layer + 1))

    def matrix_std(self, std: float, channels: int) -> float:
        """Of every other matrix."""
        return std


class SmallInit(Settings):
    """sqrt(2 / (5 channels)) (Nguyen & Salazar 2019, arXiv:1910.05895), and 2 / (layers
    sqrt(channels)) where a layer adds to the stream (Black et al. 2022, arXiv:2204.06745,
    section 2.1). `initial_std` is not set beside it."""

    kind: Literal["SmallInit"] = "SmallInit"

    def residual_std(self, std: float, layers: int, layer: int, channels: int) -> float:
        """Of the projections of `layer` that add to the stream."""
        return 2 / (layers * math.sqrt(channels))

    def matrix_std(self, std: float, channels: int) -> float:
        """Of every other matrix."""
        return math.sqrt(2 / (5 * channels))


Initialisation = Annotated[
    GPT2Init | LlamaInit | DepthScaledInit | SmallInit, Field(discriminator="kind")
]
