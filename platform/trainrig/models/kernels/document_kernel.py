"""Attention inside documents on a GPU: no mask is made, and blocks of other documents are skipped.

FlashAttention (Dao 2023, arXiv:2307.08691) in Triton. A block of queries goes through the keys
between the beginning of its first document and its own end, or that of its last document: where
these are is read on the device, so the host waits for nothing. Key heads may be fewer than heads.
The backward pass computes logits again, for the gradients of queries and for those of keys and
values in a kernel each, without atomic additions: the same bits each time. To be imported where
Triton is.

Shapes: B rows, T places of a row, H query heads, K key and value heads, D channels of one head;
M queries and N keys of a block, W the power of two that D fits in.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES, KEYS = 128, 64  # of a block forward
BLOCK = 64  # queries, and keys, of a block backward
NATS_TO_BITS = tl.constexpr(1.4426950408889634)  # exponentials are of base 2


def find_reach(documents_BT: Tensor) -> tuple[Tensor, Tensor]:
    """[B, T] int32 each: where the document of each place begins, and the place after its end."""
    rows, places = documents_BT.shape
    at_T = torch.arange(places, device=documents_BT.device, dtype=torch.int32)
    changes_BT = documents_BT[:, 1:] != documents_BT[:, :-1]
    first_BT = at_T.new_zeros(rows, places)
    first_BT[:, 1:] = torch.where(changes_BT, at_T[1:], 0)
    left_BT = at_T.new_zeros(rows, places)  # places from the end to the row's
    left_BT[:, :-1] = torch.where(changes_BT, places - at_T[1:], 0)
    after_BT = places - left_BT.flip(1).cummax(1).values.flip(1)
    return first_BT.cummax(1).values, after_BT


def attend(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    documents_BT: Tensor,
    scale: float,
    causal: bool,
    seen_BHTD: Tensor,
    sums_BHT: Tensor,
) -> None:
    """Fill `seen_BHTD` and `sums_BHT`, float32: see document_attention.attend."""
    rows, heads, places, width = query_BHTD.shape
    query_BHTD, key_BKTD, value_BKTD = map(_in_order, (query_BHTD, key_BKTD, value_BKTD))
    first_BT, after_BT = find_reach(documents_BT)
    with torch.cuda.device(query_BHTD.device):
        _attend[(triton.cdiv(places, QUERIES), rows * heads)](
            *(query_BHTD, key_BKTD, value_BKTD, seen_BHTD, sums_BHT, first_BT, after_BT),
            *(*query_BHTD.stride()[:3], *key_BKTD.stride()[:3], *value_BKTD.stride()[:3]),
            *(*seen_BHTD.stride()[:3], *sums_BHT.stride()),
            *(heads, heads // key_BKTD.shape[1], places, width, scale),
            causal=causal,
            m=QUERIES,
            n=KEYS,
            w=_widen(width),
            num_warps=8 if width > 64 else 4,
            num_stages=2,
        )


def differentiate(
    gradient_BHTD: Tensor,
    seen_BHTD: Tensor,
    sums_BHT: Tensor,
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    documents_BT: Tensor,
    scale: float,
    causal: bool,
    found: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Fill `found`, the gradients of queries, keys and values."""
    rows, heads, places, width = query_BHTD.shape
    gradient_BHTD, query_BHTD = _in_order(gradient_BHTD), _in_order(query_BHTD)
    key_BKTD, value_BKTD = _in_order(key_BKTD), _in_order(value_BKTD)
    of_query, of_key, of_value = found
    kv_heads = key_BKTD.shape[1]
    first_BT, after_BT = find_reach(documents_BT)
    mean_BHT = (gradient_BHTD.float() * seen_BHTD.float()).sum(-1)
    blocks = triton.cdiv(places, BLOCK)
    given = (query_BHTD, key_BKTD, value_BKTD, gradient_BHTD, sums_BHT, mean_BHT)
    strides = (
        *(*query_BHTD.stride()[:3], *key_BKTD.stride()[:3], *value_BKTD.stride()[:3]),
        *(*gradient_BHTD.stride()[:3], *sums_BHT.stride(), *mean_BHT.stride()),
    )
    sizes = heads, heads // kv_heads, places, width, scale
    settings = {"causal": causal, "m": BLOCK, "n": BLOCK, "w": _widen(width)}
    settings |= {"num_warps": 4, "num_stages": 2}
    with torch.cuda.device(query_BHTD.device):
        _differentiate_queries[(blocks, rows * heads)](
            *given, of_query, first_BT, after_BT, *strides, *of_query.stride()[:3], *sizes,
            **settings,
        )  # fmt: skip
        _differentiate_keys[(blocks, rows * kv_heads)](
            *given, of_key, of_value, first_BT, after_BT, *strides, *of_key.stride()[:3],
            *of_value.stride()[:3], *sizes, **settings,
        )  # fmt: skip


