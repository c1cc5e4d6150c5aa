"""Settings of low-rank adapters, without torch."""

import fnmatch
import math
from collections import Counter
from typing import Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig, parameter_shapes

# First parts of the names of parameters that belong to a head for scores, classes or spans.
WHOLE = ("head", "head_bias", "pooler", "transform")
ROUTER = ".feedforward.router"  # last parts of the name of a router of experts


class LoRA(Settings):
    """Low-rank adapters on frozen weights: W + scale B A (Hu et al. 2021, arXiv:2106.09685)."""

    rank: int = Field(default=16, ge=1)  # rank: number of rows of A and of columns of B
    # Numerator of the adapter's scale: alpha / rank, or with `rslora` alpha / sqrt(rank).
    alpha: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    # Layers that get an adapter, by the last parts of their names, with * as wildcard:
    # `attention.*`, `layers.3.*`, `embedding`, `head`. Routers of a mixture of experts never get
    # one.
    targets: tuple[str, ...] = Field(default=("attention.*", "feedforward.*"), min_length=1)
    # Use the scale alpha / sqrt(rank), which suits high ranks (rsLoRA, arXiv:2312.03732).
    rslora: bool = False
    # Train the length of each row of W separately from its direction (DoRA, arXiv:2402.09353).
    dora: bool = False
    # Share of the inputs of adapters on linear layers that dropout sets to 0 in training, scaling
    # up the others; 0: no dropout. The mask depends only on the sample, the layer and the position.
    dropout: float = Field(default=0.0, ge=0, lt=1)
    dropout_seed: int = 0  # random seed of the dropout
    # Data type of the frozen weights. With int8, each row of a matrix has a scale, and embeddings
    # are kept in bfloat16.
    base: Literal["float32", "bfloat16", "int8"] = "float32"

    @property
    def scale(self) -> float:
        """The factor on B A: alpha / rank, or alpha / sqrt(rank) with rsLoRA."""
        return self.alpha / alpha_divisor(self.rank, self.rslora)

    def choose(self, model: DecoderConfig) -> list[str]:
        """Return the names of the layers of `model` that get an adapter, in their order.

        A router never gets one, even if a pattern matches: it decides where tokens go, and its
        product is not computed by a layer of this module. Raises ConfigError for a pattern that
        matches no layer, and for one that names routers.
        """
        names = list_matrices(model)
        routers = {name for name in names if is_router(name)}
        there = ", ".join(sorted({_remove_number(name) for name in names if name not in routers}))
        chosen: set[str] = set()
        for pattern in self.targets:
            matched = {name for name in names if _matches(name, pattern)}
            if not matched:
                raise ConfigError(
                    f"lora.targets: {pattern!r} matches no layer of this model; its layers are: "
                    f"{there}"
                )
            if matched <= routers and "router" in pattern:
                raise ConfigError(
                    f"lora.targets: {pattern!r} names routers, which get no adapter; leave it "
                    f"out; the layers of this model are: {there}"
                )
            chosen |= matched - routers
        if not chosen:
            raise ConfigError(
                f"lora.targets: {', '.join(map(repr, self.targets))} matches only routers, which "
                f"get no adapter; the layers of this model are: {there}"
            )
        return [name for name in names if name in chosen]

    def describe_choice(self, model: DecoderConfig) -> str:
        """Return the layers that get an adapter, by kind and with their number, for reports.

        Raises ConfigError as `choose` does.
        """
        counts = Counter(map(_remove_number, self.choose(model)))
        return ", ".join(name if n == 1 else f"{name} x {n}" for name, n in counts.items())


def list_matrices(model: DecoderConfig) -> list[str]:
    """Return the names of the layers of `model` with a matrix or an embedding table, in order.

    Layers of a head that is trained whole are left out, and so are stacked experts.
    """
    return [
        name.removesuffix(".weight")
        for name, size in parameter_shapes(model).items()
        if name.endswith(".weight") and len(size) == 2 and not is_of_head(model, name)
    ]


def is_router(layer: str) -> bool:
    """Return whether the layer of that name is a router of experts."""
    return layer.endswith(ROUTER)


def is_of_head(model: DecoderConfig, name: str) -> bool:
    """Return whether `name` belongs to a head for something other than tokens.

    `name` is that of a layer or a parameter.
    """
    return model.head != "tokens" and name.partition(".")[0] in WHOLE


def alpha_divisor(rank: int, rslora: bool) -> float:
    """Return what alpha is divided by to get the scale of an adapter of `rank`."""
    return math.sqrt(rank) if rslora else rank


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*.{pattern}")


def _remove_number(name: str) -> str:
    """Return `attention.query` for `layers.3.attention.query`, the name without the layer."""
    parts = name.split(".")
    return ".".join(parts[2:]) if parts[0] == "layers" and len(parts) > 2 else name
