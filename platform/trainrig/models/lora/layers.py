"""Low-rank adapters in a model whose own weights are frozen.

`adapt` puts layers of this file in the place of a model's linear layers and embeddings. They hold
frozen weights under the names that these had, in float32, bfloat16 or int8, and what is trained
beside them: `lora_a`, `lora_b` and, for DoRA, `magnitude`. A frozen weight is cast, or multiplied
by the scales of its rows, in the product itself: no copy of it is kept for the backward pass.

Shapes: O outputs, I inputs, R rank; an embedding has an output for each entry and its channels as
inputs, so that an adapter is B A of [O, R] and [R, I] wherever it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainrig.errors import ConfigError
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.models.encoder.model import build_model
from trainrig.models.lora.settings import LoRA, is_of_head, is_router, list_matrices
from trainrig.models.output import ReadByLoss
from trainrig.randomness import RandomKey, draw_uniforms

TRAINED = ("lora_a", "lora_b", "magnitude")  # last parts of the names of trained parameters
SCALES = "scales"  # of the rows of an int8 weight, beside it
LARGEST = 127  # of int8, the same on both sides of 0
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


class Dropout:
    """Sets a share of numbers to 0 and scales the others up, by the sample, layer and place alone:
    the same bits whoever computes them, and however wide rows are padded."""

    def __init__(self, share: float, key: RandomKey) -> None:
        self.share, self._key = share, key
        self.samples_B: Tensor | None = None  # global sample numbers of the rows to come
        # Where ranks have some channels each of the inputs: how many all have, and the first here.
        self.whole: int | None = None
        self.first = 0

    def __call__(self, x_I: Tensor) -> Tensor:
        """[R, T, I] to the same, R being B rows of each sample one set after the other (chosen
        answers, then rejected ones); without gradients, as in evaluation, nothing is dropped."""
        if not self.share or not torch.is_grad_enabled():
            return x_I
        assert self.samples_B is not None, "whoever trains says of which samples rows are"
        rows, width, channels = x_I.shape
        sets = rows // len(self.samples_B)
        places = torch.arange(channels, device=x_I.device) + self.first
        begins = torch.arange(width, device=x_I.device) * (self.whole or channels)
        places = (begins[:, None] + places)[None]
        kept = [
            draw_uniforms(
                replace(self._key, layer=f"{self._key.layer} {number}"),
                places,
                self.samples_B[:, None, None],
            )
            >= self.share
            for number in range(sets)
        ]
        return x_I * torch.cat(kept).to(x_I.dtype) / (1 - self.share)


def list_dropouts(model: nn.Module) -> list[Dropout]:
    """Those of `model` that drop something."""
    found = [each.dropout for each in model.modules() if isinstance(each, LowRankLinear)]
    return [each for each in found if each.share]


class FrozenLinear(ReadByLoss, nn.Module):
    """A linear map that is not trained, by a weight [O, I] in one of FORMATS."""

    def __init__(self, like: nn.Linear, base: str, compute: torch.dtype) -> None:
        """`compute`: what it computes in, however narrow its weight is held."""
        super().__init__()
        self.compute = compute
        self.weight = _make_frozen(like.weight.shape, FORMATS[base], like.weight.device)
        self.scales: nn.Parameter | None = None
        if base == "int8":
            self.scales = _make_frozen(like.weight.shape[:1], torch.float32, like.weight.device)
        self.bias: nn.Parameter | None = None
        if like.bias is not None:
            self.bias = _make_frozen(like.bias.shape, torch.float32, like.weight.device)
        self.own: slice | None = None  # which of O are computed; None: all

    def forward(self, x_I: Tensor) -> Tensor:
        """[..., I] to [..., O]."""
        return self.finish(self.multiply_input(x_I))

    def multiply_input(self, x_I: Tensor) -> Tensor:
        """[..., I] to what `finish` makes [..., O] of. Of parts of I it is parts of a sum."""
        weight_OI = self._take_own(self.weight)
        return multiply(
            x_I, weight_OI, None if self.scales is None else self._take_own(self.scales)
        )

    def finish(self, y_O: Tensor) -> Tensor:
        """[..., O] of the whole `product`."""
        return y_O if self.bias is None else y_O + self._take_own(self.bias).to(y_O.dtype)

    def _take_own(self, rows: Tensor) -> Tensor:
        return rows if self.own is None else rows[self.own]

    def compute_whole_weight(self) -> Tensor:
        """[O, I] what it multiplies by in all."""
        if self.scales is None:
            return self.weight.to(self.compute)
        return restore(self.weight, self.scales).to(self.compute)


class LowRankLinear(FrozenLinear):
    """A frozen linear map with an adapter; with `dora`, W + scale B A has rows as long as
    `magnitude` [O] says, and their length counts as a constant in the backward pass (Liu et al.
    2024, arXiv:2402.09353, section 4.3)."""

    def __init__(self, like: nn.Linear, lora: LoRA, compute: torch.dtype, name: str) -> None:
        """`name`: of the layer, by which its dropout differs from others'."""
        super().__init__(like, lora.base, compute)
        self.scale = lora.scale
        self.dropout = Dropout(lora.dropout, RandomKey(lora.dropout_seed, "dropout", name))
        outputs, inputs = like.weight.shape
        self.lora_a, self.lora_b = _make_adapter(outputs, inputs, lora.rank, like.weight.device)
        self.magnitude: nn.Parameter | None = None
        if lora.dora:
            self.magnitude = nn.Parameter(torch.empty(outputs, device=like.weight.device))

    @property
    def drops_by_row(self) -> bool:
        """Whether what it makes of a token depends on which row the token is in."""
        return self.dropout.share > 0

    def multiply_input(self, x_I: Tensor) -> Tensor:
        """See FrozenLinear."""
        low_R = F.linear(self.dropout(x_I), self.lora_a)
        low_O = F.linear(low_R, self._take_own(self.lora_b)) * self.scale
        return super().multiply_input(x_I) + low_O

    def finish(self, y_O: Tensor) -> Tensor:
        """See FrozenLinear."""
        if self.magnitude is not None:
            with torch.no_grad():
                length_O = self.compute_row_lengths()
            y_O = y_O * self._take_own(self.magnitude / length_O).to(y_O.dtype)
        return super().finish(y_O)

    def compute_row_lengths(self) -> Tensor:
        """[O] of what it multiplies by but for `magnitude`: of whole rows."""
        weight_OI = restore(self.weight, self.scales)
        weight_OI = weight_OI + self.scale * (self.lora_b.float() @ self.lora_a.float())
        length_O: Tensor = weight_OI.norm(dim=1)
        return length_O

    def compute_whole_weight(self) -> Tensor:
        """[O, I] what it multiplies by in all."""
        change_OI = self.lora_b @ self.lora_a * self.scale
        weight_OI: Tensor = super().compute_whole_weight() + change_OI.to(self.compute)
        if self.magnitude is None:
            return weight_OI
        factor_O: Tensor = self.magnitude / weight_OI.detach().float().norm(dim=1)
        return weight_OI * factor_O.to(self.compute)[:, None]


