"""DeepSeek V2 and V3, and models like them (Moonlight): latent attention, and many small experts.

Sources: DeepSeek-V2 arXiv:2405.04434; DeepSeek-V3 arXiv:2412.19437.

Their files rotate neighbouring channels at the end of each head. V3 scores experts by sigmoids, and
balances them by a bias. The layers that predict further tokens are left out, as in Transformers.
"""

import math
from dataclasses import dataclass
from typing import Any

from trainrig.errors import DataError
from trainrig.models.architecture.attention_settings import Biases, LatentAttention
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import ExpertGroups, MixtureOfExperts, Rope, YaRN
from trainrig.models.families import keys, llama, row_orders
from trainrig.models.families.mapping import HubConfig, TensorName, map_one
from trainrig.models.families.qwen_olmo import EXPERTS
from trainrig.models.families.rope_tables import read_rope, write_rope

ROPE_TABLES = ("rope_parameters", "rope_scaling")  # newer and older name
BELOW = "model.layers.{layer}.self_attn"
OURS = "layers.{layer}.attention"


def _compresses_queries(config: DecoderConfig) -> bool:
    attention = config.attention
    return isinstance(attention, LatentAttention) and attention.query_channels is not None


def _computes_queries_directly(config: DecoderConfig) -> bool:
    return not _compresses_queries(config)


ATTENTION = (
    TensorName(
        (f"{OURS}.query.weight",),
        f"{BELOW}.q_proj.weight",
        arrange=row_orders.order_latent_queries,
        applies=_computes_queries_directly,
    ),
    TensorName(
        (f"{OURS}.query.weight",),
        f"{BELOW}.q_b_proj.weight",
        arrange=row_orders.order_latent_queries,
        applies=_compresses_queries,
    ),
    map_one(f"{OURS}.query_down_norm.weight", f"{BELOW}.q_a_layernorm.weight"),
    *(
        TensorName(
            (f"{OURS}.latent.{part}", f"{OURS}.rotated_key.{part}"),
            f"{BELOW}.kv_a_proj_with_mqa.{part}",
            arrange=row_orders.order_latent,
        )
        for part in ("weight", "bias")
    ),
    map_one(f"{OURS}.latent_norm.weight", f"{BELOW}.kv_a_layernorm.weight"),
    TensorName(
        (f"{OURS}.key.weight", f"{OURS}.value.weight"),
        f"{BELOW}.kv_b_proj.weight",
        arrange=row_orders.order_keys_and_values,
    ),
    *llama.list_projections(
        "self_attn", {"attention.query_down": "q_a_proj", "attention.output": "o_proj"}
    ),
)
# In bfloat16 the bias would lose the small differences that choose the experts.
BALANCE_BIAS = TensorName(
    ("layers.{layer}.feedforward.balance_bias",),
    "model.layers.{layer}.mlp.gate.e_score_correction_bias",
    in_float32=True,
)
SHARED = llama.list_projections(
    "mlp.shared_experts",
    {f"feedforward.shared.{name}": f"{name}_proj" for name in ("gate", "up", "down")},
)
TENSORS = (
    *llama.EMBEDDINGS,
    *llama.NORMS,
    *ATTENTION,
    *llama.GATED,  # the layers without experts
    *EXPERTS,
    BALANCE_BIAS,
    *SHARED,
    *llama.HEAD,
)


@dataclass(frozen=True)
class ExpertDefaults:
    """Values that Transformers assumes for missing keys of the experts."""

    experts: int
    expert_channels: int
    shared_experts: int
    dense_layers: int
    scale: float


