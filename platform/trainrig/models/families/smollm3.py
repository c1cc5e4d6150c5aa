"""SmolLM 3: Llama without rotary positions in every fourth layer.

Source: Hugging Face 2025, https://huggingface.co/blog/smollm3.
"""

from typing import Any

from trainrig.errors import DataError
from trainrig.models.architecture.attention_settings import AttentionSettings
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.families import keys, llama
from trainrig.models.families.mapping import HubConfig


def _read_layers(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    """Return the rotary positions and windows of layers, given the rotary positions of all."""
    layers = before["layers"]
    rotated = _read_rotated(config, layers)
    uses_window = config.get("use_sliding_window", False)
    size = config.take_positive("sliding_window", None) if uses_window else None
    default_kinds = tuple(
        keys.LOCAL if size is not None and not is_rotated else keys.GLOBAL for is_rotated in rotated
    )
    kinds = config.layer_types(layers) or default_kinds
    pattern = tuple("rotated" if is_rotated else "unrotated" for is_rotated in rotated)
    return {
        "position_embedding": before["position_embedding"].model_copy(update={"pattern": pattern}),
        "attention": AttentionSettings(window=keys.build_window(kinds, size, before["positions"])),
    }


def _read_rotated(config: HubConfig, layers: int) -> tuple[bool, ...]:
    """Return whether each layer has rotary positions."""
    given = config.get("no_rope_layers")  # 1 for layers with rotary positions, in spite of the name
    if given is None:
        every = config.get_positive("no_rope_layer_interval", 4)
        return tuple((layer + 1) % every != 0 for layer in range(layers))
    if len(given) < layers:
        raise DataError(
            f"{config.path}: no_rope_layers has {len(given)} entries for {layers} layers; save "
            "the model again"
        )
    return tuple(bool(value) for value in given[:layers])


def _write_layers(config: DecoderConfig) -> dict[str, Any]:
    rope = keys.find_rope(config)
    window = config.attention.window
    return {
        "no_rope_layers": [int(rope.is_rotated(layer)) for layer in range(config.layers)],
        "use_sliding_window": window is not None,
        "sliding_window": None if window is None else window.size,
        "layer_types": keys.list_layer_types(config),
    }


SMOLLM3 = keys.declare_family(
    "smollm3",
    "SmolLM3ForCausalLM",
    llama.TENSORS,
    (
        keys.convert_sizes(positions=32_768, epsilon=1e-6, kv_heads=4, tied=True),
        keys.SILU,
        keys.convert_rope(theta=2_000_000.0),
        keys.Keys(_read_layers, _write_layers),
        keys.convert_bias("attention_bias", "qkv", "output"),
        keys.convert_bias("mlp_bias", "feedforward"),
    ),
)
