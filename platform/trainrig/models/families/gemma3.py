"""Gemma 3 (text): query and key norms, five local layers for each global one (arXiv:2503.19786)."""

from typing import Any

from trainrig.models.architecture.positions import Rope
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.families import gemma2
from trainrig.models.families.gemma2 import read_settings, write_settings
from trainrig.models.families.mapping import Family, HubConfig, read_rope, write_rope_table
from trainrig.models.families.qwen3 import QK_NORMS

TENSORS = (*gemma2.TENSORS, *QK_NORMS)
LOCAL = "sliding_attention"
GLOBAL = "full_attention"
LOCAL_THETA = 10_000.0
GLOBAL_THETA = 1_000_000.0


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("use_bidirectional_attention", False, None)
    every = config.get("sliding_window_pattern", 6)
    pattern = (*[LOCAL] * (every - 1), GLOBAL)
    kinds = config.get("rope_parameters", {})
    if LOCAL in kinds:
        local = read_rope(
            HubConfig({"rope_parameters": kinds[LOCAL]}, config.path), None, LOCAL_THETA
        )
        table = HubConfig({"rope_parameters": kinds[GLOBAL]}, config.path)
        turned = read_rope(table, None, GLOBAL_THETA)
    else:
        local = Rope(theta=config.get("rope_local_base_freq", LOCAL_THETA))
        turned = read_rope(config, None, GLOBAL_THETA)
    settings = read_settings(config, 131_072, pattern, local)
    attention = settings["attention"].model_copy(update={"qk_norm": "head"})
    return config.build(**settings | {"attention": attention}, position_embedding=turned)


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    settings = write_settings(config)
    rope = config.position_embedding
    window = config.attention.window
    if settings is None or not isinstance(rope, Rope) or window is None or window.rope is None:
        return None
    return {
        **settings,
        "rope_theta": rope.theta,
        "rope_scaling": None if rope.scaling is None else write_rope_table(rope),
        "rope_local_base_freq": window.rope.theta,
        "rope_parameters": {
            GLOBAL: {"rope_theta": rope.theta, **write_rope_table(rope)},
            LOCAL: {"rope_theta": window.rope.theta, **write_rope_table(window.rope)},
        },
    }


GEMMA3 = Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    TENSORS,
    _read,
    _write,
    score_architecture="Gemma3TextForSequenceClassification",
)
