"""Layers with frozen weights and trainable low-rank adapters (LoRA, DoRA).

`adapt` replaces a model's linear layers and embeddings by layers of this file. These hold the
frozen weights under their old names, in float32, bfloat16 or int8, and the trained parameters
`lora_a`, `lora_b` and, for DoRA, `magnitude`. A frozen weight is cast, or multiplied by the scales
of its rows, inside the product, so no copy of it is kept for the backward pass.

Shapes: O outputs, I inputs, R rank. An embedding has an output for each entry and its channels as
inputs, so that an adapter is always B A with [O, R] and [R, I].
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
from trainrig.models.architecture.lora_settings import LoRA, is_of_head, is_router, list_matrices
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.models.encoder import build_model
from trainrig.models.output import ReadByLoss
from trainrig.randomness import RandomKey, draw_uniforms

TRAINED = ("lora_a", "lora_b", "magnitude")  # last parts of the names of trained parameters
SCALES = "scales"  # last part of the name of an int8 weight's row scales
LARGEST = 127  # largest int8 value in use, symmetric around 0
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


class Dropout:
    """Dropout whose mask depends only on the sample, the layer and the position.

    All ranks and all widths of padded rows give the same bits.
    """

    def __init__(self, share: float, key: RandomKey) -> None:
        self.share = share
        self._key = key
        self.samples_B: Tensor | None = None  # global sample numbers of the next rows
        # Where ranks divide the input channels: the total number of channels, and the first one
        # here.
        self.whole: int | None = None
        self.first = 0

    def __call__(self, x_I: Tensor) -> Tensor:
        """Return `x_I` [R, T, I] with a share of the values set to 0 and the others scaled up.

        R is one or several times the number of samples B, for example chosen answers, then rejected
        ones. Without gradients, as in evaluation, nothing is dropped.
        """
        if not self.share or not torch.is_grad_enabled():
            return x_I
        assert self.samples_B is not None, "the training loop must set samples_B"
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
    """Return the dropouts of `model` whose share is above 0."""
    found = [module.dropout for module in model.modules() if isinstance(module, LowRankLinear)]
    return [dropout for dropout in found if dropout.share]


class FrozenLinear(ReadByLoss, nn.Module):
    """Linear layer with a frozen weight [O, I] in one of FORMATS."""

    def __init__(self, like: nn.Linear, base: str, compute: torch.dtype) -> None:
        """Allocate frozen parameters of the sizes of `like`; `compute` is the products' dtype."""
        super().__init__()
        self.compute = compute
        self.weight = _make_frozen(like.weight.shape, FORMATS[base], like.weight.device)
        self.scales: nn.Parameter | None = None
        if base == "int8":
            self.scales = _make_frozen(like.weight.shape[:1], torch.float32, like.weight.device)
        self.bias: nn.Parameter | None = None
        if like.bias is not None:
            self.bias = _make_frozen(like.bias.shape, torch.float32, like.weight.device)
        self.own: slice | None = None  # rows of the weight that this rank computes; None: all

    def forward(self, x_I: Tensor) -> Tensor:
        """Return the output [..., O] for `x_I` [..., I]."""
        return self.finish(self.multiply_input(x_I))

    def multiply_input(self, x_I: Tensor) -> Tensor:
        """Return the product with `x_I` [..., I], which `finish` completes to the output [..., O].

        The product of a part of I is a summand of the whole product.
        """
        weight_OI = self._take_own(self.weight)
        return multiply(
            x_I, weight_OI, None if self.scales is None else self._take_own(self.scales)
        )

    def finish(self, y_O: Tensor) -> Tensor:
        """Return the output for the whole product `y_O` [..., O], with the bias added."""
        return y_O if self.bias is None else y_O + self._take_own(self.bias).to(y_O.dtype)

    def _take_own(self, rows: Tensor) -> Tensor:
        return rows if self.own is None else rows[self.own]

    def compute_whole_weight(self) -> Tensor:
        """Return the weight [O, I] that inputs are multiplied by, in the dtype of the products."""
        if self.scales is None:
            return self.weight.to(self.compute)
        return restore(self.weight, self.scales).to(self.compute)


