"""Estimate of how long one device computes on a micro-batch, kernel by kernel.

Shapes: a product multiplies [M, K] by [K, N]; tokens are those of a micro-batch on one device; C is
the number of channels.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from trainrig.errors import ConfigError
from trainrig.estimate.activation_bytes import MASTER
from trainrig.estimate.layout import planner_terms
from trainrig.flops import BACKWARD
from trainrig.hardware import Device
from trainrig.models.architecture import shapes
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.train.run_file.training_settings import Training

# Elements per channel, in the dtype of the computation, that are read and written where no kernels
# are fused. A norm casts to float32, squares, takes the mean, scales, casts back and multiplies by
# the gain: 40 bytes in bfloat16. Rotary positions take two products, a rotation and a sum.
NORM = 20
TURNED = 10


@dataclass(frozen=True)
class Product:
    """Matrix product of `copies` pairs of matrices of the same shape."""

    rows: float  # M, tokens of each copy
    columns: int  # N
    inner: int  # K
    copies: int = 1

    @property
    def flops(self) -> float:
        """Number of floating-point operations of the forward pass."""
        return 2.0 * self.copies * self.rows * self.columns * self.inner


@dataclass(frozen=True)
class Kernels:
    """Seconds of one device for one micro-batch, as (forward, backward) for each kind of kernel."""

    products: tuple[float, float] = (0.0, 0.0)
    attention: tuple[float, float] = (0.0, 0.0)
    elementwise: tuple[float, float] = (0.0, 0.0)

    @property
    def forward(self) -> float:
        """Seconds of the forward pass."""
        return self.products[0] + self.attention[0] + self.elementwise[0]

    @property
    def backward(self) -> float:
        """Seconds of the backward pass."""
        return self.products[1] + self.attention[1] + self.elementwise[1]


def iterate_products(part: object, tokens: float, split: int) -> Iterator[Product]:
    """Yield the matrix products of a part of the model on one device.

    `part` holds the device's own shapes, and `tokens` are those of its tensor group. A router,
    which would be computed alike on all ranks of the group, is divided into `split` equal parts of
    the tokens.
    """
    if isinstance(part, shapes.ProjectionShape):
        yield Product(tokens, part.outputs, part.inputs)
    elif isinstance(part, shapes.StackShape):
        rows = tokens * part.active / part.experts
        yield Product(rows, part.outputs, part.inputs, part.experts)
    elif isinstance(part, shapes.MixtureShape):
        yield Product(tokens / split, part.router.outputs, part.router.inputs)
        yield from iterate_products(part.experts, tokens, split)
        yield from iterate_products(part.shared, tokens, split)
    elif part is not None and not hasattr(part, "sizes"):
        for shape_field in fields(part):  # type: ignore[arg-type]
            yield from iterate_products(getattr(part, shape_field.name), tokens, split)


class Timer:
    """Estimate of the seconds that kernels take on one kind of device."""

    def __init__(self, name: str, device: Device, training: Training) -> None:
        """Raise ConfigError if the table of hardware lacks a figure that the estimate needs."""
        if device.bandwidth is None or device.matmul is None or device.processors is None:
            lacking = [
                figure
                for figure in ("bandwidth", "matmul", "processors")
                if getattr(device, figure) is None
            ]
            raise ConfigError(
                f"the table of hardware lacks {', '.join(lacking)} for '{name}', which planning a "
                "layout needs; add it, or choose another --device"
            )
        self._peak = device.find_peak(training.precision.peak)
        self._products = self._peak * device.matmul
        self._processors = device.processors
        self._tile = device.tile or (
            planner_terms.TILE_ROWS.value,
            planner_terms.TILE_COLUMNS.value,
        )
        measured = device.attention_exact if training.deterministic else device.attention
        self._attention = measured or planner_terms.ATTENTION.value
        self._bytes = device.bandwidth * planner_terms.MEMORY.value
        self.size = training.precision.bytes
        self._fused = bool(training.compile)

    def time_product(self, product: Product) -> float:
        """Return the seconds of a product: the slower of its arithmetic and its memory traffic.

        The arithmetic counts whole tiles, in whole rounds over all processors of the device.
        """
        tall, wide = self._tile
        tiles = product.copies * math.ceil(product.rows / tall) * math.ceil(product.columns / wide)
        rounds = math.ceil(tiles / self._processors)
        filled = rounds * self._processors * tall * wide
        moved = (
            product.rows * product.inner
            + product.inner * product.columns
            + product.rows * product.columns
        )
        memory = self.size * product.copies * moved / self._bytes
        return max(2.0 * filled * product.inner / self._products, memory)

    def time_training(self, product: Product) -> tuple[float, float]:
        """Return the seconds of a product in the forward and in the backward pass.

        The backward pass computes the gradients of the input and of the weights.
        """
        of_input = Product(product.rows, product.inner, product.columns, product.copies)
        of_weight = Product(product.columns, product.inner, math.ceil(product.rows), product.copies)
        return self.time_product(product), self.time_product(of_input) + self.time_product(
            of_weight
        )

    def time_products(self, products: Iterable[Product]) -> tuple[float, float]:
        """Return the seconds of all `products` in the forward and in the backward pass."""
        seconds = [self.time_training(product) for product in products]
        return sum(forward for forward, _ in seconds), sum(backward for _, backward in seconds)

    def time_attention(self, flops: float) -> tuple[float, float]:
        """Return the seconds of attention in the forward and in the backward pass.

        `flops` is the number of operations of the forward pass.
        """
        forward = flops / (self._peak * self._attention)
        return forward, forward * planner_terms.ATTENTION_BACKWARD.value

    def time_moving(self, size: float) -> float:
        """Return the seconds that reading or writing `size` bytes of memory takes."""
        return size / self._bytes

    def time_elementwise(self, size: float) -> tuple[float, float]:
        """Return the seconds of elementwise kernels in the forward and in the backward pass.

        `size` is the number of bytes that the forward pass reads and writes.
        """
        return self.time_moving(size), BACKWARD * self.time_moving(size)

    def time_layer(
        self, layer: shapes.LayerShape, model: DecoderConfig, tokens: float, tensor: int, split: int
    ) -> Kernels:
        """Return the seconds of one layer on one device, without attention itself.

        `layer` has the shapes of one of `tensor` devices. The activations between products are
        divided over `split` of them. flops.py counts the operations of attention.
        """
        moved = self.size * tokens * _count_moved(layer, model, split, self._fused)
        return Kernels(
            products=self.time_products(iterate_products(layer, tokens, tensor)),
            elementwise=self.time_elementwise(moved),
        )

    def time_head(
        self, model: DecoderConfig, channels: int, tokens: float, predicted: float
    ) -> Kernels:
        """Return the seconds of the logits and of the loss.

        Logits are computed for a `predicted` share of `tokens`. The loss reads and writes them in
        float32.
        """
        rows = tokens * predicted
        forward, backward = self.time_training(Product(rows, model.outputs, channels))
        return Kernels(
            products=(forward, backward),
            elementwise=self.time_elementwise(2 * MASTER * rows * model.outputs),
        )


def _count_moved(layer: shapes.LayerShape, model: DecoderConfig, split: int, fused: bool) -> float:
    """Return the elements per token that kernels between products read and write in a forward pass.

    If `fused`, as in compiled layers, each norm reads and writes the stream, each of two sums reads
    two and writes one, rotary positions rotate queries and keys, and the gated product reads two
    and writes one. Otherwise each operation is a kernel of its own: NORM elements for a norm in
    float32, TURNED for rotary positions, and one more write and read of the gate's activation.
    """
    norms = (
        layer.attention_norm,
        layer.attention_output_norm,
        layer.feedforward_norm,
        layer.feedforward_output_norm,
    )
    per_norm, per_rotation = (2, 2) if fused else (NORM, TURNED)
    normed = per_norm * sum(isinstance(norm, shapes.NormShape) for norm in norms)
    stream = model.channels * (normed + 2 * 3) / split
    turned = per_rotation * (layer.attention.query.outputs + layer.attention.key.outputs)
    return stream + turned + _count_feedforward_moved(layer.feedforward, 0 if fused else 2)


def _count_feedforward_moved(
    part: shapes.FeedForwardShape | shapes.MixtureShape, apart: int
) -> float:
    """Return the elements per token that the feed-forward part reads and writes between products.

    `apart` is the number of additional reads and writes of the gate's activation.
    """
    if isinstance(part, shapes.MixtureShape):
        up, copies = part.experts.up, 2 * 2 * part.experts.up.inputs * part.experts.up.active
        wide = (3 + apart if part.experts.gate is not None else 2) * up.active * up.outputs
        return (
            copies
            + wide
            + (_count_feedforward_moved(part.shared, apart) if part.shared is not None else 0)
        )
    return (3 + apart if part.gate is not None else 2) * part.up.outputs
