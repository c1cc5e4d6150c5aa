"""Mixtral: Mistral with two of eight experts as the feed-forward network (arXiv:2401.04088)."""

from typing import Any

from trainrig.models.architecture.feedforward import MixtureOfExperts, SwiGLU
from trainrig.models.architecture.positions import Rope
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.families.llama import (
    ATTENTION,
    EMBEDDINGS,
    HEAD,
    NORMS,
    read_sizes,
    write_sizes,
)
from trainrig.models.families.mapping import Family, HubConfig, map_one, read_rope, write_rope
from trainrig.models.families.mistral import read_window, write_window

BELOW = "model.layers.{layer}.block_sparse_moe"
EXPERTS = (
    map_one("layers.{layer}.feedforward.router.weight", f"{BELOW}.gate.weight"),
    *(
        map_one(
            f"layers.{{layer}}.feedforward.experts.{ours}", f"{BELOW}.experts.{{expert}}.{theirs}"
        )
        for ours, theirs in {
            "gate": "w1.weight",
            "up": "w3.weight",
            "down": "w2.weight",
        }.items()
    ),
)
TENSORS = (*EMBEDDINGS, *NORMS, *ATTENTION, *EXPERTS, *HEAD)


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    sizes = read_sizes(config, positions=4096 * 32, epsilon=1e-5)
    experts = MixtureOfExperts(
        experts=config.get("num_local_experts", 8),
        active=config.get("num_experts_per_tok", 2),
        balance_loss=config.get("router_aux_loss_coef", 0.001),
        router_z_loss=0.0,
    )
    return config.build(
        **sizes,
        position_embedding=read_rope(config),
        attention=read_window(config, sizes),
        feedforward=experts,
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
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
        **write_rope(config.position_embedding),
        **window,
        "num_local_experts": experts.experts,
        "num_experts_per_tok": experts.active,
        "router_aux_loss_coef": experts.balance_loss,
    }


MIXTRAL = Family("mixtral", "MixtralForCausalLM", TENSORS, _read, _write)
