"""Phi 1, 1.5 and 2: both parts of a layer in parallel after one layer norm, biases everywhere.

Source: Li et al. 2023, arXiv:2309.05463.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import GELU, LayerNorm, ParallelBlock, Rope
from trainrig.models.families import llama
from trainrig.models.families.mapping import Family, HubConfig, map_one
from trainrig.models.families.rope_tables import read_rope, write_partial_rope
from trainrig.models.families.starcoder2 import NORM_BIASES

TENSORS = (
    *llama.EMBEDDINGS,
    llama.NORMS[0],
    NORM_BIASES[0],
    *llama.list_projections(
        "self_attn",
        {
            "attention.query": "q_proj",
            "attention.key": "k_proj",
            "attention.value": "v_proj",
            "attention.output": "dense",
        },
    ),
    *llama.list_projections("mlp", {"feedforward.up": "fc1", "feedforward.down": "fc2"}),
    *(map_one(f"norm.{part}", f"model.final_layernorm.{part}") for part in ("weight", "bias")),
    *(map_one(f"head.{part}", f"lm_head.{part}") for part in ("weight", "bias")),
)
# Whether each is the tanh approximation.
ACTIVATIONS = {"gelu_new": True, "gelu_pytorch_tanh": True, "gelu": False}


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", *ACTIVATIONS)
    config.check_only("qk_layernorm", False)
    config.check_only("tie_word_embeddings", False)
    sizes = llama.read_sizes(config, positions=2048, epsilon=1e-5)
    return config.build(
        **sizes | {"norm": LayerNorm(epsilon=config.get("layer_norm_eps", 1e-5))},
        position_embedding=read_rope(config.with_defaults(partial_rotary_factor=0.5)),
        feedforward=GELU(tanh=ACTIVATIONS[config.get("hidden_act", "gelu_new")]),
        block=ParallelBlock(),
        biases=Biases(qkv=True, output=True, feedforward=True, head=True),
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    if not isinstance(config.feedforward, GELU) or not isinstance(rope, Rope):
        return None
    return {
        **llama.write_layer_norm_sizes(config, "layer_norm_eps"),
        "hidden_act": "gelu_new" if config.feedforward.tanh else "gelu",
        **write_partial_rope(rope),
        "qk_layernorm": False,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }


# A head of another kind has no bias, by which trainrig would not know the family again.
PHI = Family("phi", "PhiForCausalLM", TENSORS, _read, _write, heads={})
