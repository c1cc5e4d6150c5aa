"""What low-rank adapters are told; needs no torch."""

import fnmatch
import math
from collections import Counter
from typing import Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.models.decoder_config import DecoderConfig, parameter_shapes

# First parts of the names of what a head of scores, classes or spans has of its own.
WHOLE = ("head", "head_bias", "pooler", "transform")
ROUTER = ".feedforward.router"  # last parts of the name of what chooses experts


class LoRA(Settings):
    """Low-rank adapters beside frozen weights: W + scale B A (Hu et al. 2021, arXiv:2106.09685)."""

    rank: int = Field(default=16, ge=1)  # rows of A and columns of B
    # Numerator of the scale: alpha / rank, or with `rslora` alpha / sqrt(rank).
    alpha: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    # Names of the layers that get an adapter, by their last parts, with * for any: `attention.*`,
    # `layers.3.*`, `embedding`, `head`. Routers of a mixture of experts have none.
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

    def choose(self, model: DecoderConfig) -> list[str]:
        """The layers of `model` that get an adapter, in their order. A router gets none, whatever
        matches: it decides where tokens go, and a product of it is never made by itself.

        Raises ConfigError for a pattern that matches no layer, and for one that names routers.
        """
        names = list_matrices(model)
        routers = {name for name in names if is_router(name)}
        there = ", ".join(sorted({_remove_number(name) for name in names if name not in routers}))
        chosen: set[str] = set()
        for pattern in self.targets:
            matched = {name for name in names if _matches(name, pattern)}
            if not matched:
                raise ConfigError(
                    f"lora.targets: {pattern!r} matches no layer of this model; there are: {there}"
                )
            if matched <= routers and "router" in pattern:
                raise ConfigError(
                    f"lora.targets: {pattern!r} names routers, which choose experts and stay as "
                    f"they are; leave it out; there are: {there}"
                )
            chosen |= matched - routers
        if not chosen:
            raise ConfigError(
                f"lora.targets: {', '.join(map(repr, self.targets))} matches routers alone, which "
                f"have no adapter; there are: {there}"
            )
        return [name for name in names if name in chosen]

    def describe_choice(self, model: DecoderConfig) -> str:
        """The layers of `model` that get an adapter, by kind, each with how many there are. Raises
        ConfigError as `choose` does."""
        counts = Counter(map(_remove_number, self.choose(model)))
        return ", ".join(name if n == 1 else f"{name} x {n}" for name, n in counts.items())


def list_matrices(model: DecoderConfig) -> list[str]:
    """Names of the layers of `model` that multiply by a matrix or look up in a table, in their
    order; without those of a head that is trained whole. Experts are stacks of matrices."""
    return [
        name.removesuffix(".weight")
        for name, size in parameter_shapes(model).items()
        if name.endswith(".weight") and len(size) == 2 and not is_of_head(model, name)
    ]


def is_router(layer: str) -> bool:
    """Whether the layer of that name chooses experts."""
    return layer.endswith(ROUTER)


def is_of_head(model: DecoderConfig, name: str) -> bool:
    """Whether what has that `name` is of a head of something else than tokens."""
    return model.head != "tokens" and name.partition(".")[0] in WHOLE


def alpha_divisor(rank: int, rslora: bool) -> float:
    """What alpha is divided by for the scale of an adapter of `rank`."""
    return math.sqrt(rank) if rslora else rank


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*.{pattern}")


def _remove_number(name: str) -> str:
    """`attention.query` of `layers.3.attention.query`."""
    parts = name.split(".")
    return ".".join(parts[2:]) if parts[0] == "layers" and len(parts) > 2 else name
