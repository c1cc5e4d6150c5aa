"""Division of a decoder's layers over the ranks of a tensor axis.

A rank has some heads of attention, some hidden channels of the feed-forward network and of each
expert, and some entries of the vocabulary (Shoeybi et al. 2019, arXiv:1909.08053, section 3). The
matrices of queries, keys, values, gate and up are cut by rows, output and down by columns,
embedding and head by entries. All ranks hold the norms, learnt positions, biases added to the
residual stream and routers, and also keys and values where there are fewer key heads than ranks.
The gradients of these have the same bits on each rank, directly or, with sequence parallelism,
after they were added. Adapters are cut with their layers (tensor_parts.py).

Shapes: B rows, T positions, C channels, V entries of the vocabulary, [...] any dims.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.attention import Attention
from trainrig.models.decoder import Decoder
from trainrig.models.layer_parts import DenseFeedForward, Norm
from trainrig.models.lora import FrozenLinear
from trainrig.models.moe import ExpertFeedForward
from trainrig.models.output import Head
from trainrig.parallel.axes import tensor_parts
from trainrig.parallel.axes.tensor_collectives import (
    add_up,
    copy_in,
    gather_apart,
    gather_places,
    gather_then,
    pad_rows,
    scatter_sum,
    take_own_places,
)
from trainrig.parallel.mesh import Axis


@dataclass(frozen=True)
class LayerSplit:
    """Division of a model's parameters over the ranks that share its layers, by name."""

    # dimension along which the parameter is cut; None: all ranks hold it
    cuts: Mapping[str, int | None]
    # Parameters that all ranks hold whose gradients are a part on each rank, to be added over
    # ranks.
    parts: frozenset[str]