class FrozenEmbedding(nn.Module):
    """A table [O, I] of an embedding that is not trained, float32 or bfloat16."""

    def __init__(self, like: nn.Embedding, base: str, compute: torch.dtype) -> None:
        """`compute`: what the layers after it compute in, however narrow the table is."""
        super().__init__()
        self.compute = compute
        held = torch.float32 if base == "float32" else torch.bfloat16
        self.weight = _make_frozen(like.weight.shape, held, like.weight.device)

    def forward(self, ids: Tensor) -> Tensor:
        """[...] ids to [..., I]."""
        return F.embedding(ids, self.weight).to(self.compute)

    def compute_whole_weight(self) -> Tensor:
        """[O, I] what a head that shares the table multiplies by."""
        return self.weight.to(self.compute)


class LowRankEmbedding(FrozenEmbedding):
    """A frozen embedding with an adapter, which a tied head shares."""

    def __init__(self, like: nn.Embedding, lora: LoRA, compute: torch.dtype) -> None:
        super().__init__(like, lora.base, compute)
        self.scale = lora.scale
        entries, channels = like.weight.shape
        self.lora_a, self.lora_b = _make_adapter(entries, channels, lora.rank, like.weight.device)

    def forward(self, ids: Tensor) -> Tensor:
        """[...] ids to [..., I]."""
        rows = super().forward(ids)
        return rows + F.linear(F.embedding(ids, self.lora_b), self.lora_a.T) * self.scale

    def compute_whole_weight(self) -> Tensor:
        """[O, I] what a head that shares the table multiplies by."""
        return self.weight.to(self.compute) + self.lora_b @ self.lora_a * self.scale


