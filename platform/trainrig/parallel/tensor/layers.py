"""A decoder of whose layers each rank of a tensor axis has a part, put in its place from outside.

Of attention a rank has some heads, of the feed-forward network some of the channels between, of the
vocabulary some entries (Shoeybi et al. 2019, arXiv:1909.08053, section 3). Queries, keys, values,
gate and up are cut by rows of their matrices, output and down by columns, embedding and head by
entries. Norms, learnt positions and biases that are added to the stream all ranks hold alike, and
so they do keys and values where there are fewer key heads than ranks; their gradients are the same
bits on each.

Shapes: B rows, T positions, C channels, V entries of the vocabulary, [...] any dims.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.models.attention import Attention
from trainrig.models.decoder import Decoder
from trainrig.models.feedforward import DenseFeedForward
from trainrig.models.norm import Norm
from trainrig.models.output import Head
from trainrig.parallel.mesh import Axis
from trainrig.parallel.tensor.collectives import add_up, copy_in
from trainrig.parallel.tensor.head import PartHead, VocabularyPart

# Along which dimension a parameter is cut, by its name; None: all ranks hold it alike.
Cuts = Mapping[str, int | None]


def split_layers(model: Decoder, axis: Axis) -> Cuts:
    """Leave this rank of `axis` its part of `model`, on the meta device, in place and for good; how
    each parameter was cut.

    Before `split_attention`, `recompute` and `shard`. `settings.check_model` was passed.
    """
    assert axis.group is not None
    whole = {name: each.shape for name, each in model.named_parameters()}
    _split_ends(model, axis, axis.group)
    for layer in model.layers:
        attention, feedforward = layer.attention, layer.feedforward
        assert isinstance(attention, Attention) and isinstance(feedforward, DenseFeedForward)
        _split_attention(attention, model.shape.kv_heads, axis, axis.group)
        for widening in (feedforward.gate, feedforward.up):
            if widening is not None:
                _cut_rows(widening, axis)
        _cut_columns(feedforward.down, axis, axis.group)
        _copy_input(feedforward, axis.group)
    cuts: dict[str, int | None] = {}
    for name, parameter in model.named_parameters():
        differ = (dim for dim, size in enumerate(parameter.shape) if size != whole[name][dim])
        cuts[name] = next(differ, None)
    return cuts


def _split_ends(model: Decoder, axis: Axis, group: dist.ProcessGroup) -> None:
    embedding = model.embedding
    entries = embedding.weight.shape[0]
    own = entries // axis.size
    first = axis.rank * own
    _cut(embedding, "weight", 0, axis)
    _replace(embedding, "forward", _look_up, embedding.forward, first, own, group)
    if model.head is not None:
        _cut_rows(model.head, axis)
    _replace(model, "_before_head", _then_copy, model._before_head, group)
    part = VocabularyPart(group, first, entries)
    _replace(model, "_output_head", _part_head, model._output_head, part)


def _split_attention(
    attention: Attention, kv_heads: int, axis: Axis, group: dist.ProcessGroup
) -> None:
    _cut_rows(attention.query, axis)
    for each in (attention.key, attention.value):
        if kv_heads % axis.size == 0:
            _cut_rows(each, axis)
        else:
            first = axis.rank * kv_heads // axis.size * attention.head_channels
            own = slice(first, first + attention.head_channels)
            _replace(each, "forward", _project_some, each, own, group)
    gate = getattr(attention, "gate", None)
    if gate is not None:
        _cut_rows(gate, axis)
    for norm in (attention.query_norm, attention.key_norm):
        if norm is not None:
            _replace(norm, "forward", _norm_some, norm, group)
    if attention.sinks is not None:
        _cut(attention, "sinks", 0, axis)
    _cut_columns(attention.output, axis, group)
    _copy_input(attention, group)


def _cut(module: nn.Module, name: str, dim: int, axis: Axis) -> None:
    whole = module.get_parameter(name)
    size = list(whole.shape)
    size[dim] //= axis.size
    part = nn.Parameter(whole.new_empty(size), requires_grad=whole.requires_grad)
    module.register_parameter(name, part)


def _cut_rows(linear: nn.Linear, axis: Axis) -> None:
    _cut(linear, "weight", 0, axis)
    if linear.bias is not None:
        _cut(linear, "bias", 0, axis)
    linear.out_features //= axis.size


def _cut_columns(linear: nn.Linear, axis: Axis, group: dist.ProcessGroup) -> None:
    _cut(linear, "weight", 1, axis)
    linear.in_features //= axis.size
    _replace(linear, "forward", _project_and_add, linear, group)


def _copy_input(module: nn.Module, group: dist.ProcessGroup) -> None:
    _replace(module, "forward", _copy_then, module.forward, group)


def _replace(module: nn.Module, method: str, by: Callable[..., Any], *first: Any) -> None:
    vars(module)[method] = functools.partial(by, *first)


def _copy_then(
    forward: Callable[..., Tensor], group: dist.ProcessGroup, x: Tensor, *rest: Any
) -> Tensor:
    return forward(copy_in(x, group), *rest)


def _then_copy(forward: Callable[[Tensor], Tensor], group: dist.ProcessGroup, x: Tensor) -> Tensor:
    return copy_in(forward(x), group).clone()  # FSDP's hooks want no view


def _project_and_add(linear: nn.Linear, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    total = add_up(F.linear(x, linear.weight), group)
    return total if linear.bias is None else total + linear.bias


def _project_some(linear: nn.Linear, own: slice, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    """By the rows `own` of a matrix that all ranks have, each for some of the heads."""
    bias = None if linear.bias is None else copy_in(linear.bias, group)[own]
    return F.linear(x, copy_in(linear.weight, group)[own], bias)


def _norm_some(norm: Norm, group: dist.ProcessGroup, x_BTHD: Tensor) -> Tensor:
    """Some of the heads, whose gain all ranks have."""
    bias = None if norm.bias is None else copy_in(norm.bias, group)
    return norm.apply_gain(x_BTHD, copy_in(norm.weight, group), bias)


def _look_up(
    forward: Callable[[Tensor], Tensor],
    first: int,
    own: int,
    group: dist.ProcessGroup,
    ids: Tensor,
) -> Tensor:
    """[..., C] of ids; a rank that does not have an entry adds zeros."""
    places = ids - first
    elsewhere = (places < 0) | (places >= own)
    rows = forward(places.masked_fill(elsewhere, 0))
    return add_up(rows.masked_fill(elsewhere[..., None], 0.0), group)


def _part_head(
    whole_head: Callable[[Tensor, Tensor | None], Head],
    part: VocabularyPart,
    weight_VC: Tensor,
    bias_V: Tensor | None,
) -> Head:
    return PartHead(**vars(whole_head(weight_VC, bias_V)), part=part)
