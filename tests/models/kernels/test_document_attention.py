"""Attention by document, compared with torch's own attention under a mask of whole rows."""

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import library
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.attention import make_added_mask, make_document_mask
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.encoder import build_model
from trainrig.models.kernels import attention_blocks, blocked_attention, cpu_attention

ROWS = [[150, 1, 2, 40, 3, 104], [300], [1] * 50 + [130, 60, 60]]  # document lengths of each row
HEADS = 4
WIDTH = 16
SCALE = 0.25


def number_documents(rows):
    """Return the document number of each position, [B, T]."""
    return torch.stack([torch.arange(len(n)).repeat_interleave(torch.tensor(n)) for n in rows])


def draw_parts(rows, kv_heads=HEADS, dtype=torch.float32):
    """Return queries, keys and values with the layout of projections."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(len(rows), sum(rows[0]), heads, WIDTH) for heads in (HEADS, kv_heads, kv_heads)]
    made = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)
    return [part.to(dtype).transpose(1, 2).requires_grad_() for part in made]


def masked(query, key, value, documents, causal):
    mask = make_added_mask(make_document_mask(documents, documents.shape[1], causal), query.dtype)
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=SCALE, enable_gqa=grouped
    )


def with_gradients(attend, parts):
    seen = attend(*parts)
    weights = torch.randn(seen.shape, generator=torch.Generator().manual_seed(1), dtype=seen.dtype)
    return seen, *torch.autograd.grad((seen * weights).sum(), parts)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_values_and_slopes_are_those_under_a_mask_of_whole_rows(kv_heads, causal, dtype, most):
    documents = number_documents(ROWS)
    parts = draw_parts(ROWS, kv_heads, dtype)
    ours = functools.partial(
        cpu_attention.document_attention, documents_BT=documents, scale=SCALE, causal=causal
    )
    theirs = functools.partial(masked, documents=documents, causal=causal)
    pairs = zip(with_gradients(ours, parts), with_gradients(theirs, parts), strict=True)
    for one, other in pairs:
        assert one.stride() == other.stride()
        assert (one - other).abs().max() <= most * max(1, other.abs().max())


def test_a_scalar_slope_applies_to_all_heads():
    parts = draw_parts(ROWS)
    documents = number_documents(ROWS)
    seen = cpu_attention.document_attention(*parts, documents, scale=SCALE)
    found = torch.autograd.grad(seen.sum(), parts)
    expected = torch.autograd.grad(masked(*parts, documents, True).sum(), parts)  # type: ignore[call-arg]
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 2e-6


@pytest.mark.parametrize("causal", [True, False])
def test_bits_of_a_row_do_not_depend_on_other_rows(causal):
    parts = draw_parts(ROWS, 2)
    documents = number_documents(ROWS)

    def attend(rows):
        own = functools.partial(
            cpu_attention.document_attention,
            documents_BT=documents[rows],
            scale=SCALE,
            causal=causal,
        )
        taken = [part.detach()[rows].requires_grad_() for part in parts]
        seen = own(*taken)
        return seen, *torch.autograd.grad(seen.square().sum(), taken)

    whole = attend(slice(0, 3))
    for row in range(3):
        for one, other in zip(attend(slice(row, row + 1)), whole, strict=True):
            assert torch.equal(one[0], other[row])


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 50))
def test_calls_cover_a_row_and_join_only_short_documents(lengths, together):
    bounds = [0, *itertools.accumulate(lengths)]
    found = list(cpu_attention.split_segments(bounds, together))
    ends = [0, *(places.stop for places, _ in found)]
    assert [places.start for places, _ in found] == ends[:-1] and ends[-1] == bounds[-1]
    for places, alone in found:
        inside = [bound for bound in bounds if places.start < bound <= places.stop]
        assert alone == (len(inside) == 1)
        assert alone or places.stop - places.start <= together
    # No call could have included the next document.
    for (one, _), (other, _) in itertools.pairwise(found):
        first = next(bound for bound in bounds if bound > other.start)
        assert first - one.start > together


@pytest.mark.slow
def test_operators_keep_torchs_rules():
    parts = draw_parts(ROWS, 2)
    documents = number_documents(ROWS)
    library.opcheck(cpu_attention.OPERATOR, (*parts, documents, SCALE, True))


class Products(TorchDispatchMode):
    """Counts the query-key pairs of calls of torch's kernel."""

    def __init__(self):
        super().__init__()
        self.pairs = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "flash_attention_for_cpu" in str(function):
            forward = "backward" not in str(function)
            query, key = args[:2] if forward else args[1:3]
            self.pairs += query.shape[0] * query.shape[2] * key.shape[2]
        return function(*args, **(kwargs or {}))


def count_document_pairs(rows):
    parts = [part.detach() for part in draw_parts(rows)]
    documents = number_documents(rows)
    with Products() as forward:
        saved = cpu_attention.attend(*parts, documents, SCALE, True)  # type: ignore[call-arg]
    with Products() as backward:
        given = torch.ones_like(parts[0]), *saved, *parts, documents
        cpu_attention.differentiate(*given, SCALE, True)  # type: ignore[call-arg]
    assert forward.pairs == backward.pairs
    return forward.pairs


