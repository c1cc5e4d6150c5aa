"""muP: what a decoder of any width needs so that the learning rate of a narrow one serves it.

Yang et al. 2022, "Tensor Programs V" (arXiv:2203.03466): table 3, and for a head that shares the
embedding table 8, where a factor on the logits stands for a smaller matrix. A parameter's role is
how its two sizes grow with the width: that of inputs (a table: its rows only), that of outputs (a
matrix whose inputs alone grow), hidden (both), or a vector.

Shapes: m = channels / base_channels.
"""

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from trainrig.config import Settings

Role = Literal["input", "hidden", "output", "vector"]
# Matrices whose outputs do not grow with the width: entries of the vocabulary, or experts.
OUTPUTS = ("head.weight", "router.weight")
TABLES = ("embedding.weight", "position_embedding.weight", "segment_embedding.weight")


class MuP(Settings):
    """Fresh weights, rates, attention and logits by width (Yang et al. 2022, arXiv:2203.03466).

    All sizes but those of heads, vocabulary and experts are taken to grow as `channels` does.
    """

    # Width at which it changes nothing: that of the model whose learning rate is used.
    base_channels: int = Field(ge=1)
    # Width of a head there, which logits of attention are scaled from by 1 / head_channels; None:
    # that of this model, as wider ones have more heads.
    base_head_channels: int | None = Field(default=None, ge=1)

    def multiple(self, channels: int) -> float:
        """m, of a model of `channels`."""
        return channels / self.base_channels

    def std_share(self, role: Role, channels: int) -> float:
        """Factor on the standard deviation of fresh weights."""
        multiple = self.multiple(channels)
        return {"hidden": 1 / math.sqrt(multiple), "output": 1 / multiple}.get(role, 1.0)

    def query_scale(self, at_base: float | None, head_channels: int) -> float | None:
        """Factor on the logits of attention of a model that has `at_base` at the base."""
        base = self.base_head_channels or head_channels
        if base == head_channels:
            return at_base
        return (at_base or 1 / math.sqrt(base)) * base / head_channels


def find_role(name: str, dims: int) -> Role:
    """The role of the decoder's parameter `name`, which has so many `dims`."""
    if dims < 2:
        return "vector"
    if name in TABLES:
        return "input"
    return "output" if name.endswith(OUTPUTS) else "hidden"


def find_roles(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Role]:
    """The role of each parameter of a decoder, by name."""
    return {name: find_role(name, len(shape)) for name, shape in shapes.items()}
