"""Llama 1 to 3.3, and models like SmolLM, Vicuna and Yi (arXiv:2302.13971, arXiv:2407.21783)."""

from typing import Any

from trainrig.models.architecture.attention import Biases
from trainrig.models.architecture.feedforward import SwiGLU
from trainrig.models.architecture.norms import RMSNorm
from trainrig.models.architecture.positions import Rope
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.families.mapping import (
    Family,
    HubConfig,
    TensorName,
    map_one,
    read_rope,
    write_rope,
)

EMBEDDINGS = (map_one("embedding.weight", "model.embed_tokens.weight"),)
HEAD = (map_one("norm.weight", "model.norm.weight"), map_one("head.weight", "lm_head.weight"))
NORMS = (
    map_one("layers.{layer}.attention_norm.weight", "model.layers.{layer}.input_layernorm.weight"),
    map_one(
        "layers.{layer}.feedforward_norm.weight",
        "model.layers.{layer}.post_attention_layernorm.weight",
    ),
)


def list_projections(theirs: str, names: dict[str, str]) -> tuple[TensorName, ...]:
    """Return the weight and bias of each linear layer below the module `theirs`.

    `names` maps trainrig's names to those of Transformers.
    """
    return tuple(
        map_one(f"layers.{{layer}}.{ours}.{part}", f"model.layers.{{layer}}.{theirs}.{name}.{part}")
        for ours, name in names.items()
        for part in ("weight", "bias")
    )


ATTENTION = list_projections(
    "self_attn",
    {
        "attention.query": "q_proj",
        "attention.key": "k_proj",
        "attention.value": "v_proj",
        "attention.output": "o_proj",
    },
)
GATED = list_projections(
    "mlp",
    {"feedforward.gate": "gate_proj", "feedforward.up": "up_proj", "feedforward.down": "down_proj"},
)
TENSORS = (*EMBEDDINGS, *NORMS, *ATTENTION, *GATED, *HEAD)


def read_sizes(config: HubConfig, positions: int, epsilon: float) -> dict[str, Any]:
    """Return the settings that all families with Llama's key names share.

    `positions` and `epsilon` are Transformers' defaults for the family.
    """
    return {
        "layers": config.need("num_hidden_layers"),
        "channels": config.need("hidden_size"),
        "heads": config.need("num_attention_heads"),
        "kv_heads": config.get("num_key_value_heads"),
        "head_channels": config.get("head_dim"),
        "feedforward_channels": config.need("intermediate_size"),
        "vocabulary": config.need("vocab_size"),
        "positions": config.get("max_position_embeddings", positions),
        "norm": RMSNorm(epsilon=config.get("rms_norm_eps", epsilon)),
        "tie_embeddings": config.get("tie_word_embeddings", False),
    }


def write_sizes(config: DecoderConfig) -> dict[str, Any]:
    """Return the config.json keys that `read_sizes` reads."""
    shape = config.shape
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.channels,
        "intermediate_size": shape.feedforward_channels,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_channels,
        "max_position_embeddings": config.positions,
        "rms_norm_eps": config.norm.epsilon,
        "attention_dropout": 0.0,
        "initializer_range": config.initial_std,
        "tie_word_embeddings": config.tie_embeddings,
        "use_cache": True,
    }


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    attention = config.get("attention_bias", False)
    biases = Biases(qkv=attention, output=attention, feedforward=config.get("mlp_bias", False))
    return config.build(
        **read_sizes(config, positions=2048, epsilon=1e-6),
        position_embedding=read_rope(config),
        biases=biases,
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    if not isinstance(config.position_embedding, Rope) or not isinstance(
        config.feedforward, SwiGLU
    ):
        return None
    return {
        **write_sizes(config),
        "hidden_act": "silu",
        **write_rope(config.position_embedding),
        "attention_bias": config.biases.qkv,
        "mlp_bias": config.biases.feedforward,
    }


LLAMA = Family("llama", "LlamaForCausalLM", TENSORS, _read, _write)
