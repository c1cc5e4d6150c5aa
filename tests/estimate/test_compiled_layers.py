"""Memory that compiled layers keep for the backward pass.

The estimate is compared with what torch's graph partitioner keeps: the partitioner of `inductor`,
with each operator run eagerly.
"""

import pytest
import torch

from trainrig.estimate.activation_bytes import estimate_per_token
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.parallel.layer_compilation import Compile
from trainrig.train.run_file.training_settings import Training

ROWS = 2
LENGTH = 128
SIZES = {"layers": 1, "channels": 64, "heads": 4, "vocabulary": 64, "positions": LENGTH}
KINDS = {
    "plain": {},
    "two key heads": {"kv_heads": 2},
    "GELU, LayerNorm": {"feedforward": {"kind": "GELU"}, "norm": {"kind": "LayerNorm"}},
    "normed heads": {"attention": {"qk_norm": "head"}},
    "parallel": {"block": {"kind": "ParallelBlock"}},
    "norms after": {"block": {"kind": "PostNorm"}},
}


def count_kept(config: DecoderConfig, dtype: torch.dtype) -> float:
    """Return the bytes per token that one compiled decoder layer keeps."""
    torch._dynamo.reset()
    model = Decoder(config)
    initialise(model, 0)
    model.to(dtype)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    layer = torch.compile(
        model.layers[0].forward, backend="aot_eager_decomp_partition", fullgraph=True
    )
    sight = model.sights(torch.arange(LENGTH), None, dtype=dtype)[False]
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        # skips the rotary angles, which all layers share
        if storage.data_ptr() not in weights and len(tensor) != LENGTH:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x_BTC = torch.randn(ROWS, LENGTH, config.channels, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x_BTC, sight)
    return sum(kept.values()) / (ROWS * LENGTH)


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_layer_keeps_the_estimated_bytes(kind: str, compute: str) -> None:
    config = DecoderConfig.model_validate(SIZES | KINDS[kind])
    training = Training.model_validate({"steps": 1, "precision": {"compute": compute}})
    compiled = training.model_copy(update={"compile": Compile()})
    estimated, _ = estimate_per_token(config, compiled)
    kept = count_kept(config, torch.bfloat16 if compute == "bfloat16" else torch.float32)
    assert estimated == pytest.approx(kept, rel=0.01)
    assert estimated < estimate_per_token(config, training)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"feedforward": {"kind": "MixtureOfExperts", "experts": 4, "active": 2}},
        {"attention": {"kind": "GatedAttention"}},
        {"block": {"kind": "SandwichNorm"}},
    ],
    ids=["mixture", "gate", "norms on both sides"],
)
def test_other_layers_are_estimated_at_least_as_high_as_plain_ones(changes) -> None:
    config = DecoderConfig.model_validate(SIZES | changes)
    plain = Training(steps=1)
    compiled = plain.model_copy(update={"compile": Compile()})
    assert estimate_per_token(config, compiled) == estimate_per_token(config, plain)