def _in_order(x_BHTD: Tensor) -> Tensor:
    """The same, the channels of a head one after another."""
    return x_BHTD if x_BHTD.stride(-1) == 1 else x_BHTD.contiguous()


def _widen(width: int) -> int:
    widened: int = max(16, triton.next_power_of_2(width))
    return widened


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query, key, value, seen, sums, first, after,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, s_b, s_h, s_t,
    heads, group, places, width, scale,
    causal: tl.constexpr, m: tl.constexpr, n: tl.constexpr, w: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    at_m = (tl.program_id(0) * m + tl.arange(0, m)).to(tl.int64)
    at_w = tl.arange(0, w)
    own_m, own_w = at_m < places, at_w < width
    begin, end, first_m, after_m = _find_keys(first, after, row, places, at_m, own_m, causal, m)
    q = tl.load(
        query + row * q_b + head * q_h + at_m[:, None] * q_t + at_w[None, :],
        mask=own_m[:, None] & own_w[None, :], other=0.0,
    )  # fmt: skip
    keys = key + row * k_b + (head // group) * k_h
    values = value + row * v_b + (head // group) * v_h
    largest = tl.full([m], -3e38, tl.float32)
    total = tl.zeros([m], tl.float32)
    found = tl.zeros([m, w], tl.float32)
    for start in range(begin // n * n, end, n):
        at_n = (start + tl.arange(0, n)).to(tl.int64)
        inside = (at_n < places)[:, None] & own_w[None, :]
        k = tl.load(keys + at_n[:, None] * k_t + at_w[None, :], mask=inside, other=0.0)
        v = tl.load(values + at_n[:, None] * v_t + at_w[None, :], mask=inside, other=0.0)
        x = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * NATS_TO_BITS)
        x = tl.where(_sees(at_m, at_n, first_m, after_m, causal), x, -3e38)
        higher = tl.maximum(largest, tl.max(x, 1))
        # A block of which a query sees nothing counts nothing.
        shares = tl.where(x > -1e38, tl.exp2(x - higher[:, None]), 0.0)
        kept = tl.exp2(largest - higher)
        total = total * kept + tl.sum(shares, 1)
        found = found * kept[:, None] + tl.dot(shares.to(v.dtype), v, input_precision="ieee")
        largest = higher
    total = tl.where(own_m, total, 1.0)
    tl.store(
        seen + row * o_b + head * o_h + at_m[:, None] * o_t + at_w[None, :],
        (found / total[:, None]).to(seen.dtype.element_ty), mask=own_m[:, None] & own_w[None, :],
    )  # fmt: skip
    nats = (largest + tl.log2(total)) / NATS_TO_BITS
    tl.store(sums + row * s_b + head * s_h + at_m * s_t, nats, mask=own_m)


@triton.jit  # type: ignore[untyped-decorator]
def _differentiate_queries(  # type: ignore[no-untyped-def]
    query, key, value, gradient, sums, mean, of_query, first, after,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, s_b, s_h, s_t, d_b, d_h, d_t,
    o_b, o_h, o_t, heads, group, places, width, scale,
    causal: tl.constexpr, m: tl.constexpr, n: tl.constexpr, w: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    at_m = (tl.program_id(0) * m + tl.arange(0, m)).to(tl.int64)
    at_w = tl.arange(0, w)
    own_m, own_w = at_m < places, at_w < width
    own = own_m[:, None] & own_w[None, :]
    begin, end, first_m, after_m = _find_keys(first, after, row, places, at_m, own_m, causal, m)
    q = tl.load(
        query + row * q_b + head * q_h + at_m[:, None] * q_t + at_w[None, :], mask=own, other=0.0
    )
    g = tl.load(
        gradient + row * g_b + head * g_h + at_m[:, None] * g_t + at_w[None, :], mask=own, other=0.0
    )
    bits_m = tl.load(sums + row * s_b + head * s_h + at_m * s_t, mask=own_m, other=0.0)
    bits_m *= NATS_TO_BITS
    mean_m = tl.load(mean + row * d_b + head * d_h + at_m * d_t, mask=own_m, other=0.0)
    keys = key + row * k_b + (head // group) * k_h
    values = value + row * v_b + (head // group) * v_h
    found = tl.zeros([m, w], tl.float32)
    for start in range(begin // n * n, end, n):
        at_n = (start + tl.arange(0, n)).to(tl.int64)
        inside = (at_n < places)[:, None] & own_w[None, :]
        k = tl.load(keys + at_n[:, None] * k_t + at_w[None, :], mask=inside, other=0.0)
        v = tl.load(values + at_n[:, None] * v_t + at_w[None, :], mask=inside, other=0.0)
        x = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * NATS_TO_BITS)
        visible = _sees(at_m, at_n, first_m, after_m, causal)
        shares = tl.where(visible, tl.exp2(x - bits_m[:, None]), 0.0)
        of_shares = tl.dot(g, tl.trans(v), input_precision="ieee")
        of_x = shares * (of_shares - mean_m[:, None])
        found += tl.dot(of_x.to(k.dtype), k, input_precision="ieee")
    tl.store(
        of_query + row * o_b + head * o_h + at_m[:, None] * o_t + at_w[None, :],
        (found * scale).to(of_query.dtype.element_ty), mask=own,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _differentiate_keys(  # type: ignore[no-untyped-def]
    query, key, value, gradient, sums, mean, of_key, of_value, first, after,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, s_b, s_h, s_t, d_b, d_h, d_t,
    a_b, a_h, a_t, b_b, b_h, b_t, heads, group, places, width, scale,
    causal: tl.constexpr, m: tl.constexpr, n: tl.constexpr, w: tl.constexpr,
):  # fmt: skip
    kv_heads = heads // group
    row = (tl.program_id(1) // kv_heads).to(tl.int64)
    kv_head = tl.program_id(1) % kv_heads
    start_n = tl.program_id(0) * n
    at_n = (start_n + tl.arange(0, n)).to(tl.int64)
    at_w = tl.arange(0, w)
    own_n, own_w = at_n < places, at_w < width
    own = own_n[:, None] & own_w[None, :]
    # The queries that see any of these keys: of a later place, and of their documents.
    end = tl.load(after + row * places + tl.minimum(start_n + n, places) - 1)
    begin = start_n
    if not causal:
        begin = tl.load(first + row * places + start_n)
    k = tl.load(
        key + row * k_b + kv_head * k_h + at_n[:, None] * k_t + at_w[None, :], mask=own, other=0.0
    )
    v = tl.load(
        value + row * v_b + kv_head * v_h + at_n[:, None] * v_t + at_w[None, :], mask=own, other=0.0
    )
    found_k = tl.zeros([n, w], tl.float32)
    found_v = tl.zeros([n, w], tl.float32)
    for member in range(0, group):
        head = kv_head * group + member
        for start in range(begin // m * m, end, m):
            at_m = (start + tl.arange(0, m)).to(tl.int64)
            own_m = at_m < places
            inside = own_m[:, None] & own_w[None, :]
            q = tl.load(
                query + row * q_b + head * q_h + at_m[:, None] * q_t + at_w[None, :],
                mask=inside, other=0.0,
            )  # fmt: skip
            g = tl.load(
                gradient + row * g_b + head * g_h + at_m[:, None] * g_t + at_w[None, :],
                mask=inside, other=0.0,
            )  # fmt: skip
            bits_m = tl.load(sums + row * s_b + head * s_h + at_m * s_t, mask=own_m, other=0.0)
            bits_m *= NATS_TO_BITS
            mean_m = tl.load(mean + row * d_b + head * d_h + at_m * d_t, mask=own_m, other=0.0)
            first_m = tl.load(first + row * places + at_m, mask=own_m, other=0)
            after_m = tl.load(after + row * places + at_m, mask=own_m, other=0)
            x = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * NATS_TO_BITS)
            visible = _sees(at_m, at_n, first_m, after_m, causal)
            shares = tl.where(visible, tl.exp2(x - bits_m[:, None]), 0.0)
            found_v += tl.dot(tl.trans(shares.to(g.dtype)), g, input_precision="ieee")
            of_shares = tl.dot(g, tl.trans(v), input_precision="ieee")
            of_x = shares * (of_shares - mean_m[:, None])
            found_k += tl.dot(tl.trans(of_x.to(q.dtype)), q, input_precision="ieee")
    tl.store(
        of_key + row * a_b + kv_head * a_h + at_n[:, None] * a_t + at_w[None, :],
        (found_k * scale).to(of_key.dtype.element_ty), mask=own,
    )  # fmt: skip
    tl.store(
        of_value + row * b_b + kv_head * b_h + at_n[:, None] * b_t + at_w[None, :],
        found_v.to(of_value.dtype.element_ty), mask=own,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _find_keys(  # type: ignore[no-untyped-def]
    first, after, row, places, at_m, own_m, causal: tl.constexpr, m: tl.constexpr
):
    """The keys that any of these queries sees, from and to; and those that each sees."""
    start_m = tl.program_id(0) * m
    last = tl.minimum(start_m + m, places) - 1
    begin = tl.load(first + row * places + start_m)
    end = last + 1
    if not causal:
        end = tl.load(after + row * places + last)
    # A query beyond the row sees nothing.
    first_m = tl.load(first + row * places + at_m, mask=own_m, other=0)
    after_m = tl.load(after + row * places + at_m, mask=own_m, other=0)
    return begin, end, first_m, after_m


@triton.jit  # type: ignore[untyped-decorator]
def _sees(at_m, at_n, first_m, after_m, causal: tl.constexpr):  # type: ignore[no-untyped-def]
    """[M, N], whether a query sees a key."""
    visible = (at_n[None, :] >= first_m[:, None]) & (at_n[None, :] < after_m[:, None])
    if causal:
        visible = visible & (at_n[None, :] <= at_m[:, None])
    return visible
