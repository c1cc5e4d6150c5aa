"""Qwen 2, 2.5 and 3, Qwen 3 with experts, and OLMo 2.

Qwen 2 is Llama with biases on queries, keys and values (arXiv:2407.10671; Qwen 2.5:
arXiv:2412.15115). Qwen 3 has a norm of each head's queries and keys, and no biases
(arXiv:2505.09388). OLMo 2 has norms after each part, and of all queries and all keys together
(arXiv:2501.00656).
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings, Biases, SlidingWindow
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts, OutputNorm, Rope, SwiGLU
from trainrig.models.families import llama
from trainrig.models.families.llama import TENSORS as LLAMA_TENSORS
from trainrig.models.families.mapping import Family, HubConfig, map_one
from trainrig.models.families.rope_tables import read_rope, write_rope


def read_window_of_upper_layers(config: HubConfig, sizes: dict[str, Any]) -> SlidingWindow | None:
    """Return the sliding window, which the layers from number `max_window_layers` on have.

    Returns None if no layer has one: `use_sliding_window` is off, or the window covers every
    position.
    """
    size = config.get("sliding_window")
    if not config.get("use_sliding_window", False) or size is None or size >= sizes["positions"]:
        return None
    kinds = config.layer_types(sizes["layers"])
    first = config.get("max_window_layers", 28)
    if kinds is None:
        kinds = tuple(
            "sliding_attention" if layer >= first else "full_attention"
            for layer in range(sizes["layers"])
        )
    if "sliding_attention" not in kinds:
        return None
    return SlidingWindow(
        size=size,
        pattern=tuple("local" if kind == "sliding_attention" else "global" for kind in kinds),
    )


def write_layer_types(config: DecoderConfig) -> dict[str, Any]:
    """Return the config.json keys for the window, and for the layers that have it."""
    window = config.attention.window
    if window is None:
        return {"use_sliding_window": False, "sliding_window": None}
    local = [window.is_local(layer) for layer in range(config.layers)]
    return {
        "use_sliding_window": True,
        "sliding_window": window.size,
        "max_window_layers": local.index(True),
        "layer_types": [("full_attention", "sliding_attention")[is_local] for is_local in local],
    }


def _read_qwen2(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = llama.read_sizes(config, positions=32768, epsilon=1e-6, kv_heads=32)
    return config.build(
        **sizes,
        position_embedding=read_rope(config),
        attention=AttentionSettings(window=read_window_of_upper_layers(config, sizes)),
        biases=Biases(qkv=True),
    )


def _write_qwen2(config: DecoderConfig) -> dict[str, Any] | None:
    """Return the config.json keys of `config`, or None if it is clearly not of this family.

    `Family.holds` finds the other differences, such as other biases, by reading the keys again.
    """
    if not isinstance(config.position_embedding, Rope) or not isinstance(
        config.feedforward, SwiGLU
    ):
        return None
    rope = write_rope(config.position_embedding)
    return {**llama.write_sizes(config), "hidden_act": "silu", **rope, **write_layer_types(config)}


QWEN2 = Family("qwen2", "Qwen2ForCausalLM", llama.TENSORS, _read_qwen2, _write_qwen2)


QK_NORMS = tuple(
    map_one(
        f"layers.{{layer}}.attention.{ours}.weight",
        f"model.layers.{{layer}}.self_attn.{theirs}.weight",
    )
    for ours, theirs in {"query_norm": "q_norm", "key_norm": "k_norm"}.items()
)
QWEN3_TENSORS = (*LLAMA_TENSORS, *QK_NORMS)


def read_settings(config: HubConfig, kv_heads: int = 32) -> dict[str, Any]:
    """Return all settings except the feed-forward network, from a config.json.

    `kv_heads` is what Transformers assumes for a missing key.
    """
    config.check_only("hidden_act", "silu")
    sizes = llama.read_sizes(config, positions=32768, epsilon=1e-6, kv_heads=kv_heads)
    biased = config.get("attention_bias", False)
    sizes["head_channels"] = config.get("head_dim", 128)
    return {
        **sizes,
        "position_embedding": read_rope(config),
        "attention": AttentionSettings(
            window=read_window_of_upper_layers(config, sizes), qk_norm="head"
        ),
        "biases": Biases(qkv=biased, output=biased),
    }


def write_settings(config: DecoderConfig) -> dict[str, Any] | None:
    """Return the config.json keys of Qwen 3's settings, or None without rotary positions."""
    if not isinstance(config.position_embedding, Rope):
        return None
    return {
        **llama.write_sizes(config),
        "hidden_act": "silu",
        **write_rope(config.position_embedding),
        **write_layer_types(config),
        "attention_bias": config.biases.qkv,
    }


def _read_qwen3(config: HubConfig) -> DecoderConfig:
    return config.build(**read_settings(config))


def _write_qwen3(config: DecoderConfig) -> dict[str, Any] | None:
    return write_settings(config) if isinstance(config.feedforward, SwiGLU) else None


QWEN3 = Family("qwen3", "Qwen3ForCausalLM", QWEN3_TENSORS, _read_qwen3, _write_qwen3)


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


def _read_qwen3_moe(config: HubConfig) -> DecoderConfig:
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
    return config.build(**read_settings(config, kv_heads=4), feedforward=experts)


def _write_qwen3_moe(config: DecoderConfig) -> dict[str, Any] | None:
    settings = write_settings(config)
    experts = config.feedforward
    if (
        settings is None
        or not isinstance(experts, MixtureOfExperts)
        or not isinstance(experts.network, SwiGLU)
    ):
        return None
    return {
        **settings,
        "num_experts": experts.experts,
        "num_local_experts": experts.experts,  # the newer key, which Transformers 5 writes
        "num_experts_per_tok": experts.active,
        "moe_intermediate_size": experts.expert_channels or config.shape.feedforward_channels,
        "norm_topk_prob": experts.normalise,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "router_aux_loss_coef": experts.balance_loss,
    }


QWEN3_MOE = Family(
    "qwen3_moe", "Qwen3MoeForCausalLM", MOE_TENSORS, _read_qwen3_moe, _write_qwen3_moe
)


OLMO2_NORMS = tuple(
    map_one(f"layers.{{layer}}.{ours}.weight", f"model.layers.{{layer}}.{theirs}.weight")
    for ours, theirs in {
        "attention_output_norm": "post_attention_layernorm",
        "feedforward_output_norm": "post_feedforward_layernorm",
    }.items()
)
OLMO2_TENSORS = (
    *llama.EMBEDDINGS,
    *llama.ATTENTION,
    *QK_NORMS,
    *llama.GATED,
    *OLMO2_NORMS,
    *llama.HEAD,
)


def _read_olmo2(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    biased = config.get("attention_bias", False)
    return config.build(
        **llama.read_sizes(config, positions=2048, epsilon=1e-5),
        position_embedding=read_rope(config),
        attention=AttentionSettings(qk_norm="projection"),
        block=OutputNorm(),
        biases=Biases(qkv=biased, output=biased),
    )


def _write_olmo2(config: DecoderConfig) -> dict[str, Any] | None:
    if not isinstance(config.position_embedding, Rope) or not isinstance(
        config.feedforward, SwiGLU
    ):
        return None
    return {
        **llama.write_sizes(config),
        "hidden_act": "silu",
        **write_rope(config.position_embedding),
        "attention_bias": config.biases.qkv,
    }


OLMO2 = Family("olmo2", "Olmo2ForCausalLM", OLMO2_TENSORS, _read_olmo2, _write_olmo2)
