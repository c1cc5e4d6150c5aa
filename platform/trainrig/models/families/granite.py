"""Granite 3, also with experts: Llama with factors on embeddings, attention, layers and logits.

Source: IBM Granite team 2024, https://github.com/ibm-granite/granite-3.0-language-models.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.families import keys, llama
from trainrig.models.families.mapping import HubConfig, TensorName, map_one


def _read_factors(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention": AttentionSettings(
            query_scale=config.get_positive("attention_multiplier", 1.0)
        ),
        "embedding_multiplier": config.get("embedding_multiplier", 1.0),
        "residual_multiplier": config.get("residual_multiplier", 1.0),
        "logit_multiplier": 1 / config.get_positive("logits_scaling", 1.0),
    }


def _write_factors(config: DecoderConfig) -> dict[str, Any]:
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


KEYS = (
    keys.convert_sizes(positions=2048, epsilon=1e-6),
    keys.SILU,
    keys.convert_rope(),
    keys.Keys(_read_factors, _write_factors),
    keys.convert_bias("attention_bias", "qkv", "output"),
)
GRANITE = keys.declare_family(
    "granite",
    "GraniteForCausalLM",
    llama.TENSORS,
    (*KEYS, keys.convert_bias("mlp_bias", "feedforward")),
    heads={},  # Transformers has no classifier of these families.
)


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
GRANITE_MOE = keys.declare_family(
    "granitemoe",
    "GraniteMoeForCausalLM",
    MOE_TENSORS,
    (*KEYS, keys.convert_experts("num_local_experts", experts=8, active=2, balance_loss=0.001)),
    experts=True,
    heads={},
)
