"""Properties that hold for every choice of a decoder's settings."""

import pytest
import torch

from trainrig.config import build as build_settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.attention_settings import (
    AttentionSettings,
    Biases,
    GatedAttention,
    LatentAttention,
    SlidingWindow,
)
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.architecture.layer_settings import (
    GEGLU,
    GELU,
    Alibi,
    ClampedSwiGLU,
    ExpertGroups,
    LayerNorm,
    LearnedPositions,
    Llama3Scaling,
    MixtureOfExperts,
    NoPositions,
    OutputNorm,
    ParallelBlock,
    PostNorm,
    ReLU,
    RMSNorm,
    Rope,
    SandwichNorm,
    YaRN,
)
from trainrig.models.architecture.shapes import list_named_sizes
from trainrig.models.attention import KeyValueCache

VARIANTS = {
    "post-norm": {"block": PostNorm()},
    "sandwich": {"block": SandwichNorm(), "norm": RMSNorm(unit_offset=True)},
    "output norm": {"block": OutputNorm(), "attention": AttentionSettings(qk_norm="projection")},
    "parallel": {"block": ParallelBlock(), "norm": LayerNorm()},
    "parallel, two norms": {"block": ParallelBlock(shared_norm=False)},
    "GPT-2": {
        "norm": LayerNorm(),
        "position_embedding": LearnedPositions(),
        "feedforward": GELU(),
        "biases": Biases(qkv=True, output=True, feedforward=True),
    },
    "ReLU, head with a bias": {
        "feedforward": ReLU(),
        "biases": Biases(head=True),
        "tie_embeddings": False,
    },
    "ALiBi": {"position_embedding": Alibi()},
    "gated attention": {"attention": GatedAttention(sinks=True, qk_norm="head")},
    "no positions": {"position_embedding": NoPositions(), "feedforward": GEGLU()},
    "partial rotation": {"position_embedding": Rope(rotated_share=0.6), "head_channels": 10},
    "a layer without rotation": {"position_embedding": Rope(pattern=("rotated", "unrotated"))},
    "YaRN": {"position_embedding": Rope(scaling=YaRN(factor=4, original_positions=8))},
    "Llama 3": {"position_embedding": Rope(scaling=Llama3Scaling(original_positions=8))},
    "heads that do not divide": {"heads": 3, "kv_heads": 1, "head_channels": 14},
    "sinks and caps": {
        "attention": AttentionSettings(sinks=True, logit_cap=5.0, qk_norm="head"),
        "logit_cap": 10.0,
        "embedding_multiplier": 5.7,
        "residual_multiplier": 0.5,
        "logit_multiplier": 0.3,
    },
    "experts": {
        "feedforward": MixtureOfExperts(
            experts=4, active=2, expert_channels=20, shared_experts=1, balance_bias=True
        )
    },
    "gpt-oss": {
        "attention": AttentionSettings(
            sinks=True, window=SlidingWindow(size=5, pattern=("local", "global"))
        ),
        "feedforward": MixtureOfExperts(
            experts=4, active=2, network=ClampedSwiGLU(limit=0.5), router_bias=True
        ),
        "biases": Biases(qkv=True, output=True, feedforward=True),
    },
    "clamped, without experts": {"feedforward": ClampedSwiGLU(limit=0.5)},
    "Qwen 2 with experts": {
        "feedforward": MixtureOfExperts(experts=4, active=2, shared_experts=2, shared_gate=True)
    },
    "latent attention": {
        "kv_heads": None,
        "attention": LatentAttention(latent_channels=12, rotated_channels=4, value_channels=6),
    },
    "DeepSeek V3": {
        "kv_heads": None,
        "attention": LatentAttention(
            latent_channels=12, query_channels=20, rotated_channels=4, value_channels=8
        ),
        "feedforward": MixtureOfExperts(
            experts=6,
            active=3,
            scores="sigmoid",
            shared_experts=1,
            balance_bias=True,
            groups=ExpertGroups(count=3, active=2),
            dense_layers=1,
        ),
    },
    "latent attention, windows, caps, no rotation": {
        "kv_heads": None,
        "attention": LatentAttention(
            latent_channels=12,
            rotated_channels=4,
            value_channels=6,
            sinks=True,
            logit_cap=5.0,
            window=SlidingWindow(size=5, pattern=("local", "global"), rope=Rope(theta=100.0)),
        ),
        "position_embedding": Rope(pattern=("rotated", "unrotated")),
    },
    "windows": {
        "attention": AttentionSettings(
            window=SlidingWindow(size=5, pattern=("local", "global"), rope=Rope(theta=100.0))
        )
    },
}
IDS = torch.randint(61, (2, 24), generator=torch.Generator().manual_seed(3))
LENGTHS = (7, 9, 8)