def _read_attention(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    rotated = config.get("qk_rope_head_dim", 64)
    width = config.get("qk_nope_head_dim", 128) + rotated
    rope = read_rope(config)
    if rope.rotated_share != 1:
        raise DataError(
            f"{config.path}: partial_rotary_factor is {rope.rotated_share}, but qk_rope_head_dim "
            "already says how much of a head is rotated; leave it out"
        )
    attention = config.make(
        LatentAttention,
        latent_channels=config.get("kv_lora_rank", 512),
        query_channels=config.take("q_lora_rank", 1536),
        rotated_channels=rotated,
        value_channels=config.get("v_head_dim", 128),
        query_scale=_read_query_scale(config, width),
    )
    biased = config.get("attention_bias", False)
    return {
        "head_channels": width,
        "position_embedding": rope,
        "attention": attention,
        "biases": Biases(qkv=biased, output=biased),
    }


def _read_experts(config: HubConfig, defaults: ExpertDefaults, **settings: Any) -> MixtureOfExperts:
    # Transformers does not read this key, but the custom code of published models does.
    config.check_only("moe_layer_freq", 1)
    return config.make(
        MixtureOfExperts,
        experts=config.get("n_routed_experts", defaults.experts),
        expert_channels=config.get("moe_intermediate_size", defaults.expert_channels),
        shared_experts=config.get_positive("n_shared_experts", defaults.shared_experts),
        dense_layers=config.get("first_k_dense_replace", defaults.dense_layers),
        scale=config.get("routed_scaling_factor", defaults.scale),
        balance_loss=config.get("aux_loss_alpha", 0.0),
        router_z_loss=0.0,
        **settings,
    )


def read_sigmoid_experts(
    config: HubConfig, defaults: ExpertDefaults, groups: int, active_groups: int
) -> MixtureOfExperts:
    """Return experts that are scored by sigmoids and balanced by a bias.

    `groups` and `active_groups` are what Transformers assumes for missing keys.
    """
    # Only the custom code of published models reads these two keys.
    config.check_only("scoring_func", "sigmoid")
    config.check_only("topk_method", "noaux_tc")
    count = config.get("n_group", groups)
    active = config.get("topk_group", active_groups)
    return _read_experts(
        config,
        defaults,
        active=config.get("num_experts_per_tok", 8),
        scores="sigmoid",
        normalise=bool(config.take("norm_topk_prob", True)),
        balance_bias=True,
        groups=_read_groups(config, count, active, best=2),
    )


def _read_groups(config: HubConfig, count: int, active: int, best: int) -> ExpertGroups | None:
    """Return the groups of experts, or None if there is only one."""
    if count == active == 1:
        return None
    return config.make(ExpertGroups, count=count, active=active, best=best)


def _read_query_scale(config: HubConfig, width: int) -> float | None:
    """Return the factor on attention logits, which YaRN multiplies by a squared factor."""
    table = {**config.get_table("rope_scaling"), **config.get_table("rope_parameters")}
    share = table.get("mscale_all_dim")
    if table.get("rope_type", table.get("type", "default")) == "default" or not share:
        return None
    return _scale_queries(share, table["factor"], width)


def _scale_queries(share: float, factor: float, width: int) -> float:
    growth = 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1.0
    return float(width**-0.5 * growth * growth)


def _write_query_scale(config: DecoderConfig, rope: Rope) -> dict[str, float]:
    """Return YaRN's key `mscale_all_dim` for the factor on attention logits, or no key."""
    width = config.shape.head_channels
    scale = config.attention.query_scale
    if scale is None or not isinstance(rope.scaling, YaRN) or rope.scaling.factor <= 1:
        return {}
    growth = math.sqrt(scale / width**-0.5)
    share = (growth - 1) / (0.1 * math.log(rope.scaling.factor))
    # The number with the fewest digits that gives the same factor again.
    digits = (float(f"{share:.{count}g}") for count in range(1, 17))
    fitting = (d for d in digits if _scale_queries(d, rope.scaling.factor, width) == scale)
    return {"mscale_all_dim": next(fitting, share)}


V3 = ExpertDefaults(experts=256, expert_channels=2048, shared_experts=1, dense_layers=3, scale=2.5)
V2 = ExpertDefaults(experts=64, expert_channels=1407, shared_experts=2, dense_layers=0, scale=1.0)


def _read_v3(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    config.check_only("rope_interleave", True)
    return {"feedforward": read_sigmoid_experts(config, V3, groups=8, active_groups=4)}


def _read_v2(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    config.check_only("mlp_bias", False)
    config.check_only("norm_topk_prob", False, None)
    config.check_only("topk_method", "greedy", "group_limited_greedy")
    config.check_only("scoring_func", "softmax")  # a key of custom code
    groups = None
    if config.get("topk_method", "greedy") != "greedy":
        groups = _read_groups(config, config.need("n_group"), config.need("topk_group"), best=1)
    experts = _read_experts(
        config, V2, active=config.need("num_experts_per_tok"), normalise=False, groups=groups
    )
    return {"feedforward": experts}


def write_experts(config: DecoderConfig) -> dict[str, Any]:
    """Return the keys for the sizes and the scale of the experts of `config`."""
    experts = keys.find_experts(config)
    return {
        "n_routed_experts": experts.experts,
        "num_experts_per_tok": experts.active,
        "moe_intermediate_size": experts.expert_channels or config.shape.feedforward_channels,
        "n_shared_experts": experts.shared_experts,
        "first_k_dense_replace": experts.dense_layers,
        "routed_scaling_factor": experts.scale,
        "aux_loss_alpha": experts.balance_loss,
    }


def write_sigmoid_choice(experts: MixtureOfExperts) -> dict[str, Any]:
    """Return the keys for the choice of experts that sigmoids score."""
    groups = experts.groups
    return {
        "norm_topk_prob": experts.normalise,
        "n_group": 1 if groups is None else groups.count,
        "topk_group": 1 if groups is None else groups.active,
        "num_nextn_predict_layers": 0,
    }


def _write_attention(config: DecoderConfig) -> dict[str, Any] | None:
    rope = keys.find_rope(config)
    latent = config.attention
    if not isinstance(latent, LatentAttention):
        return None
    tables = write_rope(rope)
    share = _write_query_scale(config, rope)
    return {
        "head_dim": latent.rotated_channels,
        **{name: tables[name] and {**tables[name], **share} for name in ROPE_TABLES},
        "rope_theta": rope.theta,
        "attention_bias": config.biases.qkv,
        "kv_lora_rank": latent.latent_channels,
        "q_lora_rank": latent.query_channels,
        "qk_rope_head_dim": latent.rotated_channels,
        "qk_nope_head_dim": config.shape.head_channels - latent.rotated_channels,
        "v_head_dim": latent.value_channels,
        **write_experts(config),
    }


def _write_v3(config: DecoderConfig) -> dict[str, Any]:
    return {"rope_interleave": True, **write_sigmoid_choice(keys.find_experts(config))}


def _write_v2(config: DecoderConfig) -> dict[str, Any]:
    groups = keys.find_experts(config).groups
    return {
        "mlp_bias": False,
        "norm_topk_prob": False,
        "topk_method": "greedy" if groups is None else "group_limited_greedy",
        "n_group": None if groups is None else groups.count,
        "topk_group": None if groups is None else groups.active,
    }


DEEPSEEK_V3 = keys.declare_family(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    TENSORS,
    (
        keys.convert_sizes(positions=4096, epsilon=1e-6, kv_heads=128),
        keys.SILU,
        keys.Keys(_read_attention, _write_attention),
        keys.Keys(_read_v3, _write_v3),
    ),
    experts=True,
    adopted=True,
    surplus=r"model\.layers\.61\..*",  # the layer that predicts the token after the next one
)
DEEPSEEK_V2 = keys.declare_family(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    TENSORS,
    (
        keys.convert_sizes(positions=2048, epsilon=1e-6),
        keys.SILU,
        keys.Keys(_read_attention, _write_attention),
        keys.Keys(_read_v2, _write_v2),
    ),
    experts=True,
    adopted=True,
)
