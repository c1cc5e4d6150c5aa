"""Gemma 1, and Gemma 2 and 3 (text), which have norms around each part, local and global layers.

Gemma 1 is Llama with GELU, a scaled embedding and gains stored minus 1 (arXiv:2403.08295).
Gemma 2 soft-caps its logits and alternates windows (arXiv:2408.00118). Gemma 3 has query and key
norms, and five local layers for each global one (arXiv:2503.19786).
"""

import math
from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings, Biases, SlidingWindow
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import GEGLU, RMSNorm, Rope, SandwichNorm
from trainrig.models.families import llama, mapping, rope_tables
from trainrig.models.families.qwen_olmo import QK_NORMS

NORMS = tuple(
    mapping.map_one(f"layers.{{layer}}.{ours}.weight", f"model.layers.{{layer}}.{theirs}.weight")
    for ours, theirs in {
        "attention_norm": "input_layernorm",
        "attention_output_norm": "post_attention_layernorm",
        "feedforward_norm": "pre_feedforward_layernorm",
        "feedforward_output_norm": "post_feedforward_layernorm",
    }.items()
)
TENSORS = (*llama.EMBEDDINGS, *NORMS, *llama.ATTENTION, *llama.GATED, *llama.HEAD)
ACTIVATION = "gelu_pytorch_tanh"


def read_settings(
    config: mapping.HubConfig, positions: int, pattern: tuple[str, ...], rope: Rope | None = None
) -> dict[str, Any]:
    """Return the `DecoderConfig` settings that Gemma 2 and 3 share, from a config.json.

    `positions`: number of positions if the config has none. `pattern`: kinds of the layers if it
    has none, repeated over all layers. `rope`: positions of the layers with a window; None: those
    of all layers.
    """
    config.check_only("hidden_activation", ACTIVATION, None)
    sizes = llama.read_sizes(config, positions=positions, epsilon=1e-6, kv_heads=4)
    default_kinds = tuple(pattern[layer % len(pattern)] for layer in range(sizes["layers"]))
    kinds = config.layer_types(sizes["layers"]) or default_kinds
    window = SlidingWindow(
        size=min(config.get_positive("sliding_window", 4096), sizes["positions"]),
        pattern=tuple("local" if kind == "sliding_attention" else "global" for kind in kinds),
        rope=rope,
    )
    biased = config.get("attention_bias", False)
    return {
        **sizes,
        "head_channels": config.get("head_dim", 256),
        "norm": RMSNorm(epsilon=sizes["norm"].epsilon, unit_offset=True),
        "tie_embeddings": config.get("tie_word_embeddings", True),
        "feedforward": GEGLU(),
        "block": SandwichNorm(),
        "biases": Biases(qkv=biased, output=biased),
        "embedding_multiplier": math.sqrt(sizes["channels"]),
        "logit_cap": config.get("final_logit_softcapping"),
        "attention": AttentionSettings(
            window=window if "local" in window.pattern else None,
            query_scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
            logit_cap=config.get("attn_logit_softcapping"),
        ),
    }


def write_settings(config: DecoderConfig) -> dict[str, Any] | None:
    """Return the config.json keys of the settings that Gemma 2 and 3 share.

    Returns None for a model without GEGLU or without a query scale: it is neither. `hidden_act`,
    which `read_settings` ignores, has the value of `hidden_activation`.
    """
    attention = config.attention
    window = config.attention.window
    if not isinstance(config.feedforward, GEGLU) or attention.query_scale is None:
        return None
    local = [window is not None and window.is_local(layer) for layer in range(config.layers)]
    return {
        **llama.write_sizes(config),
        "hidden_activation": ACTIVATION,
        "hidden_act": ACTIVATION,
        "attention_bias": config.biases.qkv,
        "query_pre_attn_scalar": _round_whole(attention.query_scale**-2),
        "sliding_window": config.positions if window is None else window.size,
        "layer_types": [("full_attention", "sliding_attention")[is_local] for is_local in local],
        "attn_logit_softcapping": attention.logit_cap,
        "final_logit_softcapping": config.logit_cap,
    }


def _round_whole(value: float) -> float | int:
    """Return `value` as an integer if it is one up to rounding errors."""
    return round(value) if math.isclose(value, round(value), rel_tol=1e-9) else value


