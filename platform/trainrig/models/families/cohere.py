"""Command R and R7B: both parts of a layer in parallel after one layer norm without a bias.

Neighbouring channels are rotated together. Command R7B and Command A (`cohere2`) have a window in
three of four layers, and no rotary positions in the others (arXiv:2504.00698).
"""

from typing import Any

from trainrig.errors import DataError
from trainrig.models.architecture.attention_settings import AttentionSettings, Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import LayerNorm, ParallelBlock, Rope
from trainrig.models.families import llama
from trainrig.models.families.glm import PAIRED_ATTENTION
from trainrig.models.families.mapping import Family, HubConfig
from trainrig.models.families.rope_tables import read_rope, write_rope
from trainrig.models.families.window_layers import GLOBAL, LOCAL, build_window, list_layer_types

TENSORS = (*llama.EMBEDDINGS, llama.NORMS[0], *PAIRED_ATTENTION, *llama.GATED, *llama.HEAD)


def read_settings(config: HubConfig) -> dict[str, Any]:
    """Return the `DecoderConfig` settings that both families share, from a config.json."""
    config.check_only("hidden_act", "silu")
    biased = config.get("attention_bias", False)
    return llama.read_sizes(config, positions=8192, epsilon=1e-5) | {
        "norm": LayerNorm(epsilon=config.get("layer_norm_eps", 1e-5), bias=False),
        "block": ParallelBlock(),
        "biases": Biases(qkv=biased, output=biased),
        "tie_embeddings": config.get("tie_word_embeddings", True),
        "logit_multiplier": config.get("logit_scale", 0.0625),
    }


def write_settings(config: DecoderConfig) -> dict[str, Any] | None:
    """Return the config.json keys that `read_settings` reads, or None for other kinds of parts."""
    rope = config.position_embedding
    if not isinstance(rope, Rope) or not llama.is_gated_with_rope(config):
        return None
    return {
        **llama.write_layer_norm_sizes(config, "layer_norm_eps"),
        "hidden_act": "silu",
        **write_rope(rope),
        "attention_bias": config.biases.qkv,
        "logit_scale": config.logit_multiplier,
    }


def _read_cohere(config: HubConfig) -> DecoderConfig:
    config.check_only(
        "use_qk_norm", False, None
    )  # That norm would have separate gains for every head.
    return config.build(
        **read_settings(config), position_embedding=read_rope(config, theta=500_000.0)
    )


def _write_cohere(config: DecoderConfig) -> dict[str, Any] | None:
    settings = write_settings(config)
    return None if settings is None else {**settings, "use_qk_norm": False}


# Transformers has no classifier of these families.
COHERE = Family("cohere", "CohereForCausalLM", TENSORS, _read_cohere, _write_cohere, heads={})


def _read_cohere2(config: HubConfig) -> DecoderConfig:
    settings = read_settings(config)
    layers = settings["layers"]
    every = config.get_positive("sliding_window_pattern", 4)
    default_kinds = tuple(GLOBAL if (layer + 1) % every == 0 else LOCAL for layer in range(layers))
    kinds = config.layer_types(layers) or default_kinds
    size = config.take_positive("sliding_window", 4096)
    if size is None or LOCAL not in kinds:
        raise DataError(
            f"{config.path}: no layer has a sliding window, so none has positions; only models "
            "with sliding_window and layers of sliding_attention can be imported as cohere2"
        )
    pattern = tuple("rotated" if kind == LOCAL else "unrotated" for kind in kinds)
    return config.build(
        **settings | {"head_channels": None},  # Transformers reads no `head_dim` here
        position_embedding=read_rope(config).model_copy(update={"pattern": pattern}),
        attention=AttentionSettings(window=build_window(kinds, size, settings["positions"])),
    )


def _write_cohere2(config: DecoderConfig) -> dict[str, Any] | None:
    settings = write_settings(config)
    window = config.attention.window
    if settings is None or window is None:
        return None
    return {
        **settings,
        "sliding_window": window.size,
        "layer_types": list_layer_types(config),
    }


COHERE2 = Family("cohere2", "Cohere2ForCausalLM", TENSORS, _read_cohere2, _write_cohere2, heads={})
