"""Ministral 8B: Mistral with a window in some layers, named one by one."""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import Rope
from trainrig.models.families import llama
from trainrig.models.families.mapping import Family, HubConfig
from trainrig.models.families.rope_tables import read_rope, write_rope
from trainrig.models.families.window_layers import GLOBAL, LOCAL, build_window, list_layer_types


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = llama.read_sizes(config, positions=4096 * 32, epsilon=1e-6, kv_heads=8)
    size = config.take_positive("sliding_window", 4096)
    default_kinds = (GLOBAL if size is None else LOCAL,) * sizes["layers"]
    kinds = config.layer_types(sizes["layers"]) or default_kinds
    return config.build(
        **sizes,
        position_embedding=read_rope(config),
        attention=AttentionSettings(window=build_window(kinds, size, sizes["positions"])),
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    if not isinstance(rope, Rope) or not llama.is_gated_with_rope(config):
        return None
    window = config.attention.window
    return {
        **llama.write_sizes(config),
        "hidden_act": "silu",
        **write_rope(rope),
        "sliding_window": None if window is None else window.size,
        "layer_types": list_layer_types(config),
    }


MINISTRAL = Family("ministral", "MinistralForCausalLM", llama.TENSORS, _read, _write)
