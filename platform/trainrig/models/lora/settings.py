"""What low-rank adapters are told; needs no torch."""

import fnmatch
import math
from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError


class LoRA(Settings):
    """Low-rank adapters beside frozen weights: W + scale B A (Hu et al. 2021, arXiv:2106.09685)."""

    rank: int = Field(default=16, ge=1)  # rows of A and columns of B
    # Numerator of the scale: alpha / rank, or with `rslora` alpha / sqrt(rank).
    alpha: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    # Names of the layers that get an adapter, by their last parts, with * for any: `attention.*`,
    # `layers.3.*`, `embedding`, `head`.
    targets: tuple[str, ...] = Field(default=("attention.*", "feedforward.*"), min_length=1)
    # Whether the scale is alpha / sqrt(rank), which suits high ranks (arXiv:2312.03732).
    rslora: bool = False
    # Whether the length of each row of W is trained apart from its direction (arXiv:2402.09353).
    dora: bool = False
    # Share of the inputs of adapters of linear layers that are set to 0 in training, the others
    # being scaled up; 0: none. Which ones goes by the sample, the layer and the place alone.
    dropout: float = Field(default=0.0, ge=0, lt=1)
    dropout_seed: int = 0  # random seed of the dropout
    # Number format that frozen weights are held in; int8: matrices by rows, each row with a scale
    # of its own, and the table of embeddings in bfloat16.
    base: Literal["float32", "bfloat16", "int8"] = "float32"

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / alpha_divisor(self.rank, self.rslora)

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Those of the layers `names` that get an adapter, in their order.

        Raises ConfigError for a pattern that matches none of them.
        """
        names = list(names)
        for pattern in self.targets:
            if not any(_matches(name, pattern) for name in names):
                kinds = sorted({_without_number(name) for name in names})
                raise ConfigError(
                    f"lora.targets: {pattern!r} matches no layer of this model; there are: "
                    + ", ".join(kinds)
                )
        return [name for name in names if any(_matches(name, each) for each in self.targets)]


def alpha_divisor(rank: int, rslora: bool) -> float:
    """What alpha is divided by for the scale of an adapter of `rank`."""
    return math.sqrt(rank) if rslora else rank


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*.{pattern}")


def _without_number(name: str) -> str:
    """`attention.query` of `layers.3.attention.query`."""
    parts = name.split(".")
    return ".".join(parts[2:]) if parts[0] == "layers" and len(parts) > 2 else name