class LowRankLinear(FrozenLinear):
    """Frozen linear layer with a trainable low-rank adapter.

    With `dora`, the rows of W + scale B A are rescaled to the lengths in `magnitude` [O]; their own
    lengths count as constants in the backward pass (Liu et al. 2024, arXiv:2402.09353, section
    4.3).
    """

    def __init__(self, like: nn.Linear, lora: LoRA, compute: torch.dtype, name: str) -> None:
        """Allocate the parameters; `name`, the layer's, is the key of its dropout."""
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
        """Return whether the output for a token depends on the row that holds the token."""
        return self.dropout.share > 0

    def multiply_input(self, x_I: Tensor) -> Tensor:
        """Return the product with `x_I` [..., I], including the adapter's."""
        low_R = F.linear(self.dropout(x_I), self.lora_a)
        low_O = F.linear(low_R, self._take_own(self.lora_b)) * self.scale
        return super().multiply_input(x_I) + low_O

    def finish(self, y_O: Tensor) -> Tensor:
        """Return the output for the whole product, with DoRA's factors and the bias applied."""
        if self.magnitude is not None:
            with torch.no_grad():
                length_O = self.compute_row_lengths()
            y_O = y_O * self._take_own(self.magnitude / length_O).to(y_O.dtype)
        return super().finish(y_O)

    def compute_row_lengths(self) -> Tensor:
        """Return the length of each row of W + scale B A, [O]."""
        weight_OI = restore(self.weight, self.scales)
        weight_OI = weight_OI + self.scale * (self.lora_b.float() @ self.lora_a.float())
        length_O: Tensor = weight_OI.norm(dim=1)
        return length_O

    def compute_whole_weight(self) -> Tensor:
        """Return the weight [O, I] that inputs are multiplied by, including the adapter."""
        change_OI = self.lora_b @ self.lora_a * self.scale
        weight_OI: Tensor = super().compute_whole_weight() + change_OI.to(self.compute)
        if self.magnitude is None:
            return weight_OI
        factor_O: Tensor = self.magnitude / weight_OI.detach().float().norm(dim=1)
        return weight_OI * factor_O.to(self.compute)[:, None]


class FrozenEmbedding(nn.Module):
    """Embedding with a frozen table [O, I] in float32 or bfloat16."""

    def __init__(self, like: nn.Embedding, base: str, compute: torch.dtype) -> None:
        """Allocate a frozen table for the shape of `like`; `compute` is the dtype of the output."""
        super().__init__()
        self.compute = compute
        held = torch.float32 if base == "float32" else torch.bfloat16
        self.weight = _make_frozen(like.weight.shape, held, like.weight.device)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the embedding vectors [..., I] of `ids` [...]."""
        return F.embedding(ids, self.weight).to(self.compute)

    def compute_whole_weight(self) -> Tensor:
        """Return the weight [O, I] for a head that is tied to the table."""
        return self.weight.to(self.compute)


class LowRankEmbedding(FrozenEmbedding):
    """Frozen embedding with a trainable low-rank adapter, which a tied head shares."""

    def __init__(self, like: nn.Embedding, lora: LoRA, compute: torch.dtype) -> None:
        super().__init__(like, lora.base, compute)
        self.scale = lora.scale
        entries, channels = like.weight.shape
        self.lora_a, self.lora_b = _make_adapter(entries, channels, lora.rank, like.weight.device)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the embedding vectors [..., I] of `ids` [...], including the adapter."""
        rows = super().forward(ids)
        return rows + F.linear(F.embedding(ids, self.lora_b), self.lora_a.T) * self.scale

    def compute_whole_weight(self) -> Tensor:
        """Return the weight [O, I] for a head that is tied to the table, including the adapter."""
        return self.weight.to(self.compute) + self.lora_b @ self.lora_a * self.scale


def adapt(model: Decoder, lora: LoRA, compute: torch.dtype = torch.float32) -> None:
    """Freeze `model` in place and give it adapters on its device, before it is sharded.

    A head for something other than tokens is small, and is trained whole together with the layers
    that belong to it. Experts and routers stay unchanged, in float32. `compute` is the dtype of the
    products. `model` may be a pipeline stage that has only some of the layers.

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
            f"lora.targets: {name} is an embedding, which DoRA does not support; leave it out, or "
            "set lora.dora = false"
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
    """Return whether the parameter `name` is one that `adapt` adds."""
    return name.rpartition(".")[2] in TRAINED


def list_adapter_shapes(config: DecoderConfig, lora: LoRA) -> dict[str, torch.Size]:
    """Return the shape of each parameter that `lora` trains, by name, without allocating any.

    Raises ConfigError for a pattern that matches nothing.
    """
    with torch.device("meta"):
        model = build_model(config)
        adapt(model, lora)
    return {
        name: parameter.shape
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def count_adapter(config: DecoderConfig, lora: LoRA) -> int:
    """Return the number of parameters that `lora` trains and an optimizer has state for."""
    return sum(shape.numel() for shape in list_adapter_shapes(config, lora).values())


def draw_adapter_value(name: str, size: Sequence[int], seed: int) -> Tensor:
    """Return the initial value of `lora_a` or `lora_b`, as float32 on the CPU.

    The value depends on seed, name and index alone. A is uniform within 1 / sqrt(I), as in torch's
    linear layers. B is 0, so the adapter begins without effect. `magnitude` begins with the lengths
    of the base's rows, which the code that loads the base fills in.
    """
    if not name.endswith("lora_a"):
        return torch.zeros(tuple(size))
    places = torch.arange(math.prod(size)).view(tuple(size))
    drawn = draw_uniforms(RandomKey(seed, "fresh adapter", name), places)
    return ((2 * drawn - 1) / math.sqrt(size[1])).float()


def quantise(weight_OI: Tensor, largest_O: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return `weight_OI` as int8 [O, I], and the float32 scales [O] to multiply its rows with.

    The largest value of a row becomes 127 or -127; others are rounded half to even. Each row is
    quantised independently, so a slice of rows gives the same bits as the whole. For a slice of
    columns, `largest_O` is the largest magnitude of the whole rows.
    """
    scales_O = (compute_row_maxima(weight_OI) if largest_O is None else largest_O) / LARGEST
    by_O = scales_O.where(scales_O > 0, 1.0)
    return (weight_OI.float() / by_O[:, None]).round().to(torch.int8), scales_O


