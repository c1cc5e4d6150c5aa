"""Granite 3, also with experts: Llama with factors on embeddings, attention, layers and logits.

Source: IBM Granite team 2024, https://github.com/ibm-granite/granite-3.0-language-models.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings, Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts, Rope, SwiGLU
from trainrig.models.families import llama
from trainrig.models.families.mapping import Family, HubConfig, TensorName, map_one
from trainrig.models.families.rope_tables import read_rope, write_rope


def read_factors(config: HubConfig) -> dict[str, Any]:
    """Return the `DecoderConfig` settings for the factors of a Granite model."""
    return {
        "attention": AttentionSettings(
            query_scale=config.get_positive("attention_multiplier", 1.0)
        ),
        "embedding_multiplier": config.get("embedding_multiplier", 1.0),
        "residual_multiplier": config.get("residual_multiplier", 1.0),
        "logit_multiplier": 1 / config.get_positive("logits_scaling", 1.0),
    }


def write_factors(config: DecoderConfig) -> dict[str, Any]:
    """Return the config.json keys that `read_factors` reads."""
    default_scale = config.shape.head_channels**-0.5
    return {
        "attention_multiplier": config.attention.query_scale or default_scale,
        "embedding_multiplier": config.embedding_multiplier,
        "residual_multiplier": config.residual_multiplier,
        "logits_scaling": _invert(config.logit_multiplier),
    }


def _invert(value: float) -> float:
    """Return the number with the fewest digits whose inverse is `value`."""
    digits = (float(f"{1 / value:.{count}g}") for count in range(1, 17))
    return next((inverse for inverse in digits if 1 / inverse == value), 1 / value)


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    attention = config.get("attention_bias", False)
    return config.build(
        **llama.read_sizes(config, positions=2048, epsilon=1e-6),
        **read_factors(config),
        position_embedding=read_rope(config),
        biases=Biases(qkv=attention, output=attention, feedforward=config.get("mlp_bias", False)),
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    if not isinstance(rope, Rope) or not llama.is_gated_with_rope(config):
        return None
    return {
        **llama.write_sizes(config),
        "hidden_act": "silu",
        **write_rope(rope),
        **write_factors(config),
        "attention_bias": config.biases.qkv,
        "mlp_bias": config.biases.feedforward,
    }


# Transformers has no classifier of this family.
GRANITE = Family("granite", "GraniteForCausalLM", llama.TENSORS, _read, _write, heads={})


BELOW = "model.layers.{layer}.block_sparse_moe"
MOE_TENSORS = (
    *llama.EMBEDDINGS,
    *llama.NORMS,
    *llama.ATTENTION,
    map_one("layers.{layer}.feedforward.router.weight", f"{BELOW}.router.layer.weight"),
    TensorName(
        ("layers.{layer}.feedforward.experts.gate", "layers.{layer}.feedforward.experts.up"),
        f"{BELOW}.input_linear.weight",
        dim=1,
    ),
    map_one("layers.{layer}.feedforward.experts.down", f"{BELOW}.output_linear.weight"),
    *llama.HEAD,
)


def _read_moe(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    biased = config.get("attention_bias", False)
    experts = config.make(
        MixtureOfExperts,
        experts=config.get("num_local_experts", 8),
        active=config.get("num_experts_per_tok", 2),
        balance_loss=config.get("router_aux_loss_coef", 0.001),
        router_z_loss=0.0,
    )
    return config.build(
        **llama.read_sizes(config, positions=2048, epsilon=1e-6),
        **read_factors(config),
        position_embedding=read_rope(config),
        biases=Biases(qkv=biased, output=biased),
        feedforward=experts,
    )


def _write_moe(config: DecoderConfig) -> dict[str, Any] | None:
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
        **write_factors(config),
        "attention_bias": config.biases.qkv,
        "num_local_experts": experts.experts,
        "num_experts_per_tok": experts.active,
        "router_aux_loss_coef": experts.balance_loss,
    }


GRANITE_MOE = Family(
    "granitemoe", "GraniteMoeForCausalLM", MOE_TENSORS, _read_moe, _write_moe, heads={}
)