def count_block_flops(rows, **settings):
    parts = [part.detach() for part in draw_parts(rows)]
    documents = number_documents(rows)
    asked = documents, None, None, SCALE, settings.get("window"), settings.get("cap"), True
    with FlopCounterMode(display=False) as forward:
        seen, sums = blocked_attention.attend(*parts, *asked)  # type: ignore[call-arg]
    with FlopCounterMode(display=False) as backward:
        blocked_attention.attend_backward(torch.ones_like(seen), seen, sums, *parts, *asked)  # type: ignore[call-arg]
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize("length", [128, 300, 512])
def test_computation_is_quadratic_in_document_lengths(length):
    """Expect exact squares for long documents, whatever the row."""
    for count in (1, 2, 4):
        assert count_document_pairs([[length] * count]) == count * length**2
    assert count_document_pairs([[length] * 2, [2 * length]]) == 6 * length**2


def test_short_documents_compute_no_more_than_one_call():
    assert count_document_pairs([[1] * 1024]) == 1024 * 128
    assert count_document_pairs([[100] * 10]) == 10 * 100**2
    assert count_document_pairs([[30] * 40]) <= 40 * 30 * 128


@pytest.mark.parametrize("settings", [{"cap": 20.0}, {"window": 200}, {"window": 4096}])
def test_blocks_read_only_keys_of_their_own_documents(settings):
    block = attention_blocks.QUERIES
    pair = 4 * HEADS * WIDTH  # two products forward, and two numbers for each of a product
    for length, count in itertools.product((256, 512), (1, 4)):
        forward, backward = count_block_flops([[length] * count], **settings)
        seen = min(length, settings.get("window", length) + block)
        assert forward <= pair * count * length * seen
        assert backward == 2.5 * forward
    once, _ = count_block_flops([[512] * 2], **settings)
    assert count_block_flops([[512] * 4], **settings)[0] == 2 * once
    assert count_block_flops([[512] * 2, [512] * 2], **settings)[0] == 2 * once


@pytest.mark.parametrize(
    "settings", [{"cap": 2.0}, {"window": 200}, {"window": 30, "causal": False}, {"causal": False}]
)
def test_blocks_with_documents_equal_reading_all_keys(settings, monkeypatch):
    """Use blocks of the usual size, and one as long as the row, which takes no shortcut."""
    parts = draw_parts(ROWS, 2)
    documents = number_documents(ROWS)
    attend = functools.partial(
        blocked_attention.blocked_attention, documents_BS=documents, scale=SCALE, **settings
    )
    found = with_gradients(attend, parts)
    monkeypatch.setattr(attention_blocks, "QUERIES", 300)
    for one, other in zip(found, with_gradients(attend, parts), strict=True):
        assert (one - other).abs().max() <= 2e-6 * max(1, other.abs().max())


SIZES = {
    "layers": 2,
    "channels": 32,
    "heads": 4,
    "kv_heads": 2,
    "vocabulary": 61,
    "positions": 300,
    "initial_std": 0.3,
}
MODELS = {
    "causal": DecoderConfig(**SIZES),
    "windows": DecoderConfig(**SIZES, attention={"window": {"size": 30}}),
    "soft caps": DecoderConfig(**SIZES, attention={"logit_cap": 5.0}),
    "encoder": EncoderConfig(**SIZES),
    "encoder with windows": EncoderConfig(
        **SIZES, attention={"window": {"size": 31, "pattern": ("local", "global")}}
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_packed_documents_get_the_logits_and_the_slopes_of_each_alone(name):
    model = build_model(MODELS[name])
    initialise(model, 0)
    ids = torch.randint(61, (3, 300), generator=torch.Generator().manual_seed(0))
    positions = torch.stack([torch.cat([torch.arange(n) for n in lengths]) for lengths in ROWS])
    packed = model(ids, positions_BT=positions).logits
    alone = torch.stack(
        [
            torch.cat([model(document[None]).logits[0] for document in row.split(lengths)])
            for row, lengths in zip(ids, ROWS, strict=True)
        ]
    )
    assert (packed - alone).abs().max() <= 2e-5
    names, parameters = zip(*model.named_parameters(), strict=True)
    one, other = (
        torch.autograd.grad(F.cross_entropy(logits.flatten(0, 1), ids.flatten()), parameters)
        for logits in (packed, alone)
    )
    for parameter, together, apart in zip(names, one, other, strict=True):
        assert (together - apart).abs().max() <= 1e-5 * max(1, apart.abs().max()), parameter


def test_no_mask_of_a_long_row_is_made():
    """Check that no tensor has T × T elements, forward or backward."""
    length = 300

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor):
                self.numbers = max(self.numbers, made.numel())
            return made

    model = Decoder(DecoderConfig(**SIZES | {"vocabulary": 8}))
    initialise(model, 0)
    positions = torch.arange(length).remainder(140)[None]
    with Largest() as largest:
        model(positions.remainder(8), positions_BT=positions).logits.sum().backward()
    assert largest.numbers < length**2
