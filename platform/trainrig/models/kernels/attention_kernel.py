"""Triton kernels of attention that read only the keys each block of queries attends to.

FlashAttention (Dao 2023, arXiv:2307.08691) for documents of packed rows, windows, soft-capped
logits, attention sinks and linear biases, with any number of key heads. A block of queries reads
the keys from the first to the last that any of its queries attends to (kernel_support.py). These
bounds are read on the device, so the host does not wait, and there is no mask. The backward pass
computes logits again, in one kernel for the gradients of queries and one for those of keys and
values, without atomic additions, so it gives the same bits each time. Import this module only where
Triton is installed.

Shapes: B rows, T queries and S keys of each, H query heads, K key and value heads, D channels of
one head; M queries and N keys of a block, W the power of two that D is padded to.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.autotuner import OutOfResources

from trainrig.errors import ConfigError
from trainrig.models.kernels.kernel_choice import (
    STAGES,
    Tile,
    choose_backward_tile,
    choose_forward_tile,
)
from trainrig.models.kernels.kernel_support import Reach, find_shared_memory

BITS = 1.4426950408889634  # bits in a nat; the kernels use exponentials of base 2
NATS_TO_BITS = tl.constexpr(BITS)


def attend(
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    reach: Reach,
    past: int,
    slopes_H: Tensor | None,
    sinks_H: Tensor | None,
    scale: float,
    cap: float | None,
    found: tuple[Tensor, Tensor],
) -> None:
    """Fill `found` with the attention output and the log-sum of exponentials.

    The output is [B, H, T, D], the log-sums [B, H, T] float32; a query that attends to nothing
    gives 0 and minus infinity. The first query is `past` places after the first key.
    """
    seen_BHTD, sums_BHT = found
    query_BHTD, key_BKSD, value_BKSD = map(_make_contiguous, (query_BHTD, key_BKSD, value_BKSD))
    rows, heads, new, width = query_BHTD.shape
    tile = _find_tile(choose_forward_tile, width, query_BHTD.device)
    warps = 8 if width > 64 and tile.queries >= 64 else 4
    with torch.cuda.device(query_BHTD.device):
        launch(
            _attend,
            triton.cdiv(new, tile.queries) * rows * heads,
            (
                *(query_BHTD, key_BKSD, value_BKSD, seen_BHTD, sums_BHT),
                *(reach.first_key_BT, reach.last_key_BT, slopes_H, sinks_H),
                *(*query_BHTD.stride()[:3], *key_BKSD.stride()[:3], *value_BKSD.stride()[:3]),
                *(
                    *seen_BHTD.stride()[:3],
                    *sums_BHT.stride(),
                    _find_row_stride(reach.first_key_BT),
                ),
                *(heads, heads // key_BKSD.shape[1], new, key_BKSD.shape[2], past, width),
                *_convert_to_bits(scale, cap),
            ),
            tile,
            warps,
        )


def differentiate(
    gradient_BHTD: Tensor,
    mean_BHT: Tensor,
    sums_BHT: Tensor,
    query_BHTD: Tensor,
    key_BKSD: Tensor,
    value_BKSD: Tensor,
    reach: Reach,
    past: int,
    slopes_H: Tensor | None,
    scale: float,
    cap: float | None,
    found: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Fill `found` with the gradients of queries, keys and values.

    `mean_BHT` comes from `attention_blocks.compute_mean_gradients`.
    """
    gradient_BHTD, query_BHTD, key_BKSD, value_BKSD = map(
        _make_contiguous, (gradient_BHTD, query_BHTD, key_BKSD, value_BKSD)
    )
    of_query, of_key, of_value = found
    rows, heads, new, width = query_BHTD.shape
    kv_heads, seen = key_BKSD.shape[1:3]
    given = query_BHTD, key_BKSD, value_BKSD, gradient_BHTD, sums_BHT, mean_BHT
    strides = (
        *(*query_BHTD.stride()[:3], *key_BKSD.stride()[:3], *value_BKSD.stride()[:3]),
        *(*gradient_BHTD.stride()[:3], *sums_BHT.stride(), *mean_BHT.stride()),
    )
    sizes = heads, heads // kv_heads, new, seen, past, width, scale, *_convert_to_bits(scale, cap)
    tile = _find_tile(choose_backward_tile, width, query_BHTD.device)
    with torch.cuda.device(query_BHTD.device):
        launch(
            _differentiate_queries,
            triton.cdiv(new, tile.queries) * rows * heads,
            (
                *(*given, of_query, reach.first_key_BT, reach.last_key_BT, slopes_H),
                *(*strides, *of_query.stride()[:3], _find_row_stride(reach.first_key_BT), *sizes),
            ),
            tile,
        )
        launch(
            _differentiate_keys,
            triton.cdiv(seen, tile.keys) * rows * kv_heads,
            (
                *(*given, of_key, of_value, *reach, slopes_H),
                *(*strides, *of_key.stride()[:3], *of_value.stride()[:3]),
                *(
                    _find_row_stride(reach.first_key_BT),
                    _find_row_stride(reach.first_query_BN),
                    *sizes,
                ),
            ),
            tile,
        )


