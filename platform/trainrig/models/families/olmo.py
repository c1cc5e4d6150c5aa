"""OLMo 3 and OLMoE: relatives of OLMo 2.

OLMo 3 has a window in three of four layers, whose rotary positions are not scaled
(arXiv:2512.13961). OLMoE has experts, norms before each part, and norms of all queries and all keys
together (arXiv:2409.02060).
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import OutputNorm, Rope
from trainrig.models.families import keys
from trainrig.models.families.mapping import HubConfig
from trainrig.models.families.qwen_olmo import MOE_TENSORS, OLMO2_TENSORS
from trainrig.models.families.rope_tables import read_rope, write_rope_table

THETA = 500_000.0


def _read_windows(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    layers = before["layers"]
    kinds = config.layer_types(layers) or keys.repeat_kinds(layers, 4)
    rope, of_windows = _read_ropes(config)
    size = config.take_positive("sliding_window", 4096)
    window = keys.build_window(kinds, size, before["positions"], of_windows)
    return {
        "position_embedding": rope,
        "attention": AttentionSettings(qk_norm="projection", window=window),
    }


def _read_ropes(config: HubConfig) -> tuple[Rope, Rope | None]:
    """Return the rotary positions of layers without a window, and others of layers with one."""
    tables = config.get_table("rope_parameters")
    base = config.get("rope_theta", THETA)
    # `rope_theta` outside of the tables is for layers without a window only, as in Transformers.
    local = HubConfig({"rope_parameters": tables.get(keys.LOCAL) or {}}, config.path)
    others = {key: value for key, value in config.given.items() if key != "rope_theta"}
    rope = read_rope(
        HubConfig({**others, "rope_parameters": tables.get(keys.GLOBAL) or {}}, config.path),
        theta=base,
    )
    of_windows = read_rope(local, theta=THETA)
    return rope, None if of_windows == rope else of_windows


def _write_windows(config: DecoderConfig) -> dict[str, Any]:
    rope = keys.find_rope(config)
    window = config.attention.window
    of_windows = rope if window is None else window.rope or rope
    tables = {
        keys.GLOBAL: {"rope_theta": rope.theta, **write_rope_table(rope)},
        keys.LOCAL: {"rope_theta": of_windows.theta, **write_rope_table(of_windows)},
    }
    return {
        "rope_parameters": tables,
        "rope_scaling": None,
        "sliding_window": config.positions if window is None else window.size,
        "layer_types": keys.list_layer_types(config),
    }


OLMO3 = keys.declare_family(
    "olmo3",
    "Olmo3ForCausalLM",
    OLMO2_TENSORS,
    (
        keys.convert_sizes(positions=2048, epsilon=1e-5),
        keys.SILU,
        keys.Keys(_read_windows, _write_windows),
        keys.convert_bias("attention_bias", "qkv", "output"),
        keys.assume(block=OutputNorm()),
    ),
)
OLMOE = keys.declare_family(
    "olmoe",
    "OlmoeForCausalLM",
    MOE_TENSORS,
    (
        keys.convert_sizes(positions=4096, epsilon=1e-5),
        keys.SILU,
        keys.convert_rope(),
        keys.convert_bias("attention_bias", "qkv", "output"),
        keys.fix_key("clip_qkv", None),
        keys.convert_experts(
            "num_experts", experts=64, active=8, balance_loss=0.01, normalise=False
        ),
        keys.assume(
            attention=AttentionSettings(qk_norm="projection"),
            head_channels=None,  # the norms of queries and keys assume channels / heads
        ),
    ),
    experts=True,
    heads={},  # Transformers has no classifier of this family.
)
