"""EXAONE 4: norms after each part and of each head; windows in three of four layers.

With windows, the other layers have no rotary positions (arXiv:2507.11407).
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import OutputNorm
from trainrig.models.families import keys
from trainrig.models.families.mapping import HubConfig
from trainrig.models.families.qwen_olmo import OLMO2_TENSORS


def _read_windows(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    layers = before["layers"]
    size = config.take_positive("sliding_window", 4096)
    kinds = config.layer_types(layers) or _list_default_kinds(config, layers, size)
    rope = before["position_embedding"]
    if size is not None:
        pattern = tuple("rotated" if kind == keys.LOCAL else "unrotated" for kind in kinds)
        if keys.LOCAL not in kinds:
            # Such a model has no positions, which this family's keys could not express.
            config.check_only("layer_types", None)
        rope = rope.model_copy(update={"pattern": pattern})
    window = keys.build_window(kinds, size, before["positions"])
    return {
        "position_embedding": rope,
        "attention": AttentionSettings(qk_norm="head", window=window),
    }


def _list_default_kinds(config: HubConfig, layers: int, size: int | None) -> tuple[str, ...]:
    """Return the kinds of layers of a config.json without `layer_types`."""
    if size is None:
        return (keys.GLOBAL,) * layers
    return keys.repeat_kinds(layers, config.get_positive("sliding_window_pattern", 4))


def _write_windows(config: DecoderConfig) -> dict[str, Any]:
    window = config.attention.window
    return {
        "sliding_window": None if window is None else window.size,
        "sliding_window_pattern": None,
        "layer_types": keys.list_layer_types(config),
    }


EXAONE4 = keys.declare_family(
    "exaone4",
    "Exaone4ForCausalLM",
    OLMO2_TENSORS,
    (
        keys.convert_sizes(positions=2048, epsilon=1e-5, kv_heads=32),
        keys.SILU,
        keys.convert_rope(),
        keys.Keys(_read_windows, _write_windows),
        keys.assume(block=OutputNorm()),
    ),
)