def launch(kernel: Any, blocks: int, arguments: tuple[Any, ...], tile: Tile, warps: int = 4) -> Any:
    """Launch `blocks` thread blocks of `kernel` and return the compiled kernel.

    Raises ConfigError if the kernel needs more shared memory than the GPU has.
    """
    sizes = {"m": tile.queries, "n": tile.keys, "w": tile.width}
    try:
        return kernel[(blocks,)](*arguments, **sizes, num_warps=warps, num_stages=STAGES)
    except OutOfResources as error:
        raise ConfigError(
            f"training.attention.kernel = 'triton': {kernel.__name__} with {tile.queries} queries, "
            f"{tile.keys} keys and {tile.width} channels does not fit on this GPU ({error}); use "
            "'auto', and report this card's shared memory"
        ) from None


def _find_tile(choose: Callable[[int, int], Tile | None], width: int, device: torch.device) -> Tile:
    """Return the tile that `choose` finds for the shared memory of `device`.

    Raises ConfigError if no tile fits.
    """
    available = find_shared_memory(device)
    tile = choose(width, available)
    if tile is None:
        raise ConfigError(
            f"training.attention.kernel = 'triton': no tile for heads of {width} channels fits in "
            f"the {available:,} bytes of shared memory of this GPU; use 'auto'"
        )
    return tile


def _make_contiguous(x_BHTD: Tensor) -> Tensor:
    """Return `x_BHTD` with the channels of a head contiguous."""
    return x_BHTD if x_BHTD.stride(-1) == 1 else x_BHTD.contiguous()


def _find_row_stride(places_BT: Tensor) -> int:
    """Return the stride between rows, 0 if all rows share one entry."""
    return 0 if places_BT.shape[0] == 1 else places_BT.stride(0)


