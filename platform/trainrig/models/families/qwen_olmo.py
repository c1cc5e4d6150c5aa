"""Qwen 2, 2.5 and 3, Qwen 3 with experts, and OLMo 2.

Qwen 2 is Llama with biases on queries, keys and values (arXiv:2407.10671; Qwen 2.5:
arXiv:2412.15115). Qwen 3 has a norm of each head's queries and keys, and no biases
(arXiv:2505.09388). OLMo 2 has norms after each part, and of all queries and all keys together
(arXiv:2501.00656).
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings, Biases, SlidingWindow
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts, OutputNorm
from trainrig.models.families import keys, llama
from trainrig.models.families.mapping import HubConfig, map_one


def _read_window(config: HubConfig, before: dict[str, Any]) -> SlidingWindow | None:
    """Return the sliding window, which the layers from number `max_window_layers` on have.

    Returns None if no layer has one: `use_sliding_window` is off, or the window covers every
    position.
    """
    size = config.get("sliding_window")
    if not config.get("use_sliding_window", False) or size is None or size >= before["positions"]:
        return None
    layers = before["layers"]
    first = config.get("max_window_layers", 28)
    kinds = config.layer_types(layers)
    if kinds is None:
        kinds = tuple(keys.LOCAL if layer >= first else keys.GLOBAL for layer in range(layers))
    if keys.LOCAL not in kinds:
        return None
    return SlidingWindow(
        size=size,
        pattern=tuple("local" if kind == keys.LOCAL else "global" for kind in kinds),
    )


def _write_window(config: DecoderConfig) -> dict[str, Any]:
    """Return the config.json keys for the window, and for the layers that have it."""
    window = config.attention.window
    if window is None:
        return {"use_sliding_window": False, "sliding_window": None}
    kinds = keys.list_layer_types(config)
    return {
        "use_sliding_window": True,
        "sliding_window": window.size,
        "max_window_layers": kinds.index(keys.LOCAL),
        "layer_types": kinds,
    }


QWEN2 = keys.declare_family(
    "qwen2",
    "Qwen2ForCausalLM",
    llama.TENSORS,
    (
        keys.convert_sizes(positions=32768, epsilon=1e-6, kv_heads=32),
        keys.SILU,
        keys.convert_rope(),
        keys.Keys(
            lambda config, before: {
                "attention": AttentionSettings(window=_read_window(config, before))
            },
            _write_window,
        ),
        keys.assume(biases=Biases(qkv=True)),
    ),
)


QK_NORMS = llama.list_norms(
    {"attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"}
)


def _list_qwen3_keys(kv_heads: int) -> tuple[keys.Keys, ...]:
    """Return all keys outside the feed-forward network."""

    def read_attention(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
        window = _read_window(config, before)
        return {"attention": AttentionSettings(window=window, qk_norm="head")}

    return (
        keys.convert_sizes(positions=32768, epsilon=1e-6, kv_heads=kv_heads),
        keys.fill_head_channels(128),
        keys.SILU,
        keys.convert_rope(),
        keys.Keys(read_attention, _write_window),
        keys.convert_bias("attention_bias", "qkv", "output"),
    )


QWEN3 = keys.declare_family(
    "qwen3", "Qwen3ForCausalLM", (*llama.TENSORS, *QK_NORMS), _list_qwen3_keys(kv_heads=32)
)


BELOW = "model.layers.{layer}.mlp"
EXPERTS = (
    map_one("layers.{layer}.feedforward.router.weight", f"{BELOW}.gate.weight"),
    *(
        map_one(
            f"layers.{{layer}}.feedforward.experts.{name}",
            f"{BELOW}.experts.{{expert}}.{name}_proj.weight",
        )
        for name in ("gate", "up", "down")
    ),
)
MOE_TENSORS = (*llama.EMBEDDINGS, *llama.NORMS, *llama.ATTENTION, *QK_NORMS, *EXPERTS, *llama.HEAD)


def _read_experts(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    config.check_only("decoder_sparse_step", 1)
    config.check_only("mlp_only_layers", None, [])
    experts = config.make(
        MixtureOfExperts,
        experts=config.get("num_experts", config.get("num_local_experts", 128)),
        active=config.get("num_experts_per_tok", 8),
        expert_channels=config.get("moe_intermediate_size", 768),
        normalise=config.get("norm_topk_prob", False),
        balance_loss=config.get("router_aux_loss_coef", 0.001),
        router_z_loss=0.0,
    )
    return {"feedforward": experts}


def _write_experts(config: DecoderConfig) -> dict[str, Any]:
    experts = keys.find_experts(config)
    return {
        "num_experts": experts.experts,
        "num_local_experts": experts.experts,  # the newer key, which Transformers 5 writes
        "num_experts_per_tok": experts.active,
        "moe_intermediate_size": experts.expert_channels or config.shape.feedforward_channels,
        "norm_topk_prob": experts.normalise,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "router_aux_loss_coef": experts.balance_loss,
    }


QWEN3_MOE = keys.declare_family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    MOE_TENSORS,
    (*_list_qwen3_keys(kv_heads=4), keys.Keys(_read_experts, _write_experts)),
    experts=True,
)


OLMO2_NORMS = llama.list_norms(
    {
        "attention_output_norm": "post_attention_layernorm",
        "feedforward_output_norm": "post_feedforward_layernorm",
    }
)
OLMO2_TENSORS = (
    *llama.EMBEDDINGS,
    *llama.ATTENTION,
    *QK_NORMS,
    *llama.GATED,
    *OLMO2_NORMS,
    *llama.HEAD,
)


OLMO2 = keys.declare_family(
    "olmo2",
    "Olmo2ForCausalLM",
    OLMO2_TENSORS,
    (
        keys.convert_sizes(positions=2048, epsilon=1e-5),
        keys.SILU,
        keys.convert_rope(),
        keys.convert_bias("attention_bias", "qkv", "output"),
        keys.assume(attention=AttentionSettings(qk_norm="projection"), block=OutputNorm()),
    ),
)
