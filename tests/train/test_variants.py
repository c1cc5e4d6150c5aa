"""Unusual parts of a decoder in the sharded step, in float32 and in bfloat16.

The bits are the same at any number of ranks.
"""

import pytest

from trainrig.models.architecture.attention_settings import (
    AttentionSettings,
    Biases,
    GatedAttention,
    LatentAttention,
    SlidingWindow,
)
from trainrig.models.architecture.layer_settings import (
    ClampedSwiGLU,
    ExpertGroups,
    LayerNorm,
    LearnedPositions,
    MixtureOfExperts,
    ParallelBlock,
    Rope,
)
from trainrig.parallel.precision import Precision

STEPS = 3
VARIANTS = {
    "experts, capped windows": {
        "feedforward": MixtureOfExperts(
            experts=4, active=2, expert_channels=24, shared_experts=1, balance_bias=True
        ),
        "attention": AttentionSettings(
            sinks=True,
            logit_cap=5.0,
            qk_norm="head",
            window=SlidingWindow(size=7, pattern=("local", "global")),
        ),
    },
    "GPT-2, parallel, gated": {
        "attention": GatedAttention(),
        "norm": LayerNorm(),
        "position_embedding": LearnedPositions(),
        "block": ParallelBlock(),
        "tie_embeddings": False,
    },
    "SmolLM 3 and Command R7B": {
        "attention": AttentionSettings(window=SlidingWindow(size=7, pattern=("local", "global"))),
        "position_embedding": Rope(pattern=("rotated", "unrotated")),
    },
    "DeepSeek V3, experts": {
        "attention": LatentAttention(
            latent_channels=12, query_channels=20, rotated_channels=4, value_channels=6
        ),
        "kv_heads": None,
        "feedforward": MixtureOfExperts(
            experts=4,
            active=2,
            expert_channels=24,
            scores="sigmoid",
            shared_experts=1,
            balance_bias=True,
            groups=ExpertGroups(count=2, active=1),
        ),
    },
    "gpt-oss, shared gate, experts": {
        "attention": AttentionSettings(
            sinks=True, window=SlidingWindow(size=7, pattern=("local", "global"))
        ),
        "feedforward": MixtureOfExperts(
            experts=4,
            active=2,
            expert_channels=24,
            network=ClampedSwiGLU(limit=0.5),
            router_bias=True,
            shared_experts=1,
            shared_gate=True,
            balance_bias=True,
        ),
        "biases": Biases(qkv=True, output=True, feedforward=True),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("compute", [pytest.param("float32", marks=pytest.mark.soak), "bfloat16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_has_the_same_bits_at_any_number_of_ranks(
    name, compute, ranks, make_job, tmp_path
):
    training = {"steps": STEPS, "precision": Precision(compute=compute)}
    job = make_job(tmp_path, model=VARIANTS[name], training=training)
    alone, *_ = ranks(1, "steps", job=job, count=STEPS)
    first, second = ranks(2, "steps", job=job, count=STEPS)
    assert alone == first == second
    assert alone["losses"][-1] < alone["losses"][0]
    terms, _ = alone["parts"][0]
    assert ("expert_balance" in terms) is ("experts" in name)
    if "experts" in name:
        assert terms["balance_bias"] == 0.0  # only its gradient has an effect
        for counts in alone["counts"]:
            assert counts.keys() == {"expert_tokens/0", "expert_tokens/1"}
            active = 2
            rows = 8
            length = 32
            assert {sum(routed) for routed in counts.values()} == {active * rows * length}
