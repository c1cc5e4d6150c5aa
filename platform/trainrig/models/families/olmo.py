"""OLMo 3 and OLMoE: relatives of OLMo 2.

OLMo 3 has a window in three of four layers, whose rotary positions are not scaled
(arXiv:2512.13961). OLMoE has experts, norms before each part, and norms of all queries and all keys
together (arXiv:2409.02060).
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings, Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts, OutputNorm, Rope, SwiGLU
from trainrig.models.families import llama
from trainrig.models.families.mapping import Family, HubConfig
from trainrig.models.families.qwen_olmo import MOE_TENSORS, OLMO2_TENSORS
from trainrig.models.families.rope_tables import read_rope, write_rope, write_rope_table
from trainrig.models.families.window_layers import GLOBAL, LOCAL, build_window, list_layer_types

THETA = 500_000.0


def _read_olmo3(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = llama.read_sizes(config, positions=2048, epsilon=1e-5)
    layers = sizes["layers"]
    default_kinds = tuple(GLOBAL if (layer + 1) % 4 == 0 else LOCAL for layer in range(layers))
    kinds = config.layer_types(layers) or default_kinds
    rope, of_windows = _read_ropes(config)
    size = config.take_positive("sliding_window", 4096)
    window = build_window(kinds, size, sizes["positions"], of_windows)
    biased = config.get("attention_bias", False)
    return config.build(
        **sizes,
        position_embedding=rope,
        attention=AttentionSettings(qk_norm="projection", window=window),
        block=OutputNorm(),
        biases=Biases(qkv=biased, output=biased),
    )


def _read_ropes(config: HubConfig) -> tuple[Rope, Rope | None]:
    """Return the rotary positions of layers without a window, and others of layers with one."""
    tables = config.get_table("rope_parameters")
    base = config.get("rope_theta", THETA)
    # `rope_theta` outside of the tables is for layers without a window only, as in Transformers.
    local = HubConfig({"rope_parameters": tables.get(LOCAL) or {}}, config.path)
    keys = {key: value for key, value in config.given.items() if key != "rope_theta"}
    rope = read_rope(
        HubConfig({**keys, "rope_parameters": tables.get(GLOBAL) or {}}, config.path), theta=base
    )
    of_windows = read_rope(local, theta=THETA)
    return rope, None if of_windows == rope else of_windows


def _write_olmo3(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    if not isinstance(rope, Rope) or not llama.is_gated_with_rope(config):
        return None
    window = config.attention.window
    of_windows = rope if window is None else window.rope or rope
    tables = {
        GLOBAL: {"rope_theta": rope.theta, **write_rope_table(rope)},
        LOCAL: {"rope_theta": of_windows.theta, **write_rope_table(of_windows)},
    }
    return {
        **llama.write_sizes(config),
        "hidden_act": "silu",
        "rope_parameters": tables,
        "rope_scaling": None,
        "sliding_window": config.positions if window is None else window.size,
        "layer_types": list_layer_types(config),
        "attention_bias": config.biases.qkv,
    }


OLMO3 = Family("olmo3", "Olmo3ForCausalLM", OLMO2_TENSORS, _read_olmo3, _write_olmo3)


def _read_olmoe(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    config.check_only("clip_qkv", None)
    sizes = llama.read_sizes(config, positions=4096, epsilon=1e-5)
    biased = config.get("attention_bias", False)
    experts = config.make(
        MixtureOfExperts,
        experts=config.get("num_experts", config.get("num_local_experts", 64)),
        active=config.get("num_experts_per_tok", 8),
        normalise=config.get("norm_topk_prob", False),
        balance_loss=config.get("router_aux_loss_coef", 0.01),
        router_z_loss=0.0,
    )
    return config.build(
        **sizes | {"head_channels": None},  # the norms of queries and keys assume channels / heads
        position_embedding=read_rope(config),
        attention=AttentionSettings(qk_norm="projection"),
        biases=Biases(qkv=biased, output=biased),
        feedforward=experts,
    )


def _write_olmoe(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    experts = config.feedforward
    if not isinstance(rope, Rope) or not isinstance(experts, MixtureOfExperts):
        return None
    if not isinstance(experts.network, SwiGLU):
        return None
    return {
        **llama.write_sizes(config),
        "intermediate_size": experts.expert_channels or config.shape.feedforward_channels,
        "hidden_act": "silu",
        **write_rope(rope),
        "attention_bias": config.biases.qkv,
        "clip_qkv": None,
        "num_experts": experts.experts,
        "num_experts_per_tok": experts.active,
        "norm_topk_prob": experts.normalise,
        "router_aux_loss_coef": experts.balance_loss,
    }


# Transformers has no classifier of this family.
OLMOE = Family("olmoe", "OlmoeForCausalLM", MOE_TENSORS, _read_olmoe, _write_olmoe, heads={})
