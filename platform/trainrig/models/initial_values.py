"""Fresh weights: each a function of the seed, the name of its parameter and its place in that.

So any slice is drawn by itself, on any device: one process and a thousand begin with the same bits.
"""

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from trainrig.models.architecture.norms import RMSNorm
from trainrig.models.architecture.width_transfer import find_role
from trainrig.models.decoder_config import DecoderConfig
from trainrig.randomness import RandomKey, draw_normals

# Projections that add to the residual stream, and the number of their layer.
RESIDUAL = re.compile(r"(?:further_)?layers\.(\d+)\..*\b(?:(?:output|down)\.weight|experts\.down)")

GENERATOR = "generator."  # before the names of parameters of a model that is trained beside

# Elements drawn at a time: on the CPU so few that what is computed on the way stays in its cache.
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
    """Give `part` its fresh values, in place: the slice of the parameter `name`, which has the
    sizes `size`, that begins at `first`.
    """
    if len(size) == 1:
        part.fill_(_find_constant(name, config))
        return
    key, std = RandomKey(seed, "fresh weights", name), compute_initial_std(name, config)
    flat, step = part.view(-1), ELEMENTS_AT_ONCE[part.device.type]
    for begin in range(0, part.numel(), step):
        here = torch.arange(begin, min(begin + step, part.numel()), device=part.device)
        flat[begin : begin + step] = (
            draw_normals(key, _find_places(here, part.shape, size, first)) * std
        )


def compute_initial_std(name: str, config: DecoderConfig) -> float:
    """Of the fresh values of a matrix."""
    generator = config.generator_model
    if generator is not None and name.startswith(GENERATOR):
        return compute_initial_std(name.removeprefix(GENERATOR), generator)
    kind, std = config.initialisation, config.initial_std
    if config.mup is not None:
        std *= config.mup.std_share(find_role(name, dims=2), config.channels)
    residual = RESIDUAL.fullmatch(name)
    if residual is None:
        return kind.matrix_std(std, config.channels)
    return kind.residual_std(std, config.layers, int(residual[1]), config.channels)


def _find_constant(name: str, config: DecoderConfig) -> float:
    """Of a vector: gains of norms are 1; biases, sinks, and weights that 1 is added to are 0."""
    offset = isinstance(config.norm, RMSNorm) and config.norm.unit_offset
    zero = name.endswith((".bias", ".sinks", ".balance_bias", "head_bias")) or offset
    return 0.0 if zero else 1.0


def _find_places(
    here: Tensor, part: Sequence[int], size: Sequence[int], first: Sequence[int]
) -> Tensor:
    """Where the elements number `here` of a slice lie in the whole, row by row."""
    if tuple(part[1:]) == tuple(size[1:]):  # whole rows
        return here + first[0] * math.prod(size[1:])
    places, stride = torch.zeros_like(here), 1
    for length, whole, begin in zip(reversed(part), reversed(size), reversed(first), strict=True):
        places += (here % length + begin) * stride
        here, stride = here // length, stride * whole
    return places
