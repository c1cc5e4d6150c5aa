"""EXAONE 4: norms after each part and of each head; windows in three of four layers.

With windows, the other layers have no rotary positions (arXiv:2507.11407).
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import OutputNorm, Rope
from trainrig.models.families import llama
from trainrig.models.families.mapping import Family, HubConfig
from trainrig.models.families.qwen_olmo import OLMO2_TENSORS
from trainrig.models.families.rope_tables import read_rope, write_rope
from trainrig.models.families.window_layers import GLOBAL, LOCAL, build_window, list_layer_types


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = llama.read_sizes(config, positions=2048, epsilon=1e-5, kv_heads=32)
    size = config.take_positive("sliding_window", 4096)
    kinds = config.layer_types(sizes["layers"]) or _list_default_kinds(
        config, sizes["layers"], size
    )
    rope = read_rope(config)
    if size is not None:
        pattern = tuple("rotated" if kind == LOCAL else "unrotated" for kind in kinds)
        if LOCAL not in kinds:
            # Such a model has no positions, which this family's `write` could not express.
            config.check_only("layer_types", None)
        rope = rope.model_copy(update={"pattern": pattern})
    return config.build(
        **sizes,
        position_embedding=rope,
        attention=AttentionSettings(
            qk_norm="head", window=build_window(kinds, size, sizes["positions"])
        ),
        block=OutputNorm(),
    )


def _list_default_kinds(config: HubConfig, layers: int, size: int | None) -> tuple[str, ...]:
    """Return the kinds of layers of a config.json without `layer_types`."""
    if size is None:
        return (GLOBAL,) * layers
    every = config.get_positive("sliding_window_pattern", 4)
    return tuple(GLOBAL if (layer + 1) % every == 0 else LOCAL for layer in range(layers))


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
        "sliding_window_pattern": None,
        "layer_types": list_layer_types(config),
    }


EXAONE4 = Family("exaone4", "Exaone4ForCausalLM", OLMO2_TENSORS, _read, _write)
