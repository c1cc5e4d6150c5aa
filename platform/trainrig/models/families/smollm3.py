"""SmolLM 3: Llama without rotary positions in every fourth layer.

Source: Hugging Face 2025, https://huggingface.co/blog/smollm3.
"""

from typing import Any

from trainrig.errors import DataError
from trainrig.models.architecture.attention_settings import AttentionSettings, Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import Rope
from trainrig.models.families import llama
from trainrig.models.families.mapping import Family, HubConfig
from trainrig.models.families.rope_tables import read_rope, write_rope
from trainrig.models.families.window_layers import GLOBAL, LOCAL, build_window, list_layer_types

THETA = 2_000_000.0


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = llama.read_sizes(config, positions=32_768, epsilon=1e-6, kv_heads=4)
    layers = sizes["layers"]
    rotated = _read_rotated(config, layers)
    uses_window = config.get("use_sliding_window", False)
    size = config.take_positive("sliding_window", None) if uses_window else None
    default_kinds = tuple(
        LOCAL if size is not None and not is_rotated else GLOBAL for is_rotated in rotated
    )
    kinds = config.layer_types(layers) or default_kinds
    rope = read_rope(config, theta=THETA)
    pattern = tuple("rotated" if is_rotated else "unrotated" for is_rotated in rotated)
    attention = config.get("attention_bias", False)
    changed = {
        "tie_embeddings": config.get("tie_word_embeddings", True),
    }
    return config.build(
        **sizes | changed,
        position_embedding=rope.model_copy(update={"pattern": pattern}),
        attention=AttentionSettings(window=build_window(kinds, size, sizes["positions"])),
        biases=Biases(qkv=attention, output=attention, feedforward=config.get("mlp_bias", False)),
    )


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


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    if not isinstance(rope, Rope) or not llama.is_gated_with_rope(config):
        return None
    window = config.attention.window
    return {
        **llama.write_sizes(config),
        "hidden_act": "silu",
        **write_rope(rope),
        "no_rope_layers": [int(rope.is_rotated(layer)) for layer in range(config.layers)],
        "use_sliding_window": window is not None,
        "sliding_window": None if window is None else window.size,
        "layer_types": list_layer_types(config),
        "attention_bias": config.biases.qkv,
        "mlp_bias": config.biases.feedforward,
    }


SMOLLM3 = Family("smollm3", "SmolLM3ForCausalLM", llama.TENSORS, _read, _write)