class _Stream:
    """Transfer of hidden states between the residual stream and products that ranks share."""

    def __init__(self, group: dist.ProcessGroup, sequence: bool) -> None:
        """`sequence`: each rank has some positions of the stream; otherwise each has all."""
        self.group = group
        self.sequence = sequence

    def enter(self, module: nn.Module, kept: bool) -> None:
        """Make `module` read all positions of its input; `kept`: see `gather_then`."""
        if self.sequence:
            _replace(module, "forward", gather_then, module.forward, self.group, kept)
        else:
            _replace(module, "forward", _copy_then, module.forward, self.group)

    def add_up(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over all ranks, in the form of the residual stream."""
        return scatter_sum(x, self.group) if self.sequence else add_up(x, self.group)


def split_layers(
    model: Decoder, axis: Axis, sequence: bool = False, again: Collection[int] = ()
) -> LayerSplit:
    """Leave this rank of `axis` its part of `model`, in place and permanently.

    Returns how the parameters are divided. Call this on the meta device, before `split_attention`,
    `recompute` and `shard`, after `settings.check_model`. `sequence`: each rank has some positions
    of the hidden states between layers. `again`: numbers of layers that are recomputed for the
    backward pass.
    """
    assert axis.group is not None
    whole = {name: parameter.shape for name, parameter in model.named_parameters()}
    stream = _Stream(axis.group, sequence)
    _split_ends(model, axis, stream)
    for number, layer in enumerate(model.layers):
        attention = layer.attention
        feedforward = layer.feedforward
        assert isinstance(attention, Attention)
        _split_attention(attention, model.shape.kv_heads, axis, stream)
        stream.enter(attention, number in again)
        if isinstance(feedforward, DenseFeedForward):
            _cut_between(feedforward, axis)
            _replace(feedforward.down, "forward", _project_and_add, feedforward.down, stream)
            stream.enter(feedforward, number in again)
        else:
            assert isinstance(feedforward, ExpertFeedForward)
            _split_experts(feedforward, axis)
            tensor_parts.share_experts(feedforward, axis.group, sequence)
    cuts: dict[str, int | None] = {}
    for name, parameter in model.named_parameters():
        differ = (dim for dim, size in enumerate(parameter.shape) if size != whole[name][dim])
        cuts[name] = next(differ, None)
    of_places = _list_place_parameters(model) if sequence else ()
    return LayerSplit(
        cuts, frozenset((*of_places, *tensor_parts.list_adapter_parts(cuts, sequence)))
    )


def _list_place_parameters(model: Decoder) -> Iterator[str]:
    """Return the parameters that each rank uses for its own positions alone.

    They exist with sequence parallelism only.
    """
    norm_or_bias = re.compile(
        r"(layers\.\d+\.(attention|feedforward)(_output)?_norm|norm|position_embedding)\.\w+"
        r"|layers\.\d+\.(attention\.output|feedforward\.down)\.bias"
    )
    return (name for name, _ in model.named_parameters() if norm_or_bias.fullmatch(name))


def _split_ends(model: Decoder, axis: Axis, stream: _Stream) -> None:
    group = stream.group
    entries = model.config.shapes.embedding.entries
    own = entries // axis.size
    first = axis.rank * own
    embedding = getattr(model, "embedding", None)  # not every stage of a pipeline has one
    if embedding is not None:
        _cut_each(embedding, tensor_parts.OF_ROWS, 0, axis)
        _replace(embedding, "forward", _embed_ids, embedding.forward, first, own, stream)
    if stream.sequence and model.position_embedding is not None:
        places = model.position_embedding
        _replace(places, "forward", _embed_own_places, places.forward, group)
    vocabulary = model.config.head == "tokens"  # any other head is small, and all ranks compute it
    if stream.sequence:
        _replace(model, "forward", pad_rows, model.forward, axis.size)
        _replace(model, "_read_places", _gather_read, model, group, vocabulary)
    if not vocabulary:
        return
    if model.head is not None:
        _cut_rows(model.head, axis)
    if not stream.sequence:
        _replace(model, "_prepare_head_input", _pass_and_copy, model._prepare_head_input, group)
    part = tensor_parts.VocabularyPart(group, first, entries)
    _replace(model, "_output_head", _make_part_head, model._output_head, part)


def _split_attention(attention: Attention, kv_heads: int, axis: Axis, stream: _Stream) -> None:
    group = stream.group
    _cut_rows(attention.query, axis)
    for projection in (attention.key, attention.value):
        if kv_heads % axis.size == 0:
            _cut_rows(projection, axis)
        else:
            first = axis.rank * kv_heads // axis.size * attention.head_channels
            own = slice(first, first + attention.head_channels)
            if isinstance(projection, FrozenLinear):
                projection.own = own
            else:
                _replace(projection, "forward", _project_some, projection, own, group)
    gate = getattr(attention, "gate", None)
    if gate is not None:
        _cut_rows(gate, axis)
    for norm in (attention.query_norm, attention.key_norm):
        if norm is not None:
            _replace(norm, "forward", _norm_some, norm, group)
    if attention.sinks is not None:
        _cut(attention, "sinks", 0, axis)
    _cut_columns(attention.output, axis)
    _replace(attention.output, "forward", _project_and_add, attention.output, stream)


def _split_experts(layer: ExpertFeedForward, axis: Axis) -> None:
    for name, dim in tensor_parts.CHANNELS_BETWEEN.items():
        if getattr(layer.experts, name) is not None:
            _cut(layer.experts, name, dim, axis)
    if layer.shared is not None:
        _cut_between(layer.shared, axis)


def _cut_between(feedforward: DenseFeedForward, axis: Axis) -> None:
    for widening in (feedforward.gate, feedforward.up):
        if widening is not None:
            _cut_rows(widening, axis)
    _cut_columns(feedforward.down, axis)


def _cut(module: nn.Module, name: str, dim: int, axis: Axis) -> None:
    whole = module.get_parameter(name)
    size = list(whole.shape)
    size[dim] //= axis.size
    part = nn.Parameter(whole.new_empty(size), requires_grad=whole.requires_grad)
    module.register_parameter(name, part)


def _cut_each(module: nn.Module, names: Iterable[str], dim: int, axis: Axis) -> None:
    for name in names:
        if getattr(module, name, None) is not None:
            _cut(module, name, dim, axis)


def _cut_rows(linear: nn.Module, axis: Axis) -> None:
    _cut_each(linear, tensor_parts.OF_ROWS, 0, axis)
    if isinstance(linear, nn.Linear):
        linear.out_features //= axis.size


def _cut_columns(linear: nn.Module, axis: Axis) -> None:
    _cut_each(linear, tensor_parts.OF_COLUMNS, 1, axis)
    if isinstance(linear, nn.Linear):
        linear.in_features //= axis.size
    else:
        tensor_parts.share_columns(linear, axis)


def _replace(module: nn.Module, method: str, by: Callable[..., Any], *first: Any) -> None:
    vars(module)[method] = functools.partial(by, *first)


def _copy_then(
    forward: Callable[..., Tensor], group: dist.ProcessGroup, x: Tensor, *rest: Any
) -> Tensor:
    return forward(copy_in(x, group), *rest)


def _pass_and_copy(
    forward: Callable[[Tensor], Tensor], group: dist.ProcessGroup, x: Tensor
) -> Tensor:
    return copy_in(forward(x), group).clone()  # FSDP's hooks do not accept a view


def _project_and_add(linear: nn.Linear | FrozenLinear, stream: _Stream, x: Tensor) -> Tensor:
    if isinstance(linear, FrozenLinear):
        return linear.finish(stream.add_up(linear.multiply_input(x)))
    total = stream.add_up(F.linear(x, linear.weight))
    return total if linear.bias is None else total + linear.bias


def _project_some(linear: nn.Linear, own: slice, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    """Multiply by the rows `own`, of this rank's heads, of a matrix that all ranks hold."""
    bias = None if linear.bias is None else copy_in(linear.bias, group)[own]
    return F.linear(x, copy_in(linear.weight, group)[own], bias)


def _norm_some(norm: Norm, group: dist.ProcessGroup, x_BTHD: Tensor) -> Tensor:
    """Normalize this rank's heads, with a gain that all ranks hold."""
    bias = None if norm.bias is None else copy_in(norm.bias, group)
    return norm.apply_gain(x_BTHD, copy_in(norm.weight, group), bias)


def _embed_ids(
    forward: Callable[[Tensor], Tensor], first: int, own: int, stream: _Stream, ids: Tensor
) -> Tensor:
    """Return the embeddings [..., C] of `ids`; a rank without an entry adds zeros."""
    places = ids - first
    elsewhere = (places < 0) | (places >= own)
    rows = forward(places.masked_fill(elsewhere, 0))
    return stream.add_up(rows.masked_fill(elsewhere[..., None], 0.0))


def _embed_own_places(
    forward: Callable[[Tensor], Tensor], group: dist.ProcessGroup, positions: Tensor
) -> Tensor:
    return forward(take_own_places(positions, group, -1))


def _gather_read(
    model: Decoder,
    group: dist.ProcessGroup,
    apart: bool,
    x_BtC: Tensor,
    places_N: Tensor | None,
    documents_BS: Tensor | None,
) -> Tensor:
    """Return the hidden states that the head reads, in place of `Decoder._read_places`.

    Each rank normalizes its own positions. `apart`: each rank computes a part of what follows.
    """
    if model.norm is not None:
        x_BtC = model.norm(x_BtC)
    whole_BTC = gather_places(x_BtC, group) if apart else gather_apart(x_BtC, group)[0]
    return whole_BTC if places_N is None else whole_BTC.flatten(0, 1)[places_N]


def _make_part_head(
    whole_head: Callable[[Tensor, Tensor | None], Head],
    part: tensor_parts.VocabularyPart,
    weight_VC: Tensor,
    bias_V: Tensor | None,
) -> Head:
    return tensor_parts.PartHead(whole_head(weight_VC, bias_V), part)
