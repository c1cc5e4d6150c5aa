"""Llama 1 to 3.3 and models like it (SmolLM, Vicuna, Yi), Mistral, and Mixtral.

Sources: Llama arXiv:2302.13971 and arXiv:2407.21783; Mistral arXiv:2310.06825; Mixtral
arXiv:2401.04088.

The first release of Mistral has a sliding window. Mixtral is Mistral with two of eight experts as
the feed-forward network.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings, Biases, SlidingWindow
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts, RMSNorm, Rope, SwiGLU
from trainrig.models.families import mapping, rope_tables

EMBEDDINGS = (mapping.map_one("embedding.weight", "model.embed_tokens.weight"),)
HEAD = (
    mapping.map_one("norm.weight", "model.norm.weight"),
    mapping.map_one("head.weight", "lm_head.weight"),
)
NORMS = (
    mapping.map_one(
        "layers.{layer}.attention_norm.weight", "model.layers.{layer}.input_layernorm.weight"
    ),
    mapping.map_one(
        "layers.{layer}.feedforward_norm.weight",
        "model.layers.{layer}.post_attention_layernorm.weight",
    ),
)


def list_projections(theirs: str, names: dict[str, str]) -> tuple[mapping.TensorName, ...]:
    """Return the weight and bias of each linear layer below the module `theirs`.

    `names` maps trainrig's names to those of Transformers.
    """
    return tuple(
        mapping.map_one(
            f"layers.{{layer}}.{ours}.{part}", f"model.layers.{{layer}}.{theirs}.{name}.{part}"
        )
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


def read_sizes(
    config: mapping.HubConfig, positions: int, epsilon: float, kv_heads: int | None = None
) -> dict[str, Any]:
    """Return the settings that all families with Llama's key names share.

    `positions`, `epsilon` and `kv_heads` are what Transformers assumes for missing keys of the
    family; None: as many key heads as heads.
    """
    return {
        "layers": config.need("num_hidden_layers"),
        "channels": config.need("hidden_size"),
        "heads": config.need("num_attention_heads"),
        "kv_heads": config.take("num_key_value_heads", kv_heads),
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


def write_layer_norm_sizes(config: DecoderConfig, epsilon: str) -> dict[str, Any]:
    """Return the keys of `write_sizes` for a family with layer norms; `epsilon` is their key."""
    keys = write_sizes(config)
    return {**keys, epsilon: keys.pop("rms_norm_eps")}


def is_gated_with_rope(config: DecoderConfig) -> bool:
    """Return whether a model of `config` has SwiGLU and rotary positions, as Llama has."""
    return isinstance(config.position_embedding, Rope) and isinstance(config.feedforward, SwiGLU)


def _read_llama(config: mapping.HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    attention = config.get("attention_bias", False)
    biases = Biases(qkv=attention, output=attention, feedforward=config.get("mlp_bias", False))
    return config.build(
        **read_sizes(config, positions=2048, epsilon=1e-6),
        position_embedding=rope_tables.read_rope(config),
        biases=biases,
    )


def _write_llama(config: DecoderConfig) -> dict[str, Any] | None:
    if not isinstance(config.position_embedding, Rope) or not isinstance(
        config.feedforward, SwiGLU
    ):
        return None
    return {
        **write_sizes(config),
        "hidden_act": "silu",
        **rope_tables.write_rope(config.position_embedding),
        "attention_bias": config.biases.qkv,
        "mlp_bias": config.biases.feedforward,
    }


LLAMA = mapping.Family("llama", "LlamaForCausalLM", TENSORS, _read_llama, _write_llama)


def read_window(
    config: mapping.HubConfig, sizes: dict[str, Any], default: int | None = None
) -> AttentionSettings:
    """Return attention with the window of all layers, or none if it covers every position.

    `default` is the window that Transformers assumes for the family if the key is missing.
    """
    window = config.take_positive("sliding_window", default)
    if window is None or window >= sizes["positions"]:
        return AttentionSettings()
    return AttentionSettings(window=SlidingWindow(size=window))


def write_window(config: DecoderConfig) -> dict[str, Any] | None:
    """Return the config.json key of the window; its value is None if no layer has a window.

    Returns None instead if only some layers have one: then the model is no Mistral.
    """
    window = config.attention.window
    if window is None:
        return {"sliding_window": None}
    return None if "global" in window.pattern else {"sliding_window": window.size}


def _read_mistral(config: mapping.HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = read_sizes(config, positions=4096 * 32, epsilon=1e-6, kv_heads=8)
    return config.build(
        **sizes,
        position_embedding=rope_tables.read_rope(config),
        attention=read_window(config, sizes, default=4096),
    )


def _write_mistral(config: DecoderConfig) -> dict[str, Any] | None:
    window = write_window(config)
    if (
        window is None
        or not isinstance(config.position_embedding, Rope)
        or not isinstance(config.feedforward, SwiGLU)
    ):
        return None
    rope = rope_tables.write_rope(config.position_embedding)
    return {**write_sizes(config), "hidden_act": "silu", **rope, **window}


MISTRAL = mapping.Family("mistral", "MistralForCausalLM", TENSORS, _read_mistral, _write_mistral)


BELOW = "model.layers.{layer}.block_sparse_moe"
EXPERTS = (
    mapping.map_one("layers.{layer}.feedforward.router.weight", f"{BELOW}.gate.weight"),
    *(
        mapping.map_one(
            f"layers.{{layer}}.feedforward.experts.{ours}", f"{BELOW}.experts.{{expert}}.{theirs}"
        )
        for ours, theirs in {
            "gate": "w1.weight",
            "up": "w3.weight",
            "down": "w2.weight",
        }.items()
    ),
)
MIXTRAL_TENSORS = (*EMBEDDINGS, *NORMS, *ATTENTION, *EXPERTS, *HEAD)


def _read_mixtral(config: mapping.HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = read_sizes(config, positions=4096 * 32, epsilon=1e-5, kv_heads=8)
    experts = config.make(
        MixtureOfExperts,
        experts=config.get("num_local_experts", 8),
        active=config.get("num_experts_per_tok", 2),
        balance_loss=config.get("router_aux_loss_coef", 0.001),
        router_z_loss=0.0,
    )
    return config.build(
        **sizes,
        position_embedding=rope_tables.read_rope(config, theta=1_000_000.0),
        attention=read_window(config, sizes),
        feedforward=experts,
    )


def _write_mixtral(config: DecoderConfig) -> dict[str, Any] | None:
    window = write_window(config)
    experts = config.feedforward
    if (
        window is None
        or not isinstance(experts, MixtureOfExperts)
        or not isinstance(experts.network, SwiGLU)
        or not isinstance(config.position_embedding, Rope)
    ):
        return None
    return {
        **write_sizes(config),
        "intermediate_size": experts.expert_channels or config.shape.feedforward_channels,
        "hidden_act": "silu",
        **rope_tables.write_rope(config.position_embedding),
        **window,
        "num_local_experts": experts.experts,
        "num_experts_per_tok": experts.active,
        "router_aux_loss_coef": experts.balance_loss,
    }


MIXTRAL = mapping.Family(
    "mixtral", "MixtralForCausalLM", MIXTRAL_TENSORS, _read_mixtral, _write_mixtral
)
