"""Qwen 2 with experts: Qwen 2 with many small experts, and a gate for the shared ones.

Source: Qwen team 2024, arXiv:2407.10671, section 2.2.2.
"""

from typing import Any

from trainrig.errors import DataError
from trainrig.models.architecture.attention_settings import AttentionSettings, SlidingWindow
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.models.families import keys, llama
from trainrig.models.families.mapping import HubConfig, map_one
from trainrig.models.families.qwen_olmo import EXPERTS

SHARED = llama.list_projections(
    "mlp.shared_expert",
    {f"feedforward.shared.{name}": f"{name}_proj" for name in ("gate", "up", "down")},
)
TENSORS = (
    *llama.EMBEDDINGS,
    *llama.NORMS,
    *llama.ATTENTION,
    *llama.GATED,  # the layers without experts
    *EXPERTS,
    *SHARED,
    map_one(
        "layers.{layer}.feedforward.shared_gate.weight",
        "model.layers.{layer}.mlp.shared_expert_gate.weight",
    ),
    *llama.HEAD,
)


def _read_experts(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    config.check_only("decoder_sparse_step", 1)
    between = config.get_positive("moe_intermediate_size", 1408)
    experts = config.make(
        MixtureOfExperts,
        experts=config.get("num_experts", config.get("num_local_experts", 60)),
        active=config.get("num_experts_per_tok", 4),
        expert_channels=between,
        shared_experts=_count_shared(config, between),
        shared_gate=True,
        dense_layers=_count_dense_layers(config),
        normalise=config.get("norm_topk_prob", False),
        balance_loss=config.get("router_aux_loss_coef", 0.001),
        router_z_loss=0.0,
    )
    return {"feedforward": experts}


def _write_experts(config: DecoderConfig) -> dict[str, Any]:
    experts = keys.find_experts(config)
    between = experts.expert_channels or config.shape.feedforward_channels
    return {
        "num_experts": experts.experts,
        "num_experts_per_tok": experts.active,
        "moe_intermediate_size": between,
        "shared_expert_intermediate_size": experts.shared_experts * between,
        "norm_topk_prob": experts.normalise,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(range(experts.dense_layers)),
        "router_aux_loss_coef": experts.balance_loss,
    }


def _count_shared(config: HubConfig, between: int) -> int:
    """Return the number of experts that are as wide as the shared network together."""
    shared = config.get_positive("shared_expert_intermediate_size", 5632)
    if shared % between:
        raise DataError(
            f"{config.path}: shared_expert_intermediate_size ({shared}) is not a multiple of "
            f"moe_intermediate_size ({between}), so trainrig cannot express the shared experts; "
            "use a model where it is one"
        )
    return int(shared // between)


def _count_dense_layers(config: HubConfig) -> int:
    """Return the number of first layers without experts."""
    dense = sorted(set(config.get("mlp_only_layers", [])))
    if dense != list(range(len(dense))):
        raise DataError(
            f"{config.path}: mlp_only_layers is {dense}; only models whose layers without experts "
            "are the first ones can be imported"
        )
    return len(dense)


def _read_window(config: HubConfig, before: dict[str, Any]) -> SlidingWindow | None:
    if not config.get("use_sliding_window", False):
        return None
    last = config.get("max_window_layers", 28)
    default_kinds = tuple(
        keys.LOCAL if layer % 2 == 0 and layer < last else keys.GLOBAL
        for layer in range(before["layers"])
    )
    kinds = config.layer_types(before["layers"]) or default_kinds
    return keys.build_window(
        kinds, config.take_positive("sliding_window", 4096), before["positions"]
    )


def _write_window(config: DecoderConfig) -> dict[str, Any]:
    window = config.attention.window
    return {
        "use_sliding_window": window is not None,
        "sliding_window": 0 if window is None else window.size,
        "layer_types": keys.list_layer_types(config),
    }


QWEN2_MOE = keys.declare_family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    TENSORS,
    (
        keys.convert_sizes(positions=32768, epsilon=1e-6, kv_heads=16),
        keys.SILU,
        keys.convert_rope(),
        keys.convert_bias("qkv_bias", "qkv", default=True),
        keys.Keys(
            lambda config, before: {
                "attention": AttentionSettings(window=_read_window(config, before))
            },
            _write_window,
        ),
        keys.Keys(_read_experts, _write_experts),
    ),
    experts=True,
)