def _read_gemma2(config: mapping.HubConfig) -> DecoderConfig:
    pattern = ("sliding_attention", "full_attention")
    given = dict(config.given)
    # A null value switches a cap off; a missing key means Gemma 2's default.
    given.setdefault("attn_logit_softcapping", 50.0)
    given.setdefault("final_logit_softcapping", 30.0)
    config = mapping.HubConfig(given, config.path)
    return config.build(
        **read_settings(config, 8192, pattern), position_embedding=rope_tables.read_rope(config)
    )


def _write_gemma2(config: DecoderConfig) -> dict[str, Any] | None:
    settings = write_settings(config)
    if settings is None or not isinstance(config.position_embedding, Rope):
        return None
    return {**settings, **rope_tables.write_rope(config.position_embedding)}


GEMMA2 = mapping.Family("gemma2", "Gemma2ForCausalLM", TENSORS, _read_gemma2, _write_gemma2)


GEMMA3_TENSORS = (*TENSORS, *QK_NORMS)


def _read_gemma(config: mapping.HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", ACTIVATION, "gelu")  # Transformers takes both for the former
    config.check_only("use_bidirectional_attention", False, None)
    sizes = llama.read_sizes(config, positions=8192, epsilon=1e-6, kv_heads=16)
    biased = config.get("attention_bias", False)
    changed = {
        "head_channels": config.get("head_dim", 256),
        "norm": RMSNorm(epsilon=sizes["norm"].epsilon, unit_offset=True),
        "tie_embeddings": config.get("tie_word_embeddings", True),
    }
    return config.build(
        **sizes | changed,
        position_embedding=rope_tables.read_rope(config),
        feedforward=GEGLU(),
        biases=Biases(qkv=biased, output=biased),
        embedding_multiplier=math.sqrt(sizes["channels"]),
    )


def _write_gemma(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    if not isinstance(config.feedforward, GEGLU) or not isinstance(rope, Rope):
        return None
    return {
        **llama.write_sizes(config),
        "hidden_act": ACTIVATION,
        "hidden_activation": ACTIVATION,
        **rope_tables.write_rope(rope),
        "attention_bias": config.biases.qkv,
    }


GEMMA = mapping.Family("gemma", "GemmaForCausalLM", llama.TENSORS, _read_gemma, _write_gemma)


LOCAL = "sliding_attention"
GLOBAL = "full_attention"
LOCAL_THETA = 10_000.0
GLOBAL_THETA = 1_000_000.0


def _read_gemma3(config: mapping.HubConfig) -> DecoderConfig:
    config.check_only("use_bidirectional_attention", False, None)
    every = config.get_positive("sliding_window_pattern", 6)
    pattern = (*[LOCAL] * (every - 1), GLOBAL)
    kinds = config.get_table("rope_parameters")
    if LOCAL in kinds:
        local = rope_tables.read_rope(
            mapping.HubConfig({"rope_parameters": kinds[LOCAL]}, config.path), None, LOCAL_THETA
        )
        table = mapping.HubConfig({"rope_parameters": kinds[GLOBAL]}, config.path)
        global_rope = rope_tables.read_rope(table, None, GLOBAL_THETA)
    else:
        local = Rope(theta=config.get("rope_local_base_freq", LOCAL_THETA))
        global_rope = rope_tables.read_rope(config, None, GLOBAL_THETA)
    settings = read_settings(config, 131_072, pattern, local)
    attention = settings["attention"].model_copy(update={"qk_norm": "head"})
    return config.build(**settings | {"attention": attention}, position_embedding=global_rope)


def _write_gemma3(config: DecoderConfig) -> dict[str, Any] | None:
    settings = write_settings(config)
    rope = config.position_embedding
    window = config.attention.window
    if settings is None or not isinstance(rope, Rope) or window is None or window.rope is None:
        return None
    return {
        **settings,
        "rope_theta": rope.theta,
        "rope_scaling": None if rope.scaling is None else rope_tables.write_rope_table(rope),
        "rope_local_base_freq": window.rope.theta,
        "rope_parameters": {
            GLOBAL: {"rope_theta": rope.theta, **rope_tables.write_rope_table(rope)},
            LOCAL: {"rope_theta": window.rope.theta, **rope_tables.write_rope_table(window.rope)},
        },
    }


GEMMA3 = mapping.Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    GEMMA3_TENSORS,
    _read_gemma3,
    _write_gemma3,
    score_architecture="Gemma3TextForSequenceClassification",
)
