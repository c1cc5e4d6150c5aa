"""Initial weights, each a function of the seed, the name of its parameter and its index.

Any slice can be drawn independently on any device, so a model has the same initial bits on one
process and on a thousand.
"""

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.initialisation import find_role, is_bias
from trainrig.models.architecture.layer_settings import RMSNorm
from trainrig.randomness import RandomKey, draw_normals

# Matches the projections that add to the residual stream; the group is the number of the layer.
RESIDUAL = re.compile(r"(?:further_)?layers\.(\d+)\..*\b(?:(?:output|down)\.weight|experts\.down)")

GENERATOR = "generator."  # prefix of the parameters of an ELECTRA generator

# Number of elements drawn at a time. On the CPU the intermediate values must fit its cache.
ELEMENTS_AT_ONCE = {"cpu": 2**16, "cuda": 2**22}


@torch.no_grad()
def fill_fresh(
    part: Tensor,
    name: str,
    size: Sequence[int],
    first: Sequence[int],
    config: DecoderConfig,
    seed: int,
) -> None:
    """Fill `part` with its initial values, in place.

    `part` is the slice of the parameter `name`, of shape `size`, that begins at the indices
    `first`.
    """
    if len(size) == 1 or is_bias(name):
        part.fill_(_find_constant(name, config))
        return
    key = RandomKey(seed, "fresh weights", name)
    std = compute_initial_std(name, config)
    flat = part.view(-1)
    step = ELEMENTS_AT_ONCE[part.device.type]
    for begin in range(0, part.numel(), step):
        here = torch.arange(begin, min(begin + step, part.numel()), device=part.device)
        flat[begin : begin + step] = (
            draw_normals(key, _find_places(here, part.shape, size, first)) * std
        )


def compute_initial_std(name: str, config: DecoderConfig) -> float:
    """Return the standard deviation of the initial values of the matrix `name`."""
    generator = config.generator_model
    if generator is not None and name.startswith(GENERATOR):
        return compute_initial_std(name.removeprefix(GENERATOR), generator)
    kind = config.initialisation
    std = config.initial_std
    if config.mup is not None:
        std *= config.mup.std_share(find_role(name, dims=2), config.channels)
    residual = RESIDUAL.fullmatch(name)
    if residual is None:
        return kind.matrix_std(std, config.channels)
    return kind.residual_std(std, config.layers, int(residual[1]), config.channels)


def _find_constant(name: str, config: DecoderConfig) -> float:
    """Return the initial value of the vector `name`.

    Gains of norms begin at 1. Biases, sinks, and gains that are stored minus 1 begin at 0.
    """
    offset = isinstance(config.norm, RMSNorm) and config.norm.unit_offset
    zero = is_bias(name) or name.endswith(".sinks") or offset
    return 0.0 if zero else 1.0


def _find_places(
    here: Tensor, part: Sequence[int], size: Sequence[int], first: Sequence[int]
) -> Tensor:
    """Return the row-major indices in the whole parameter of the elements `here` of a slice."""
    if tuple(part[1:]) == tuple(size[1:]):  # The slice is of whole rows.
        return here + first[0] * math.prod(size[1:])
    places = torch.zeros_like(here)
    stride = 1
    for length, whole, begin in zip(reversed(part), reversed(size), reversed(first), strict=True):
        places += (here % length + begin) * stride
        here = here // length
        stride = stride * whole
    return places
