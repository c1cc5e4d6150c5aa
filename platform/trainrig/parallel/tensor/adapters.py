"""Adapters of layers of which each rank of a tensor axis has a part.

A layer that is cut by rows has some rows of B, and all of A; one that is cut by columns has some
columns of A, and all of B. So each rank multiplies what it has of the layer, and nothing more is
sent than without an adapter. Of the matrix that all have alike each rank comes to a part of the
gradient, from the rows or columns that it has of the other: those are added up once a step. With
DoRA, lengths of rows whose columns are divided are added up in each forward pass, a number a row.

Shapes: O outputs, I inputs.
"""

import functools
from collections.abc import Callable, Iterator, Mapping

import torch.distributed as dist
from torch import Tensor, nn

from trainrig.models.lora.layers import LowRankLinear, is_adapter
from trainrig.parallel.mesh import Axis

# What a layer has a row of for each output, and a column of for each input.
OF_ROWS = ("weight", "bias", "scales", "lora_b", "magnitude")
OF_COLUMNS = ("weight", "lora_a")
HELD_ALIKE = ("attention.key", "attention.value")  # where there are fewer key heads than ranks
ADDED_LATER = ".shared."  # beside experts, with which it is added up once it is whole


def share_columns(layer: nn.Module, axis: Axis) -> None:
    """Have `layer`, whose columns were cut, look at whole rows where it has to."""
    if not isinstance(layer, LowRankLinear):
        return
    own = layer.weight.shape[1]
    layer.dropout.whole, layer.dropout.first = own * axis.size, own * axis.rank
    assert axis.group is not None
    vars(layer)["compute_row_lengths"] = functools.partial(
        _sum_lengths, layer.compute_row_lengths, axis.group
    )


def _sum_lengths(row_lengths: Callable[[], Tensor], group: dist.ProcessGroup) -> Tensor:
    squares_O = row_lengths().square()
    dist.all_reduce(squares_O, group=group)
    return squares_O.sqrt()


def list_adapter_parts(cuts: Mapping[str, int | None], sequence: bool) -> Iterator[str]:
    """Parameters of adapters that all ranks have alike, of whose gradients each has a part, among
    those that are cut as `cuts` says. `sequence`: each rank has some places of what flows between
    layers."""
    layers = {name.rpartition(".")[0] for name, cut in cuts.items() if cut is not None}
    for name, cut in cuts.items():
        layer, _, last = name.rpartition(".")
        if cut is not None or not is_adapter(name):
            continue
        if layer not in layers and not layer.endswith(HELD_ALIKE):
            continue
        # What comes after a sum over ranks is computed alike by all, of the places that they have.
        after = last == "magnitude" and cuts[f"{layer}.lora_a"] is not None
        if not after or sequence or ADDED_LATER in name:
            yield name