def adapt(model: Decoder, lora: LoRA, compute: torch.dtype = torch.float32) -> None:
    """Freeze `model` in place and give it adapters, all on its device, before it is sharded. A head
    of something else than tokens is small, and is trained whole with what comes before it alone.
    Experts and routers stay as they are, in float32.

    `compute`: what its layers compute in. `model` may be a stage, which has some of the layers.

    Raises ConfigError for a pattern that matches nothing, and for an embedding with DoRA.
    """
    config = model.config
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_of_head(config, name))
    chosen = set(lora.choose(config))
    there = dict(model.named_modules())
    for name in list_matrices(config):
        layer = there.get(name)
        if layer is None or is_router(name):
            continue
        parent, _, last = name.rpartition(".")
        replaced = (
            _replace_embedding(name, layer, lora, compute, name in chosen)
            if isinstance(layer, nn.Embedding)
            else _replace_linear(name, layer, lora, compute, name in chosen)
        )
        setattr(model.get_submodule(parent), last, replaced)


def _replace_embedding(
    name: str, layer: nn.Embedding, lora: LoRA, compute: torch.dtype, chosen: bool
) -> nn.Module:
    if not chosen:
        return FrozenEmbedding(layer, lora.base, compute)
    if lora.dora:
        raise ConfigError(
            f"lora.targets: {name} is an embedding, which has no DoRA; leave it out, or set "
            "lora.dora = false"
        )
    return LowRankEmbedding(layer, lora, compute)


def _replace_linear(
    name: str, layer: nn.Module, lora: LoRA, compute: torch.dtype, chosen: bool
) -> nn.Module:
    assert isinstance(layer, nn.Linear)
    if chosen:
        return LowRankLinear(layer, lora, compute, name)
    return FrozenLinear(layer, lora.base, compute)


def is_adapter(name: str) -> bool:
    """Whether the parameter `name` is one that `adapt` adds."""
    return name.rpartition(".")[2] in TRAINED


def list_adapter_shapes(config: DecoderConfig, lora: LoRA) -> dict[str, torch.Size]:
    """The size of each parameter that `lora` trains of a decoder; none is made. Raises ConfigError
    for a pattern that matches nothing."""
    with torch.device("meta"):
        model = build_model(config)
        adapt(model, lora)
    return {name: each.shape for name, each in model.named_parameters() if each.requires_grad}


def count_adapter(config: DecoderConfig, lora: LoRA) -> int:
    """How many parameters `lora` trains of a decoder, and an optimizer remembers."""
    return sum(shape.numel() for shape in list_adapter_shapes(config, lora).values())


def draw_adapter_value(name: str, size: Sequence[int], seed: int) -> Tensor:
    """The fresh value of `lora_a` or `lora_b`: float32, on the CPU, by seed, name and place alone.

    A is uniform within 1 / sqrt(I), as torch begins linear layers; B is 0, and so is the change.
    `magnitude` begins with the lengths of the base's rows, which whoever loads it fills in.
    """
    if not name.endswith("lora_a"):
        return torch.zeros(tuple(size))
    places = torch.arange(math.prod(size)).view(tuple(size))
    drawn = draw_uniforms(RandomKey(seed, "fresh adapter", name), places)
    return ((2 * drawn - 1) / math.sqrt(size[1])).float()


