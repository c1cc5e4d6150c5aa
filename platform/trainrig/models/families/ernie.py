"""ERNIE 4.5 (dense): Llama that rotates neighbouring channels together.

Source: Baidu 2025, https://ernie.baidu.com/blog/publication/ERNIE_Technical_Report.pdf.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import Rope
from trainrig.models.families import llama
from trainrig.models.families.glm import PAIRED_ATTENTION
from trainrig.models.families.mapping import Family, HubConfig
from trainrig.models.families.rope_tables import read_rope, write_rope

TENSORS = (*llama.EMBEDDINGS, *llama.NORMS, *PAIRED_ATTENTION, *llama.GATED, *llama.HEAD)
THETA = 500_000.0


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = llama.read_sizes(config, positions=131_072, epsilon=1e-5, kv_heads=2)
    biased = config.get("use_bias", False)
    changed = {
        "head_channels": config.take("head_dim", 128),
        "tie_embeddings": config.get("tie_word_embeddings", True),
    }
    return config.build(
        **sizes | changed,
        position_embedding=read_rope(config, theta=THETA),
        biases=Biases(qkv=biased, output=biased, feedforward=biased),
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    if not isinstance(rope, Rope) or not llama.is_gated_with_rope(config):
        return None
    return {
        **llama.write_sizes(config),
        "hidden_act": "silu",
        **write_rope(rope),
        "use_bias": config.biases.qkv,
    }


# Transformers has no classifier of this family.
ERNIE4_5 = Family("ernie4_5", "Ernie4_5ForCausalLM", TENSORS, _read, _write, heads={})
