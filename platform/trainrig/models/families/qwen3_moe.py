"""Qwen 3 with experts as the feed-forward network (arXiv:2505.09388)."""

from typing import Any

from trainrig.models.architecture.feedforward import MixtureOfExperts, SwiGLU
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.families.llama import ATTENTION, EMBEDDINGS, HEAD, NORMS
from trainrig.models.families.mapping import Family, HubConfig, map_one
from trainrig.models.families.qwen3 import QK_NORMS, read_settings, write_settings

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
TENSORS = (*EMBEDDINGS, *NORMS, *ATTENTION, *QK_NORMS, *EXPERTS, *HEAD)


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("decoder_sparse_step", 1)
    config.check_only("mlp_only_layers", None, [])
    experts = MixtureOfExperts(
        experts=config.get("num_experts", config.get("num_local_experts", 128)),
        active=config.get("num_experts_per_tok", 8),
        expert_channels=config.get("moe_intermediate_size", 768),
        normalise=config.get("norm_topk_prob", False),
        balance_loss=config.get("router_aux_loss_coef", 0.001),
        router_z_loss=0.0,
    )
    return config.build(**read_settings(config), feedforward=experts)


def _write(config: DecoderConfig) -> dict[str, Any] | None:
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


QWEN3_MOE = Family("qwen3_moe", "Qwen3MoeForCausalLM", TENSORS, _read, _write)