def quantise(weight_OI: Tensor, largest_O: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`weight_OI` as int8 [O, I] and the float32 scales of its rows [O], by which it is multiplied
    to have it back: the largest of a row is 127 or -127, the rest is rounded to even.

    A row depends on itself alone, so a slice of rows is quantised as the whole is; and columns are
    by the `largest_O` of whole rows.
    """
    scales_O = (compute_row_maxima(weight_OI) if largest_O is None else largest_O) / LARGEST
    by_O = scales_O.where(scales_O > 0, 1.0)
    return (weight_OI.float() / by_O[:, None]).round().to(torch.int8), scales_O


def compute_row_maxima(weight_OI: Tensor) -> Tensor:
    """[O] the largest magnitude of each row, float32."""
    return weight_OI.float().abs().amax(1)


def restore(weight_OI: Tensor, scales_O: Tensor | None) -> Tensor:
    """A held weight as float32."""
    return weight_OI.float() if scales_O is None else weight_OI.float() * scales_O.float()[:, None]


def round_to_base(name: str, weight: Tensor, base: str) -> Tensor:
    """`weight` of a model, float32, as training with `base` holds and restores it."""
    layer = name.removesuffix(".weight")
    if base == "float32" or weight.ndim != 2 or is_router(layer):  # experts are stacks of matrices
        return weight
    if base == "bfloat16" or layer.endswith("embedding"):  # none is in int8
        return weight.bfloat16().float()
    return restore(*quantise(weight))


def merge(
    weights: Mapping[str, Tensor], adapter: Mapping[str, Tensor], lora: LoRA
) -> dict[str, Tensor]:
    """The weights of the model that `weights` and `adapter` make together: W + scale B A, with DoRA
    its rows as long as `magnitude` says."""
    merged = dict(weights)
    for name in (each.removesuffix("lora_b") for each in adapter if each.endswith("lora_b")):
        changed = weights[f"{name}weight"].float() + _change(adapter, name, lora)
        if lora.dora:
            changed *= (adapter[f"{name}magnitude"] / changed.norm(dim=1))[:, None]
        merged[f"{name}weight"] = changed
    return merged


def unmerge(
    merged: Mapping[str, Tensor], adapter: Mapping[str, Tensor], lora: LoRA
) -> dict[str, Tensor]:
    """The weights that `merge` was given, to the rounding of float32. Raises ConfigError for DoRA,
    whose rows have lost their own length."""
    if lora.dora:
        raise ConfigError("a merged DoRA adapter can't be taken out again; keep the base")
    weights = dict(merged)
    for name in (each.removesuffix("lora_b") for each in adapter if each.endswith("lora_b")):
        weights[f"{name}weight"] = merged[f"{name}weight"] - _change(adapter, name, lora)
    return weights


def _change(adapter: Mapping[str, Tensor], name: str, lora: LoRA) -> Tensor:
    return lora.scale * (adapter[f"{name}lora_b"].float() @ adapter[f"{name}lora_a"].float())


def multiply(x_I: Tensor, weight_OI: Tensor, scales_O: Tensor | None) -> Tensor:
    """[..., I] to [..., O] by a frozen weight in any of FORMATS, in the dtype of `x_I`."""
    y_O: Tensor = _FrozenProduct.apply(x_I, weight_OI, scales_O)  # type: ignore[no-untyped-call]
    return y_O


class _FrozenProduct(torch.autograd.Function):
    """Keeps the weight as it is held, where autograd would keep what it was cast to."""

    @staticmethod
    def forward(ctx: Any, x_I: Tensor, weight_OI: Tensor, scales_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight_OI, scales_O)
        y_O = F.linear(x_I, weight_OI.to(x_I.dtype))
        return y_O if scales_O is None else y_O * scales_O.to(y_O.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_O: Tensor) -> tuple[Tensor, None, None]:
        """Through the weight to what came in."""
        weight_OI, scales_O = ctx.saved_tensors
        if scales_O is not None:
            gradient_O = gradient_O * scales_O.to(gradient_O.dtype)
        return gradient_O @ weight_OI.to(gradient_O.dtype), None, None


def _make_frozen(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(*size, dtype=dtype, device=device), requires_grad=False)


def _make_adapter(
    outputs: int, inputs: int, rank: int, device: torch.device
) -> tuple[nn.Parameter, nn.Parameter]:
    """A [R, I] and B [O, R]."""
    empty = [torch.empty(rank, inputs, device=device), torch.empty(outputs, rank, device=device)]
    return nn.Parameter(empty[0]), nn.Parameter(empty[1])
