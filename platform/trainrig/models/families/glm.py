"""GLM 4: neighbouring channels of half of each head rotated together (arXiv:2406.12793).

GLM-4-0414 (`glm4`) also has a norm after each part.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import Block, PreNorm, Rope, SandwichNorm
from trainrig.models.families import llama
from trainrig.models.families.mapping import Family, HubConfig, TensorName, map_one
from trainrig.models.families.phi3 import JOINED_GATE
from trainrig.models.families.rope_tables import read_rope, write_partial_rope
from trainrig.models.families.row_orders import order_key_pairs, order_query_pairs

PAIRED_ATTENTION = (
    *(
        TensorName(
            (f"layers.{{layer}}.attention.{ours}.{part}",),
            f"model.layers.{{layer}}.self_attn.{theirs}.{part}",
            arrange=arrange,
        )
        for ours, theirs, arrange in (
            ("query", "q_proj", order_query_pairs),
            ("key", "k_proj", order_key_pairs),
        )
        for part in ("weight", "bias")
    ),
    *llama.list_projections(
        "self_attn", {"attention.value": "v_proj", "attention.output": "o_proj"}
    ),
)
TENSORS = (*llama.EMBEDDINGS, *llama.NORMS, *PAIRED_ATTENTION, *JOINED_GATE, *llama.HEAD)


def _read_as(block: Block, config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = llama.read_sizes(config, positions=131_072, epsilon=1.5625e-7, kv_heads=2)
    changed = {
        "head_channels": config.take("head_dim", 128),
    }
    return config.build(
        **sizes | changed,
        position_embedding=read_rope(config.with_defaults(partial_rotary_factor=0.5)),
        biases=Biases(qkv=config.get("attention_bias", True)),
        block=block,
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    if not isinstance(rope, Rope) or not llama.is_gated_with_rope(config):
        return None
    return {
        **llama.write_sizes(config),
        "hidden_act": "silu",
        **write_partial_rope(rope),
        "attention_bias": config.biases.qkv,
    }


def _read_glm(config: HubConfig) -> DecoderConfig:
    return _read_as(PreNorm(), config)


def _read_glm4(config: HubConfig) -> DecoderConfig:
    return _read_as(SandwichNorm(), config)


GLM = Family("glm", "GlmForCausalLM", TENSORS, _read_glm, _write)

GLM4_NORMS = tuple(
    map_one(f"layers.{{layer}}.{ours}.weight", f"model.layers.{{layer}}.{theirs}.weight")
    for ours, theirs in {
        "attention_norm": "input_layernorm",
        "attention_output_norm": "post_self_attn_layernorm",
        "feedforward_norm": "post_attention_layernorm",
        "feedforward_output_norm": "post_mlp_layernorm",
    }.items()
)
GLM4_TENSORS = (*llama.EMBEDDINGS, *GLM4_NORMS, *PAIRED_ATTENTION, *JOINED_GATE, *llama.HEAD)
GLM4 = Family("glm4", "Glm4ForCausalLM", GLM4_TENSORS, _read_glm4, _write)
