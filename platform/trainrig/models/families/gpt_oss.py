"""gpt-oss: experts with clamped gates and biases, attention sinks, windows in every other layer.

Source: OpenAI 2025, arXiv:2508.10925.

Published files hold the experts in MXFP4 (mxfp4.py). The score of an expert is a
softmax over the chosen experts only, which is the softmax over all experts scaled to a sum of 1.
"""

from typing import Any

from trainrig.errors import DataError
from trainrig.models.architecture.attention_settings import AttentionSettings, Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import (
    ClampedSwiGLU,
    MixtureOfExperts,
    Rope,
    YaRN,
)
from trainrig.models.families import llama, mxfp4
from trainrig.models.families.mapping import Family, HubConfig, TensorName, map_one
from trainrig.models.families.rope_tables import read_rope, write_rope
from trainrig.models.families.row_orders import alternate_gate_and_up
from trainrig.models.families.window_layers import GLOBAL, LOCAL, build_window, list_layer_types

THETA = 150_000.0
BELOW = "model.layers.{layer}.mlp"
OURS = "layers.{layer}.feedforward"


def _join_gate(ending: str, theirs: str, transposed: bool) -> TensorName:
    """Return the mapping of gate and up, whose hidden channels alternate in one tensor."""
    return TensorName(
        tuple(f"{OURS}.experts.{name}{ending}" for name in ("gate", "up")),
        f"{BELOW}.experts.{theirs}",
        transposed,
        dim=1,
        arrange=alternate_gate_and_up,
    )


TENSORS = (
    *llama.EMBEDDINGS,
    *llama.NORMS,
    *llama.ATTENTION,
    map_one("layers.{layer}.attention.sinks", "model.layers.{layer}.self_attn.sinks"),
    map_one(f"{OURS}.router.weight", f"{BELOW}.router.weight"),
    map_one(f"{OURS}.router.bias", f"{BELOW}.router.bias"),
    _join_gate("", "gate_up_proj", transposed=True),
    _join_gate("_bias", "gate_up_proj_bias", transposed=False),
    map_one(f"{OURS}.experts.down", f"{BELOW}.experts.down_proj", transposed=True),
    map_one(f"{OURS}.experts.down_bias", f"{BELOW}.experts.down_proj_bias"),
    *llama.HEAD,
)


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = llama.read_sizes(config, positions=131_072, epsilon=1e-5, kv_heads=8)
    layers = sizes["layers"]
    default_kinds = tuple(GLOBAL if layer % 2 else LOCAL for layer in range(layers))
    kinds = config.layer_types(layers) or default_kinds
    size = config.take_positive("sliding_window", 128)
    biased = config.get("attention_bias", True)
    experts = config.make(
        MixtureOfExperts,
        experts=config.get("num_local_experts", config.get("num_experts", 128)),
        active=config.get("num_experts_per_tok", 4),
        network=config.make(
            ClampedSwiGLU,
            alpha=config.get("swiglu_alpha", 1.702),
            limit=config.get("swiglu_limit", 7.0),
        ),
        router_bias=True,
        balance_loss=config.get("router_aux_loss_coef", 0.001),
        router_z_loss=0.0,
    )
    return config.build(
        **sizes | {"head_channels": config.take("head_dim", 64)},
        position_embedding=_read_rope(config),
        attention=AttentionSettings(
            sinks=True, window=build_window(kinds, size, sizes["positions"])
        ),
        feedforward=experts,
        biases=Biases(qkv=biased, output=biased, feedforward=True),
    )


def _read_rope(config: HubConfig) -> Rope:
    """Return the rotary positions, or the published models' ones if the file has no table."""
    rope = read_rope(config, theta=THETA)
    if rope.rotated_share != 1:
        raise DataError(
            f"{config.path}: partial_rotary_factor is {rope.rotated_share}, but gpt-oss rotates "
            "whole heads; leave it out"
        )
    if config.get_table("rope_parameters") or config.get_table("rope_scaling"):
        return rope
    usual = YaRN(factor=32.0, original_positions=4096, whole_channels=False)
    return rope.model_copy(update={"scaling": usual})


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    experts = config.feedforward
    if not isinstance(rope, Rope) or not isinstance(experts, MixtureOfExperts):
        return None
    if not isinstance(experts.network, ClampedSwiGLU):
        return None
    window = config.attention.window
    return {
        **llama.write_sizes(config),
        "intermediate_size": experts.expert_channels or config.shape.feedforward_channels,
        "hidden_act": "silu",
        **write_rope(rope),
        "attention_bias": config.biases.qkv,
        "sliding_window": None if window is None else window.size,
        "layer_types": list_layer_types(config),
        "num_local_experts": experts.experts,
        "num_experts_per_tok": experts.active,
        "swiglu_alpha": experts.network.alpha,
        "swiglu_limit": experts.network.limit,
        "router_aux_loss_coef": experts.balance_loss,
    }


GPT_OSS = Family("gpt_oss", "GptOssForCausalLM", TENSORS, _read, _write, quantised=mxfp4.METHOD)
