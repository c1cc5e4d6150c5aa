"""The encoder: visible tokens compared with brute force, sizes, operations, refused settings."""

import math

import pytest
import torch

from trainrig import config as run_files
from trainrig.errors import ConfigError
from trainrig.estimate.step_memory import estimate_step_memory
from trainrig.flops import count_token_flops
from trainrig.models import find_model_class
from trainrig.models.architecture.decoder_config import (
    DecoderConfig,
    count_parameters,
    parameter_shapes,
)
from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.attention import KeyValueCache
from trainrig.models.decoder import initialise
from trainrig.models.encoder import BidirectionalEncoder, build_model
from trainrig.models.kernels.attention_blocks import QUERIES
from trainrig.models.kernels.blocked_attention import blocked_attention
from trainrig.optim import AdamW
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import Training

SIZES = {
    "layers": 3, "channels": 32, "heads": 4, "kv_heads": 2, "vocabulary": 61, "positions": 40,
    "initial_std": 0.3,
}  # fmt: skip
LOCAL = {"attention": {"window": {"size": 5, "pattern": ("global", "local", "local")}}}
BERT = {
    "segments": 2,
    "position_embedding": {"kind": "LearnedPositions"},
    "positions_offset": 2,
    "norm": {"kind": "LayerNorm"},
    "block": {"kind": "PostNorm"},
    "feedforward": {"kind": "GELU"},
    "transform": {"bias": True},
    "biases": {"qkv": True, "output": True, "feedforward": True, "head": True},
}


def make_config(**keys) -> EncoderConfig:
    return run_files.build(EncoderConfig, SIZES | keys, "run.toml")


def make_encoder(**keys) -> BidirectionalEncoder:
    model = build_model(make_config(**keys))
    initialise(model, 0)
    return model.eval()


