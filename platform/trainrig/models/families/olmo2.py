"""OLMo 2: norms after each part, and of all queries and all keys together (arXiv:2501.00656)."""

from typing import Any

from trainrig.models.architecture.attention import AttentionSettings, Biases
from trainrig.models.architecture.feedforward import SwiGLU
from trainrig.models.architecture.norms import OutputNorm
from trainrig.models.architecture.positions import Rope
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.families.llama import (
    ATTENTION,
    EMBEDDINGS,
    GATED,
    HEAD,
    read_sizes,
    write_sizes,
)
from trainrig.models.families.mapping import Family, HubConfig, map_one, read_rope, write_rope
from trainrig.models.families.qwen3 import QK_NORMS

NORMS = tuple(
    map_one(f"layers.{{layer}}.{ours}.weight", f"model.layers.{{layer}}.{theirs}.weight")
    for ours, theirs in {
        "attention_output_norm": "post_attention_layernorm",
        "feedforward_output_norm": "post_feedforward_layernorm",
    }.items()
)
TENSORS = (*EMBEDDINGS, *ATTENTION, *QK_NORMS, *GATED, *NORMS, *HEAD)


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    biased = config.get("attention_bias", False)
    return config.build(
        **read_sizes(config, positions=2048, epsilon=1e-5),
        position_embedding=read_rope(config),
        attention=AttentionSettings(qk_norm="projection"),
        block=OutputNorm(),
        biases=Biases(qkv=biased, output=biased),
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    if not isinstance(config.position_embedding, Rope) or not isinstance(
        config.feedforward, SwiGLU
    ):
        return None
    return {
        **write_sizes(config),
        "hidden_act": "silu",
        **write_rope(config.position_embedding),
        "attention_bias": config.biases.qkv,
    }


OLMO2 = Family("olmo2", "Olmo2ForCausalLM", TENSORS, _read, _write)
