"""Seed-OSS: Llama with biases of queries, keys and values.

Source: ByteDance Seed team 2025, https://github.com/ByteDance-Seed/seed-oss.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import Rope
from trainrig.models.families import llama
from trainrig.models.families.mapping import Family, HubConfig
from trainrig.models.families.rope_tables import read_rope, write_rope


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = llama.read_sizes(config, positions=524_288, epsilon=1e-6, kv_heads=8)
    changed = {
        "head_channels": config.take("head_dim", 128),
    }
    biases = Biases(
        qkv=config.get("attention_bias", True),
        output=config.get("attention_out_bias", False),
        feedforward=config.get("mlp_bias", False),
    )
    return config.build(**sizes | changed, position_embedding=read_rope(config), biases=biases)


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    if not isinstance(rope, Rope) or not llama.is_gated_with_rope(config):
        return None
    return {
        **llama.write_sizes(config),
        "hidden_act": "silu",
        **write_rope(rope),
        "attention_bias": config.biases.qkv,
        "attention_out_bias": config.biases.output,
        "mlp_bias": config.biases.feedforward,
        "residual_dropout": 0.0,
    }


SEED_OSS = Family("seed_oss", "SeedOssForCausalLM", llama.TENSORS, _read, _write)
