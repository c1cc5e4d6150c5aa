"""Weights in MXFP4, four bits a number: how published gpt-oss models store their experts.

A block of 32 numbers has 16 bytes, two numbers in each, the lower half first. A number is one of
sixteen values times a power of two, whose exponent plus 127 is a byte for each block (Open Compute
Project 2023, Microscaling Formats Specification 1.0, sections 5.3 and 6).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainrig.errors import DataError
from trainrig.models.families.safetensors_files import StoredTensor

METHOD = "mxfp4"  # name of the format in a config.json
BLOCKS = "_blocks"
SCALES = "_scales"
POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = (*POSITIVE, *(-value for value in POSITIVE))
BLOCK_BYTES = 16  # bytes of a block of 32 numbers
BIAS = 127  # added to exponents


@dataclass(frozen=True)
class PackedTensor:
    """Stack of matrices in MXFP4, read as bfloat16, which holds its numbers exactly.

    The matrices are stored as [outputs, inputs] and read as [inputs, outputs].
    """

    blocks: StoredTensor
    scales: StoredTensor

    @property
    def path(self) -> str:
        """The file that holds the numbers."""
        return self.blocks.path

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the stack as it is read."""
        experts, outputs, groups, size = self.blocks.shape
        return experts, 2 * groups * size, outputs

    def read(self) -> Tensor:
        """Return the stack in bfloat16, [experts, inputs, outputs]."""
        values = torch.tensor(VALUES)
        packed = self.blocks.read_bytes()
        scales = self.scales.read_bytes()
        stack = torch.empty(self.shape, dtype=torch.bfloat16)
        for expert, (numbers, exponents) in enumerate(zip(packed, scales, strict=True)):
            halves = torch.stack((numbers & 15, numbers >> 4), dim=-1).flatten(2)
            matrix = torch.ldexp(values[halves.int()], exponents[..., None].int() - BIAS)
            stack[expert] = matrix.flatten(1).T
        return stack


ReadableTensor = StoredTensor | PackedTensor


def unpack_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, ReadableTensor]:
    """Return `stored` with each pair of blocks and scales as one tensor.

    Raises DataError for blocks without scales that fit them.
    """
    found: dict[str, ReadableTensor] = {}
    for name, tensor in stored.items():
        if name.endswith(SCALES):
            continue
        if not name.endswith(BLOCKS):
            found[name] = tensor
            continue
        whole = name.removesuffix(BLOCKS)
        scales = stored.get(whole + SCALES)
        fits = len(tensor.shape) == 4 and tensor.shape[-1] == BLOCK_BYTES
        if scales is None or not fits or tensor.shape[:-1] != scales.shape:
            shape = "missing" if scales is None else list(scales.shape)
            raise DataError(
                f"{tensor.path}: {name} has the shape {list(tensor.shape)}, and its scales are "
                f"{shape}; MXFP4 has a scale for each block of {BLOCK_BYTES} bytes; download the "
                "model again"
            )
        found[whole] = PackedTensor(tensor, scales)
    return found
