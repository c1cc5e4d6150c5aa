"""LoRA adapters of layers that are divided over the ranks of a tensor axis.

A layer that is cut by rows has some rows of B and all of A. One that is cut by columns has some
columns of A and all of B. Each rank multiplies its part of the layer, and nothing more is sent than
without an adapter. For the adapter matrix that all ranks hold, each rank gets a part of the
gradient, from its rows or columns of the other matrix; the parts are added once a step. With DoRA,
the norms of rows whose columns are divided are added in each forward pass, one number a row.

Shapes: O outputs, I inputs.
"""

import functools
from collections.abc import Callable, Iterator, Mapping

import torch.distributed as dist
from torch import Tensor, nn

from trainrig.models.lora import (
    LowRankLinear,
    is_adapter,
)
from trainrig.parallel.mesh import Axis

# Parameters with a row for each output, and with a column for each input.
OF_ROWS = ("weight", "bias", "scales", "lora_b", "magnitude")
OF_COLUMNS = ("weight", "lora_a")
# held whole by all ranks where there are fewer key heads than ranks
HELD_ALIKE = ("attention.key", "attention.value")
# the shared expert, whose output is added to the experts' before the sum over ranks
ADDED_LATER = ".shared."


def share_columns(layer: nn.Module, axis: Axis) -> None:
    """Prepare the adapter of a `layer` with cut columns for operations that need whole rows."""
    if not isinstance(layer, LowRankLinear):
        return
    own = layer.weight.shape[1]
    layer.dropout.whole = own * axis.size
    layer.dropout.first = own * axis.rank
    assert axis.group is not None
    vars(layer)["compute_row_lengths"] = functools.partial(
        _sum_lengths, layer.compute_row_lengths, axis.group
    )


def _sum_lengths(row_lengths: Callable[[], Tensor], group: dist.ProcessGroup) -> Tensor:
    squares_O = row_lengths().square()
    dist.all_reduce(squares_O, group=group)
    return squares_O.sqrt()


def list_adapter_parts(cuts: Mapping[str, int | None], sequence: bool) -> Iterator[str]:
    """Yield the adapter parameters that all ranks hold, with a part of the gradient on each.

    `cuts`: the dimension along which each parameter is cut. `sequence`: each rank has some
    positions of the hidden states between layers.
    """
    layers = {name.rpartition(".")[0] for name, cut in cuts.items() if cut is not None}
    for name, cut in cuts.items():
        layer, _, last = name.rpartition(".")
        if cut is not None or not is_adapter(name):
            continue
        if layer not in layers and not layer.endswith(HELD_ALIKE):
            continue
        # After a sum over ranks, all ranks compute the same, for the positions that they have.
        after = last == "magnitude" and cuts[f"{layer}.lora_a"] is not None
        if not after or sequence or ADDED_LATER in name:
            yield name