def compute_row_maxima(weight_OI: Tensor) -> Tensor:
    """Return the largest magnitude of each row as float32, [O]."""
    return weight_OI.float().abs().amax(1)


def restore(weight_OI: Tensor, scales_O: Tensor | None) -> Tensor:
    """Return a stored weight as float32."""
    return weight_OI.float() if scales_O is None else weight_OI.float() * scales_O.float()[:, None]


def round_to_base(name: str, weight: Tensor, base: str) -> Tensor:
    """Return the float32 `weight` as it is after storage in the format `base`."""
    layer = name.removesuffix(".weight")
    # Vectors, routers and stacked experts keep float32.
    if base == "float32" or weight.ndim != 2 or is_router(layer):
        return weight
    if base == "bfloat16" or layer.endswith("embedding"):  # embeddings are never int8
        return weight.bfloat16().float()
    return restore(*quantise(weight))


def merge(
    weights: Mapping[str, Tensor], adapter: Mapping[str, Tensor], lora: LoRA
) -> dict[str, Tensor]:
    """Return the weights of the model with its adapter merged: W + scale B A.

    With DoRA, the rows are rescaled to the lengths in `magnitude`.
    """
    merged = dict(weights)
    for name in (key.removesuffix("lora_b") for key in adapter if key.endswith("lora_b")):
        changed = weights[f"{name}weight"].float() + _change(adapter, name, lora)
        if lora.dora:
            changed *= (adapter[f"{name}magnitude"] / changed.norm(dim=1))[:, None]
        merged[f"{name}weight"] = changed
    return merged


def _change(adapter: Mapping[str, Tensor], name: str, lora: LoRA) -> Tensor:
    return lora.scale * (adapter[f"{name}lora_b"].float() @ adapter[f"{name}lora_a"].float())


def multiply(x_I: Tensor, weight_OI: Tensor, scales_O: Tensor | None) -> Tensor:
    """Return `x_I` [..., I] times a frozen weight, [..., O], in the dtype of `x_I`.

    The weight may be in any of FORMATS.
    """
    y_O: Tensor = _FrozenProduct.apply(x_I, weight_OI, scales_O)  # type: ignore[no-untyped-call]
    return y_O


class _FrozenProduct(torch.autograd.Function):
    """Product that saves the weight in its stored format for the backward pass.

    Autograd would save the cast copy.
    """

    @staticmethod
    def forward(ctx: Any, x_I: Tensor, weight_OI: Tensor, scales_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight_OI, scales_O)
        y_O = F.linear(x_I, weight_OI.to(x_I.dtype))
        return y_O if scales_O is None else y_O * scales_O.to(y_O.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_O: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the input."""
        weight_OI, scales_O = ctx.saved_tensors
        if scales_O is not None:
            gradient_O = gradient_O * scales_O.to(gradient_O.dtype)
        return gradient_O @ weight_OI.to(gradient_O.dtype), None, None


def _make_frozen(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(*size, dtype=dtype, device=device), requires_grad=False)


def _make_adapter(
    outputs: int, inputs: int, rank: int, device: torch.device
) -> tuple[nn.Parameter, nn.Parameter]:
    """Return empty parameters A [R, I] and B [O, R]."""
    empty = [torch.empty(rank, inputs, device=device), torch.empty(outputs, rank, device=device)]
    return nn.Parameter(empty[0]), nn.Parameter(empty[1])
