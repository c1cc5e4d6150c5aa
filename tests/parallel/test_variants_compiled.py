"""Compilation, recomputation and bfloat16 for decoder parts with custom operators."""

import pytest
import torch

from trainrig.models.architecture.attention_settings import (
    AttentionSettings,
    Biases,
    GatedAttention,
    LatentAttention,
    SlidingWindow,
)
from trainrig.models.architecture.layer_settings import (
    Alibi,
    ClampedSwiGLU,
    ExpertGroups,
    MixtureOfExperts,
)
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.parallel.layer_compilation import Compile, compile_layers
from trainrig.parallel.recompute import Full, Selective, choose_kept, recompute

VARIANTS = {
    "experts": {"feedforward": MixtureOfExperts(experts=4, active=2, balance_bias=True)},
    "capped windows": {
        "attention": AttentionSettings(
            sinks=True, logit_cap=5.0, window=SlidingWindow(size=5, pattern=("local", "global"))
        )
    },
    "latent attention, gpt-oss experts": {
        "kv_heads": 4,
        "attention": LatentAttention(
            latent_channels=12, query_channels=20, rotated_channels=4, value_channels=6
        ),
        "feedforward": MixtureOfExperts(
            experts=4,
            active=2,
            network=ClampedSwiGLU(limit=0.5),
            router_bias=True,
            shared_experts=1,
            shared_gate=True,
            groups=ExpertGroups(count=2, active=1),
        ),
        "biases": Biases(feedforward=True),
    },
    "ALiBi, gated": {"position_embedding": Alibi(), "attention": GatedAttention()},
}
IDS = torch.randint(64, (2, 24), generator=torch.Generator().manual_seed(3))


def compute_gradients(changes, again=None, compiled=None, dtype=torch.float32):
    sizes = {"layers": 2, "channels": 32, "heads": 4, "kv_heads": 2, "vocabulary": 64}
    model = Decoder(DecoderConfig(**sizes | {"positions": 24, "initial_std": 0.2} | changes))
    initialise(model, 0)
    model.to(dtype)
    recompute(model.layers, choose_kept(len(model.layers), again))
    compile_layers(model.layers, compiled)
    positions = torch.cat([torch.arange(14), torch.arange(10)]).expand(2, -1)
    output = model(IDS, positions_BT=positions)
    added = [term for term in output.auxiliary.values() if term.ndim == 0]
    sum(added, output.logits.float().logsumexp(-1).mean()).backward()
    return [parameter.grad.float() for parameter in model.parameters()]


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_recomputation_gives_the_same_bits(changes):
    plain = compute_gradients(changes)
    for again in (Full(), Selective()):
        for one, other in zip(plain, compute_gradients(changes, again), strict=True):
            assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_one_graph_holds_a_whole_layer_and_gives_the_same_gradients(changes):
    torch._dynamo.reset()
    compiled = compute_gradients(changes, compiled=Compile(backend="aot_eager"))
    for one, other in zip(compute_gradients(changes), compiled, strict=True):
        assert (one - other).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["capped windows", "ALiBi, gated"])
def test_bfloat16_is_near_float32(name):
    """Experts are left out: a token near a tie goes to another expert."""
    plain, narrow = (
        compute_gradients(VARIANTS[name], dtype=d) for d in (torch.float32, torch.bfloat16)
    )
    for one, other in zip(plain, narrow, strict=True):
        assert (one - other).norm() <= 0.25 * one.norm() + 1e-3
