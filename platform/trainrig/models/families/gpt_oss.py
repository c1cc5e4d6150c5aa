"""gpt-oss: experts with clamped gates and biases, attention sinks, windows in every other layer.

Source: OpenAI 2025, arXiv:2508.10925.

Published files hold the experts in MXFP4 (mxfp4.py). The score of an expert is a
softmax over the chosen experts only, which is the softmax over all experts scaled to a sum of 1.
"""

from typing import Any

from trainrig.errors import DataError
from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import ClampedSwiGLU, MixtureOfExperts, YaRN
from trainrig.models.families import keys, llama, mxfp4
from trainrig.models.families.mapping import HubConfig, TensorName, map_one
from trainrig.models.families.rope_tables import read_rope, write_rope
from trainrig.models.families.row_orders import alternate_gate_and_up

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


def _read_biases(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    biased = config.get("attention_bias", True)
    return {"biases": Biases(qkv=biased, output=biased, feedforward=True)}


def _list_kinds(layers: int, window: int | None) -> tuple[str, ...]:
    return tuple(keys.GLOBAL if layer % 2 else keys.LOCAL for layer in range(layers))


def _read_experts(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
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
    return {"feedforward": experts}


def _write_experts(config: DecoderConfig) -> dict[str, Any]:
    experts = keys.find_experts(config)
    assert isinstance(experts.network, ClampedSwiGLU), "declare_family has checked it"
    return {
        "intermediate_size": experts.expert_channels or config.shape.feedforward_channels,
        "num_local_experts": experts.experts,
        "num_experts_per_tok": experts.active,
        "swiglu_alpha": experts.network.alpha,
        "swiglu_limit": experts.network.limit,
        "router_aux_loss_coef": experts.balance_loss,
    }


def _read_rope(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    """Return the rotary positions, or the published models' ones if the file has no table."""
    rope = read_rope(config, theta=150_000.0)
    if rope.rotated_share != 1:
        raise DataError(
            f"{config.path}: partial_rotary_factor is {rope.rotated_share}, but gpt-oss rotates "
            "whole heads; leave it out"
        )
    if not (config.get_table("rope_parameters") or config.get_table("rope_scaling")):
        usual = YaRN(factor=32.0, original_positions=4096, whole_channels=False)
        rope = rope.model_copy(update={"scaling": usual})
    return {"position_embedding": rope}


GPT_OSS = keys.declare_family(
    "gpt_oss",
    "GptOssForCausalLM",
    TENSORS,
    (
        keys.convert_sizes(positions=131_072, epsilon=1e-5, kv_heads=8, head_channels=64),
        keys.SILU,
        keys.Keys(_read_rope, lambda config: write_rope(keys.find_rope(config))),
        keys.Keys(_read_biases, lambda config: {"attention_bias": config.biases.qkv}),
        keys.convert_layer_windows(128, _list_kinds, sinks=True),
        keys.Keys(_read_experts, _write_experts),
    ),
    network=ClampedSwiGLU,
    experts=True,
    quantised=mxfp4.METHOD,
)