def _convert_to_bits(scale: float, cap: float | None) -> tuple[float, float | None]:
    return scale * BITS, None if cap is None else cap * BITS


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query, key, value, seen, sums, low, high, slopes, sinks,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, s_b, s_h, s_t, r_b,
    heads, group, queries, keys, past, width, scale, cap,
    m: tl.constexpr, n: tl.constexpr, w: tl.constexpr,
):  # fmt: skip
    row, head, start_m = _find_place(heads, queries, m)
    at_m = (start_m + tl.arange(0, m)).to(tl.int64)
    low_m, high_m = _load_reach(low + row * r_b, high + row * r_b, at_m, queries)
    begin, end = _find_range(low + row * r_b, high + row * r_b, start_m, m, queries)
    q = _load(query + row * q_b + head * q_h, at_m, q_t, queries, width, w)
    k_row = key + row * k_b + (head // group) * k_h
    v_row = value + row * v_b + (head // group) * v_h
    largest = tl.full([m], -3e38, tl.float32)
    total = tl.zeros([m], tl.float32)
    found = tl.zeros([m, w], tl.float32)
    for start in range(begin // n * n, end, n):
        at_n = (start + tl.arange(0, n)).to(tl.int64)
        k = _load(k_row, at_n, k_t, keys, width, w)
        v = _load(v_row, at_n, v_t, keys, width, w)
        x, _ = _compute_logits(q, k, at_m + past, at_n, slopes, head, scale, cap)
        visible = _sees(low_m, high_m, at_n)
        x = tl.where(visible, x, -3e38)
        higher = tl.maximum(largest, tl.max(x, 1))
        # A block in which a query attends to nothing must not count. This is decided by visibility
        # and not by the size of a logit: no comparison with NaN is true, and NaN must come out as
        # NaN.
        shares = tl.where(visible, tl.exp2(x - higher[:, None]), 0.0)
        kept = tl.exp2(largest - higher)
        total = total * kept + tl.sum(shares, 1)
        found = found * kept[:, None] + tl.dot(shares.to(v.dtype), v, input_precision="ieee")
        largest = higher
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32) * NATS_TO_BITS
        higher = tl.maximum(largest, sink)
        kept = tl.exp2(largest - higher)
        total = total * kept + tl.exp2(sink - higher)
        found = found * kept[:, None]
        largest = higher
    some = total != 0  # true for NaN, too
    total = tl.where(some, total, 1.0)
    _store(seen + row * o_b + head * o_h, at_m, o_t, queries, width, found / total[:, None], w)
    nats = tl.where(some, (largest + tl.log2(total)) / NATS_TO_BITS, -float("inf"))
    tl.store(sums + row * s_b + head * s_h + at_m * s_t, nats, mask=at_m < queries)


@triton.jit  # type: ignore[untyped-decorator]
def _differentiate_queries(  # type: ignore[no-untyped-def]
    query, key, value, gradient, sums, mean, of_query, low, high, slopes,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, s_b, s_h, s_t, d_b, d_h, d_t,
    o_b, o_h, o_t, r_b, heads, group, queries, keys, past, width, factor, scale, cap,
    m: tl.constexpr, n: tl.constexpr, w: tl.constexpr,
):  # fmt: skip
    row, head, start_m = _find_place(heads, queries, m)
    at_m = (start_m + tl.arange(0, m)).to(tl.int64)
    own_m = at_m < queries
    low_m, high_m = _load_reach(low + row * r_b, high + row * r_b, at_m, queries)
    begin, end = _find_range(low + row * r_b, high + row * r_b, start_m, m, queries)
    q = _load(query + row * q_b + head * q_h, at_m, q_t, queries, width, w)
    g = _load(gradient + row * g_b + head * g_h, at_m, g_t, queries, width, w)
    sums_m = tl.load(sums + row * s_b + head * s_h + at_m * s_t, mask=own_m, other=0.0)
    mean_m = tl.load(mean + row * d_b + head * d_h + at_m * d_t, mask=own_m, other=0.0)
    k_row = key + row * k_b + (head // group) * k_h
    v_row = value + row * v_b + (head // group) * v_h
    found = tl.zeros([m, w], tl.float32)
    for start in range(begin // n * n, end, n):
        at_n = (start + tl.arange(0, n)).to(tl.int64)
        k = _load(k_row, at_n, k_t, keys, width, w)
        v = _load(v_row, at_n, v_t, keys, width, w)
        x, bent = _compute_logits(q, k, at_m + past, at_n, slopes, head, scale, cap)
        visible = _sees(low_m, high_m, at_n)
        _, of_x = _differentiate_logits(x, bent, visible, g, v, sums_m, mean_m, cap)
        found += tl.dot(of_x.to(k.dtype), k, input_precision="ieee")
    _store(of_query + row * o_b + head * o_h, at_m, o_t, queries, width, found * factor, w)


@triton.jit  # type: ignore[untyped-decorator]
def _differentiate_keys(  # type: ignore[no-untyped-def]
    query, key, value, gradient, sums, mean, of_key, of_value, low, high, before, after, slopes,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, s_b, s_h, s_t, d_b, d_h, d_t,
    a_b, a_h, a_t, b_b, b_h, b_t, r_b, e_b,
    heads, group, queries, keys, past, width, factor, scale, cap,
    m: tl.constexpr, n: tl.constexpr, w: tl.constexpr,
):  # fmt: skip
    kv_heads = heads // group
    row, kv_head, start_n = _find_place(kv_heads, keys, n)
    at_n = (start_n + tl.arange(0, n)).to(tl.int64)
    begin, end = _find_range(before + row * e_b, after + row * e_b, start_n, n, keys)
    k = _load(key + row * k_b + kv_head * k_h, at_n, k_t, keys, width, w)
    v = _load(value + row * v_b + kv_head * v_h, at_n, v_t, keys, width, w)
    found_k = tl.zeros([n, w], tl.float32)
    found_v = tl.zeros([n, w], tl.float32)
    for member in range(0, group):
        head = kv_head * group + member
        for start in range(begin // m * m, end, m):
            at_m = (start + tl.arange(0, m)).to(tl.int64)
            own_m = at_m < queries
            q = _load(query + row * q_b + head * q_h, at_m, q_t, queries, width, w)
            g = _load(gradient + row * g_b + head * g_h, at_m, g_t, queries, width, w)
            sums_m = tl.load(sums + row * s_b + head * s_h + at_m * s_t, mask=own_m, other=0.0)
            mean_m = tl.load(mean + row * d_b + head * d_h + at_m * d_t, mask=own_m, other=0.0)
            low_m, high_m = _load_reach(low + row * r_b, high + row * r_b, at_m, queries)
            x, bent = _compute_logits(q, k, at_m + past, at_n, slopes, head, scale, cap)
            visible = _sees(low_m, high_m, at_n)
            shares, of_x = _differentiate_logits(x, bent, visible, g, v, sums_m, mean_m, cap)
            found_v += tl.dot(tl.trans(shares.to(g.dtype)), g, input_precision="ieee")
            found_k += tl.dot(tl.trans(of_x.to(q.dtype)), q, input_precision="ieee")
    _store(of_key + row * a_b + kv_head * a_h, at_n, a_t, keys, width, found_k * factor, w)
    _store(of_value + row * b_b + kv_head * b_h, at_n, b_t, keys, width, found_v, w)


@triton.jit  # type: ignore[untyped-decorator]
def _find_place(heads, places, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the row, the head and the first place of this program's block of `size`.

    Blocks of one head are consecutive, because they read the same keys. All blocks are on one grid
    axis, since the others are limited to 65,535.
    """
    blocks = tl.cdiv(places, size)
    number = tl.program_id(0) // blocks
    row, head = (number // heads).to(tl.int64), (number % heads).to(tl.int64)
    return row, head, tl.program_id(0) % blocks * size


@triton.jit
def _find_range(low, high, start, size, places):  # type: ignore[no-untyped-def]
    """Return the range that any place of a block of `size` from `start` attends to."""
    return tl.load(low + start), tl.load(high + tl.minimum(start + size, places) - 1) + 1


@triton.jit  # type: ignore[untyped-decorator]
def _load(x, at, stride, places, width, w: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the places `at` of a head, [block, W]; 0 beyond its places and channels."""
    at_w = tl.arange(0, w)
    inside = (at < places)[:, None] & (at_w < width)[None, :]
    return tl.load(x + at[:, None] * stride + at_w[None, :], mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _store(x, at, stride, places, width, block, w: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write `block` to the places `at` of `x`, in the dtype of `x`."""
    at_w = tl.arange(0, w)
    inside = (at < places)[:, None] & (at_w < width)[None, :]
    to = x + at[:, None] * stride + at_w[None, :]
    tl.store(to, block.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _load_reach(low, high, at_m, queries):  # type: ignore[no-untyped-def]
    """Return the first and last key that each query attends to; none for places beyond the row."""
    low_m = tl.load(low + at_m, mask=at_m < queries, other=0)
    high_m = tl.load(high + at_m, mask=at_m < queries, other=-1)
    return low_m, high_m


@triton.jit
def _sees(low_m, high_m, at_n):  # type: ignore[no-untyped-def]
    """Return whether each query attends to each key, [M, N]."""
    return (at_n[None, :] >= low_m[:, None]) & (at_n[None, :] <= high_m[:, None])


@triton.jit
def _compute_logits(q, k, at_m, at_n, slopes, head, scale, cap):  # type: ignore[no-untyped-def]
    """Return logits in bits, [M, N], and the value of tanh if they are capped.

    `at_m` are the places of the queries among the keys.
    """
    x = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    bent = x
    if cap is not None:
        bent = 1 - 2 / (tl.exp2(x * (2 * NATS_TO_BITS / cap)) + 1)
        x = bent * cap
    if slopes is not None:
        distance = tl.abs(at_m[:, None] - at_n[None, :]).to(tl.float32)
        x -= tl.load(slopes + head) * NATS_TO_BITS * distance
    return x, bent


@triton.jit
def _differentiate_logits(x, bent, visible, g, v, sums_m, mean_m, cap):  # type: ignore[no-untyped-def]
    """Return the softmax and the gradient of the unscaled logits, [M, N] each."""
    shares = tl.where(visible, tl.exp2(x - sums_m[:, None] * NATS_TO_BITS), 0.0)
    of_x = shares * (tl.dot(g, tl.trans(v), input_precision="ieee") - mean_m[:, None])
    if cap is not None:
        of_x = of_x * (1 - bent * bent)
    return shares, of_x
