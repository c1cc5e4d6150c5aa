"""Attention in blocks, compared with masked attention with all logits at once and autograd."""

import itertools

import pytest
import torch
from torch import library

from trainrig.models.kernels import attention_blocks
from trainrig.models.kernels.blocked_attention import OPERATOR, blocked_attention

S = 8
WIDTH = 6
SCALE = 0.4


def attend_all_at_once(query, key, value, window, cap, documents, slopes, sinks):
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    logits = query @ key.mT * SCALE
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    new = query.shape[2]
    distance = torch.arange(S - new, S)[:, None] - torch.arange(S)
    if slopes is not None:
        logits = logits - slopes[:, None, None] * distance
    visible = (distance >= 0)[None]
    if window is not None:
        visible = visible & (distance < window)
    if documents is not None:
        visible = visible & (documents[:, -new:, None] == documents[:, None])
    logits = logits.masked_fill(~visible[:, None], -torch.inf)
    if sinks is None:
        return logits.softmax(-1) @ value
    empty = sinks[None, :, None, None].expand(*logits.shape[:3], 1)
    return torch.cat([logits, empty], -1).softmax(-1)[..., :-1] @ value


@pytest.mark.parametrize(("window", "cap"), [*itertools.product([None, 2, 5], [None, 1.5])])
@pytest.mark.parametrize("new", [S, 1])
def test_values_and_gradients_equal_attention_all_at_once(monkeypatch, window, cap, new):
    monkeypatch.setattr(attention_blocks, "QUERIES", 3)  # the last block is not full
    generator = torch.Generator().manual_seed(0)

    def draw(*size):
        return torch.randn(size, generator=generator).requires_grad_()

    for packed, sloped, sunk in itertools.product([False, True], repeat=3):
        parts = [draw(2, 4, new, WIDTH), draw(2, 2, S, WIDTH), draw(2, 2, S, WIDTH)]
        documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0] * S]) if packed else None
        slopes = torch.rand(4, generator=generator) if sloped else None
        sinks = draw(4) if sunk else None
        ours = blocked_attention(
            *parts,
            scale=SCALE,
            window=window,
            cap=cap,
            documents_BS=documents,
            slopes_H=slopes,
            sinks_H=sinks,
        )
        theirs = attend_all_at_once(*parts, window, cap, documents, slopes, sinks)  # type: ignore[call-arg]
        weights = torch.randn(ours.shape, generator=generator)
        inputs = parts if sinks is None else [*parts, sinks]
        found = torch.autograd.grad((ours * weights).sum(), inputs)
        expected = torch.autograd.grad((theirs * weights).sum(), inputs)
        assert (ours - theirs).abs().max() <= 2e-6
        for one, other in zip(found, expected, strict=True):
            assert (one - other).abs().max() <= 5e-6


def test_only_keys_near_a_block_are_touched(monkeypatch):
    monkeypatch.setattr(attention_blocks, "QUERIES", 4)
    query = torch.zeros(1, 1, 16, 2)
    blocks = attention_blocks.Blocks(query, query, None, None, 1.0, 3, None)
    assert [(keys.start, keys.stop) for _, keys in blocks.split_ranges()] == [
        (0, 4),
        (2, 8),
        (6, 12),
        (10, 16),
    ]


def test_bfloat16_goes_in_and_out_with_logits_of_float32():
    parts = torch.randn(3, 1, 2, 8, 4, generator=torch.Generator().manual_seed(1)).bfloat16()
    narrow = blocked_attention(*parts, scale=0.5, cap=20.0)
    exact = blocked_attention(*parts.float(), scale=0.5, cap=20.0)
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, exact.bfloat16())


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("length", [20, attention_blocks.QUERIES + 20])
def test_the_operator_matches_its_compiler_description(rows, length):
    """Check the strides, too, for rows read all at once or one by one."""
    query, key = (torch.randn(rows, length, heads, 8).transpose(1, 2) for heads in (4, 2))
    documents = torch.arange(length).div(7).floor().expand(rows, -1)
    sinks = torch.randn(4)
    given = [part.requires_grad_() for part in (query, key, key.detach().clone())]
    rest = documents, None, sinks.requires_grad_(), SCALE, 9, None, True
    library.opcheck(OPERATOR, (*given, *rest))
    # The next projection reads the heads of a position together.
    assert OPERATOR(*given, *rest)[0].transpose(1, 2).is_contiguous()
