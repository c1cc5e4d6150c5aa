"""Qwen 3, dense: a norm of each head's queries and keys, no biases (arXiv:2505.09388)."""

from typing import Any

from trainrig.models.architecture.attention import AttentionSettings, Biases
from trainrig.models.architecture.feedforward import SwiGLU
from trainrig.models.architecture.positions import Rope
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.families.llama import TENSORS as LLAMA_TENSORS
from trainrig.models.families.llama import read_sizes, write_sizes
from trainrig.models.families.mapping import Family, HubConfig, map_one, read_rope, write_rope
from trainrig.models.families.qwen2 import read_window_of_upper_layers, write_layer_types

QK_NORMS = tuple(
    map_one(
        f"layers.{{layer}}.attention.{ours}.weight",
        f"model.layers.{{layer}}.self_attn.{theirs}.weight",
    )
    for ours, theirs in {"query_norm": "q_norm", "key_norm": "k_norm"}.items()
)
TENSORS = (*LLAMA_TENSORS, *QK_NORMS)


def read_settings(config: HubConfig) -> dict[str, Any]:
    """Return all settings except the feed-forward network, from a config.json."""
    config.check_only("hidden_act", "silu")
    sizes = read_sizes(config, positions=32768, epsilon=1e-6)
    biased = config.get("attention_bias", False)
    sizes["head_channels"] = config.get("head_dim", 128)
    return {
        **sizes,
        "position_embedding": read_rope(config),
        "attention": AttentionSettings(
            window=read_window_of_upper_layers(config, sizes), qk_norm="head"
        ),
        "biases": Biases(qkv=biased, output=biased),
    }


def write_settings(config: DecoderConfig) -> dict[str, Any] | None:
    """Return the config.json keys of Qwen 3's settings, or None without rotary positions."""
    if not isinstance(config.position_embedding, Rope):
        return None
    return {
        **write_sizes(config),
        "hidden_act": "silu",
        **write_rope(config.position_embedding),
        **write_layer_types(config),
        "attention_bias": config.biases.qkv,
    }


def _read(config: HubConfig) -> DecoderConfig:
    return config.build(**read_settings(config))


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    return write_settings(config) if isinstance(config.feedforward, SwiGLU) else None


QWEN3 = Family("qwen3", "Qwen3ForCausalLM", TENSORS, _read, _write)
