"""Gemma 1, and Gemma 2 and 3 (text), which have norms around each part, local and global layers.

Gemma 1 is Llama with GELU, a scaled embedding and gains stored minus 1 (arXiv:2403.08295).
Gemma 2 soft-caps its logits and alternates windows (arXiv:2408.00118). Gemma 3 has query and key
norms, and five local layers for each global one (arXiv:2503.19786).
"""

import math
from collections.abc import Callable
from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import GEGLU, RMSNorm, Rope, SandwichNorm
from trainrig.models.families import keys, llama
from trainrig.models.families.mapping import HubConfig
from trainrig.models.families.qwen_olmo import QK_NORMS
from trainrig.models.families.rope_tables import read_rope, write_rope_table

NORMS = llama.list_norms(
    {
        "attention_norm": "input_layernorm",
        "attention_output_norm": "post_attention_layernorm",
        "feedforward_norm": "pre_feedforward_layernorm",
        "feedforward_output_norm": "post_feedforward_layernorm",
    }
)
TENSORS = (*llama.EMBEDDINGS, *NORMS, *llama.ATTENTION, *llama.GATED, *llama.HEAD)
ACTIVATION = "gelu_pytorch_tanh"


LOCAL_THETA = 10_000.0
GLOBAL_THETA = 1_000_000.0


def _derive_settings(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    return {
        "norm": RMSNorm(epsilon=before["norm"].epsilon, unit_offset=True),
        "feedforward": GEGLU(),
        "embedding_multiplier": math.sqrt(before["channels"]),
    }


def _list_gemma_keys(positions: int, kv_heads: int) -> tuple[keys.Keys, ...]:
    """Return the keys of sizes, whose defaults are Transformers'."""
    return (
        keys.convert_sizes(positions, epsilon=1e-6, kv_heads=kv_heads, tied=True),
        keys.fill_head_channels(256),
        keys.Keys(_derive_settings, lambda config: {}),
    )


def _read_attention(config: HubConfig, before: dict[str, Any], every: int) -> dict[str, Any]:
    """Return the settings of windows and caps; by default one layer in `every` has no window."""
    layers, positions = before["layers"], before["positions"]
    kinds = config.layer_types(layers) or keys.repeat_kinds(layers, every)
    size = config.get_positive("sliding_window", 4096)
    return {
        "logit_cap": config.get("final_logit_softcapping"),
        "attention": AttentionSettings(
            window=keys.build_window(kinds, size, positions),
            query_scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
            logit_cap=config.get("attn_logit_softcapping"),
        ),
    }


def _write_attention(config: DecoderConfig) -> dict[str, Any] | None:
    """Return the keys of windows and caps, or None for a model without a query scale."""
    attention = config.attention
    window = attention.window
    if attention.query_scale is None:
        return None
    return {
        "query_pre_attn_scalar": _round_whole(attention.query_scale**-2),
        "sliding_window": config.positions if window is None else window.size,
        "layer_types": keys.list_layer_types(config),
        "attn_logit_softcapping": attention.logit_cap,
        "final_logit_softcapping": config.logit_cap,
    }


def _round_whole(value: float) -> float | int:
    """Return `value` as an integer if it is one up to rounding errors."""
    return round(value) if math.isclose(value, round(value), rel_tol=1e-9) else value


def _list_windowed_keys(
    positions: int, read_attention: Callable[[HubConfig, dict[str, Any]], dict[str, Any]]
) -> tuple[keys.Keys, ...]:
    """Return the keys that Gemma 2 and 3 share.

    `hidden_act`, which they do not read, has the value of `hidden_activation`.
    """
    return (
        *_list_gemma_keys(positions, kv_heads=4),
        keys.fix_key("hidden_activation", ACTIVATION, None),
        keys.write_only(hidden_act=ACTIVATION),
        keys.convert_bias("attention_bias", "qkv", "output"),
        keys.Keys(read_attention, _write_attention),
        keys.assume(block=SandwichNorm()),
    )


def _read_gemma2(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    # A null value switches a cap off; a missing key means Gemma 2's default.
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return _read_attention(HubConfig({**caps, **config.given}, config.path), before, every=2)


GEMMA2 = keys.declare_family(
    "gemma2",
    "Gemma2ForCausalLM",
    TENSORS,
    (*_list_windowed_keys(8192, _read_gemma2), keys.convert_rope()),
    network=GEGLU,
)
GEMMA = keys.declare_family(
    "gemma",
    "GemmaForCausalLM",
    llama.TENSORS,
    (
        *_list_gemma_keys(positions=8192, kv_heads=16),
        # Transformers takes both for the former.
        keys.fix_key("hidden_act", ACTIVATION, "gelu"),
        keys.write_only(hidden_activation=ACTIVATION),
        keys.fix_key("use_bidirectional_attention", False, None, written=False),
        keys.convert_rope(),
        keys.convert_bias("attention_bias", "qkv", "output"),
    ),
    network=GEGLU,
)


def _read_gemma3(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    settings = _read_attention(config, before, config.get_positive("sliding_window_pattern", 6))
    kinds = config.get_table("rope_parameters")
    if keys.LOCAL in kinds:
        local, rope = (
            read_rope(HubConfig({"rope_parameters": kinds[kind]}, config.path), theta=theta)
            for kind, theta in ((keys.LOCAL, LOCAL_THETA), (keys.GLOBAL, GLOBAL_THETA))
        )
    else:
        local = Rope(theta=config.get("rope_local_base_freq", LOCAL_THETA))
        rope = read_rope(config, theta=GLOBAL_THETA)
    attention = settings["attention"]
    window = attention.window and attention.window.model_copy(update={"rope": local})
    attention = attention.model_copy(update={"qk_norm": "head", "window": window})
    return {**settings, "attention": attention, "position_embedding": rope}


def _write_gemma3_ropes(config: DecoderConfig) -> dict[str, Any] | None:
    rope = keys.find_rope(config)
    window = config.attention.window
    if window is None or window.rope is None:
        return None
    return {
        "rope_theta": rope.theta,
        "rope_scaling": None if rope.scaling is None else write_rope_table(rope),
        "rope_local_base_freq": window.rope.theta,
        "rope_parameters": {
            keys.GLOBAL: {"rope_theta": rope.theta, **write_rope_table(rope)},
            keys.LOCAL: {"rope_theta": window.rope.theta, **write_rope_table(window.rope)},
        },
    }


GEMMA3 = keys.declare_family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    (*TENSORS, *QK_NORMS),
    (
        keys.fix_key("use_bidirectional_attention", False, None, written=False),
        *_list_windowed_keys(131_072, _read_gemma3),
        keys.Keys(lambda config, before: {}, _write_gemma3_ropes),
    ),
    network=GEGLU,
    score_architecture="Gemma3TextForSequenceClassification",
)