def find_reach(
    model: BidirectionalEncoder, ids: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Return [T, T]: whether logits at a position depend on the token at another."""
    embedded = model.embedding(ids).detach().requires_grad_()
    model.embedding.forward = lambda _: embedded  # gives access to the gradient of each position
    logits = model(ids, positions_BT=positions).logits[0]
    rows = [
        torch.autograd.grad(logit.square().sum(), embedded, retain_graph=True)[0][0].abs().sum(-1)
        for logit in logits
    ]
    return torch.stack(rows) > 0


PACKED = torch.cat([torch.arange(9), torch.arange(4), torch.arange(7)])[None]
IDS = torch.randint(61, (1, 20), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("changes", [{}, BERT], ids=["modern", "bert"])
def test_each_token_sees_all_of_its_document_and_nothing_else(changes):
    documents = (PACKED == 0).cumsum(1)[0]
    expected = documents[:, None] == documents[None, :]
    assert torch.equal(find_reach(make_encoder(**changes), IDS, PACKED), expected)


def test_local_layers_see_as_far_on_either_side():
    """Two layers that see 2 tokens on either side reach 4 tokens."""
    local = {"attention": {"window": {"size": 5}}, "layers": 2}
    documents = (PACKED == 0).cumsum(1)[0]
    together = documents[:, None] == documents[None, :]
    distance = (torch.arange(20)[:, None] - torch.arange(20)).abs()
    assert torch.equal(find_reach(make_encoder(**local), IDS, PACKED), together & (distance <= 4))


@pytest.mark.parametrize("window", [None, 1, 7, 401])
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_equal_the_whole_mask_forward_and_backward(window, packed):
    """Use rows longer than two blocks of queries, so that a block has keys on both sides."""
    length = 2 * QUERIES + 37
    draw = torch.Generator().manual_seed(5)
    query, key, value = (
        torch.randn(2, heads, length, 8, dtype=torch.float64, generator=draw).requires_grad_()
        for heads in (4, 2, 2)
    )
    documents = None
    if packed:
        documents = (torch.rand(2, length, generator=draw) < 0.02).cumsum(1)
    distance = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    sees = torch.ones(2, 1, length, length, dtype=torch.bool)
    if window is not None:
        sees = sees & (distance <= (window - 1) // 2)
    if documents is not None:
        sees = sees & (documents[:, None, :, None] == documents[:, None, None, :])
    found = blocked_attention(
        query, key, value, scale=0.4, window=window, documents_BS=documents, causal=False
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=sees, scale=0.4, enable_gqa=True
    )
    assert torch.allclose(found, expected, atol=1e-5)
    gradients = torch.randn(expected.shape, dtype=torch.float64, generator=draw)
    ours = torch.autograd.grad(found, (query, key, value), gradients)
    theirs = torch.autograd.grad(expected, (query, key, value), gradients)
    for mine, wanted in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, wanted, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, LOCAL, BERT, {"tie_embeddings": False}])
def test_counted_sizes_equal_the_built_model(changes):
    config = make_config(**changes)
    model = build_model(config)
    built = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert built == parameter_shapes(config)
    count = count_parameters(config)
    assert count.total == sum(parameter.numel() for parameter in model.parameters())
    assert estimate_step_memory(config, Training(steps=1, optimizer=AdamW()), 1, 8, 8, 16).total > 0


def test_operations_equal_products_counted_one_by_one():
    config = make_config(**LOCAL)
    length = 17
    keys = [length, None, None]
    keys[1] = keys[2] = (
        sum(min(place + 2, length - 1) - max(place - 2, 0) + 1 for place in range(length)) / length
    )
    flops = count_token_flops(config, length, predicted=0.15)
    assert flops.attention == pytest.approx(4 * 4 * 8 * sum(keys))
    assert flops.head == pytest.approx(0.15 * 2 * 32 * 61)
    assert flops.projections == pytest.approx(2 * (3 * (32 * 32 * 3 + 3 * 32 * 128) + 32 * 32))
    whole = count_token_flops(make_config(), length)
    assert whole.attention == pytest.approx(4 * 4 * 8 * 3 * length)


def test_transformed_states_equal_the_hidden_output():
    model = make_encoder()
    with torch.no_grad():
        states = model.compute_states(IDS, PACKED)
        output = model(IDS, positions_BT=PACKED)
        assert torch.equal(model.transform(states), output.hidden)


def test_fresh_biases_are_zero_and_gains_are_one():
    model = make_encoder(**BERT)
    assert not model.head_bias.any() and not model.transform.dense.bias.any()
    assert (model.embedding_norm.weight == 1).all() and (model.transform.norm.weight == 1).all()


def test_an_encoder_has_no_use_for_caches():
    with pytest.raises(ValueError, match="whole rows"):
        make_encoder()(IDS, [KeyValueCache() for _ in range(3)])


def test_replaced_token_detection_rejects_arguments_that_it_ignores():
    model = make_encoder(head="replaced", biases={}, generator={"channels": 16, "heads": 2})
    with pytest.raises(ValueError, match="whole rows"):
        model(IDS, [KeyValueCache() for _ in range(3)], replace=lambda _: IDS)
    for ignored in ({"places_N": torch.tensor([0])}, {"segments_BT": torch.zeros_like(IDS)}):
        with pytest.raises(ValueError, match="neither places nor segments"):
            model(IDS, replace=lambda _: IDS, **ignored)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": {"window": {"size": 4}}}, r"size \(4\) must be odd .*; use 5"),
        ({"attention": {"window": {"size": 81}}}, "hides nothing"),
        ({"positions_offset": 2}, r"positions_offset.*position_embedding is Rope"),
        ({"head": "score", "biases": {}}, "a reward model must be a decoder"),
        ({"segment": 2}, r"no key 'segment'.*EncoderConfig.*'segments'"),
    ],
)
def test_settings_that_would_do_nothing_or_harm_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_config(**changes)


RUN = """
stage = "pretrain"
tokens = "tokens"
output = "run"
batches = { sequence_length = 16, global_batch = 8, micro_batch = 4 }
training = { steps = 2 }
[model]
layers = 2
channels = 32
heads = 4
"""


def test_a_run_file_chooses_an_encoder_by_its_kind_and_a_decoder_by_none(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    assert type(run_files.load(Pretraining, str(path)).model) is DecoderConfig
    masked = RUN.replace("[model]", 'objective = { kind = "MaskedLM" }\n[model]')
    path.write_text(masked + 'kind = "Encoder"\nsegments = 2\n')
    model = run_files.load(Pretraining, str(path)).model
    assert isinstance(model, EncoderConfig) and model.segments == 2
    assert find_model_class(model.model_dump(mode="json")) is EncoderConfig
    path.write_text(masked + 'kind = "Encoder"\nsegmens = 2\n')
    with pytest.raises(ConfigError, match="did you mean 'segments'"):
        run_files.load(Pretraining, str(path))
    path.write_text(RUN + "segments = 2\n")
    with pytest.raises(ConfigError, match="no key 'segments' in DecoderConfig"):
        run_files.load(Pretraining, str(path))


def test_logits_do_not_depend_on_padding():
    """Fill up rows to one length, with the padding as a separate document."""
    model = make_encoder(**LOCAL)
    documents = torch.tensor([[1] * 13 + [0] * 7])
    positions = torch.arange(20)[None]
    with torch.no_grad():
        alone = model(IDS[:, :13]).logits
        filled = model(IDS, positions_BT=positions, documents_BS=documents).logits[:, :13]
    assert (alone - filled).abs().max() < 1e-4 and math.isfinite(float(filled.sum()))