@pytest.fixture(params=VARIANTS, scope="module")
def name(request):
    return request.param


def test_parameters_caches_documents_and_gradients(build, name):
    model = build(**VARIANTS[name])
    named = {
        parameter_name: tuple(value.shape) for parameter_name, value in model.named_parameters()
    }
    assert dict(list_named_sizes(model.config.shapes)) == named
    assert count_parameters(model.config).total == sum(p.numel() for p in model.parameters())

    whole = model(IDS).logits
    caches = [KeyValueCache() for _ in model.layers]
    pieces = [model(piece, caches).logits for piece in IDS.split([10, 1, 13], dim=1)]
    assert (torch.cat(pieces, dim=1) - whole).abs().max() <= 1e-5 * max(1, whole.abs().max())

    positions = torch.cat([torch.arange(length) for length in LENGTHS]).expand(2, -1)
    packed = model(IDS, positions_BT=positions).logits
    alone = torch.cat([model(ids).logits for ids in IDS.split(LENGTHS, dim=1)], dim=1)
    assert (packed - alone).abs().max() <= 1e-5 * max(1, whole.abs().max())

    output = model(IDS, positions_BT=positions)
    added = [term for term in output.auxiliary.values() if term.ndim == 0]
    sum(added, output.logits.logsumexp(-1).sum()).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name


def test_padding_before_a_prompt_changes_nothing_that_follows(build, name):
    model = build(**VARIANTS[name])
    pads = 3
    prompt = IDS[:, :12]
    ids = torch.cat([torch.zeros(2, pads, dtype=torch.long), prompt], dim=1)
    positions = torch.cat([torch.zeros(pads, dtype=torch.long), torch.arange(12)]).expand(2, -1)
    documents = torch.tensor([0] * pads + [1] * 12).expand(2, -1)
    caches = [KeyValueCache() for _ in model.layers]
    found = []
    for begin, end in ((0, 9), (9, 10), (10, 15)):
        here = slice(begin, end)
        found.append(model(ids[:, here], caches, positions[:, here], documents[:, :end]).logits)
    whole = model(prompt).logits
    after = torch.cat(found, dim=1)[:, pads:]
    assert (after - whole).abs().max() <= 1e-5 * max(1, whole.abs().max())


LATENT = {
    "kind": "LatentAttention", "latent_channels": 12, "rotated_channels": 4, "value_channels": 6,
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": {"window": {"size": 25}}}, "window.size (25) exceeds positions (24)"),
        ({"attention": {"window": {"size": 4, "pattern": []}}}, "pattern"),
        (
            {"attention": {"window": {"size": 4, "pattern": ["local"] * 3}}},
            "has 3 entries, but the model has 2 layers",
        ),
        (
            {"position_embedding": {"kind": "Rope", "pattern": ["rotated"] * 3}},
            "position_embedding.pattern has 3 entries, but the model has 2 layers",
        ),
        (
            {"position_embedding": {"kind": "Rope", "pattern": ["unrotated"]}},
            "choose NoPositions",
        ),
        (
            {"attention": {"window": {"size": 4, "rope": {"pattern": ["rotated", "unrotated"]}}}},
            "attention.window.rope.pattern does nothing",
        ),
        (
            {
                "position_embedding": {"kind": "Alibi"},
                "attention": {"window": {"size": 4, "rope": {}}},
            },
            "the position_embedding is Alibi",
        ),
        ({"biases": {"head": True}}, "set tie_embeddings = false"),
        ({"initialisation": {"kind": "SmallInit"}, "initial_std": 0.3}, "leave one of the two out"),
        ({"position_embedding": {"kind": "Rope", "rotated_share": 0.4}}, "rotated channels of 8"),
        ({"position_embedding": {"kind": "Ropes"}}, "did you mean 'Rope'"),
        ({"attention": LATENT, "kv_heads": 2}, "leave kv_heads out"),
        ({"attention": LATENT | {"qk_norm": "head"}}, "does not exist in latent attention"),
        ({"attention": LATENT | {"rotated_channels": 8}}, "below the 8 channels of a head"),
        ({"attention": LATENT | {"rotated_channels": 3}}, "set attention.rotated_channels to an"),
        ({"attention": LATENT | {"value_channels": 9}}, "at most the 8 channels of a head"),
    ],
)
def test_invalid_settings_are_refused_with_a_suggestion(settings, message):
    sizes = {"layers": 2, "channels": 32, "heads": 4, "vocabulary": 61, "positions": 24}
    with pytest.raises(ConfigError) as caught:
        build_settings(DecoderConfig, sizes | settings, "run.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
