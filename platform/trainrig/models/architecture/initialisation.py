"""Standard deviations of initial weights, and muP, the scaling of rates and weights with the width.

In all schemes gains begin at 1 and biases at 0.

With muP the learning rate of a narrow model suits a wide one.

Yang et al. 2022, "Tensor Programs V" (arXiv:2203.03466): table 3, and for a tied head table 8,
where a factor on the logits stands for smaller weights. A parameter's role says which of its two
dims grow with the width: "input" (a table: the vector size only), "output" (a matrix of which only
the inputs grow), "hidden" (both), or "vector".

Shapes: m = channels / base_channels.
"""

import math
from collections.abc import Mapping
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


Role = Literal["input", "hidden", "output", "vector"]
# Matrices whose number of outputs (vocabulary entries or experts) does not grow with the width.
OUTPUTS = ("head.weight", "router.weight")
TABLES = ("embedding.weight", "position_embedding.weight", "segment_embedding.weight")


class MuP(Settings):
    """muP: initial weights, learning rates, attention and logits scaled with the width.

    All sizes except those of heads, vocabulary and experts are assumed to grow in proportion to
    `channels` (Yang et al. 2022, arXiv:2203.03466).
    """

    # Width of the model whose learning rate is used; at this width nothing is scaled.
    base_channels: int = Field(ge=1)
    # Width of a head of that model, from which attention logits scale as 1 / head_channels; None:
    # the head width of this model, for wider models with more heads.
    base_head_channels: int | None = Field(default=None, ge=1)

    def multiple(self, channels: int) -> float:
        """Return m, the width relative to the base, of a model of `channels`."""
        return channels / self.base_channels

    def std_share(self, role: Role, channels: int) -> float:
        """Return the factor on the standard deviation of initial weights."""
        multiple = self.multiple(channels)
        return {"hidden": 1 / math.sqrt(multiple), "output": 1 / multiple}.get(role, 1.0)

    def query_scale(self, at_base: float | None, head_channels: int) -> float | None:
        """Return the factor on attention logits for a model whose base model has `at_base`."""
        base = self.base_head_channels or head_channels
        if base == head_channels:
            return at_base
        return (at_base or 1 / math.sqrt(base)) * base / head_channels


def is_bias(name: str) -> bool:
    """Return whether the parameter `name` is a bias, of one layer or of all experts of a layer."""
    return name.rpartition(".")[2].endswith("bias")


def find_role(name: str, dims: int) -> Role:
    """Return the role of the decoder's parameter `name`, which has `dims` dims."""
    if dims < 2 or is_bias(name):
        return "vector"
    if name in TABLES:
        return "input"
    return "output" if name.endswith(OUTPUTS) else "hidden"


def find_roles(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Role]:
    """Return the role of each parameter of a decoder, by name."""
    return {name: find_role(name, len(shape)) for name, shape in shapes.items()}
