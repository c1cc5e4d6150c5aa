"""GLM-4.5 and 4.6: experts scored by sigmoids as in DeepSeek V3, and rotation of half of each head.

Source: GLM-4.5 team 2025, arXiv:2508.06471.

The layers that predict further tokens are left out, as in Transformers.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.families import deepseek, keys, llama
from trainrig.models.families.mapping import HubConfig
from trainrig.models.families.qwen_olmo import EXPERTS, QK_NORMS

TENSORS = (
    *llama.EMBEDDINGS,
    *llama.NORMS,
    *llama.ATTENTION,
    *QK_NORMS,
    *llama.GATED,  # the layers without experts
    *EXPERTS,
    deepseek.BALANCE_BIAS,
    *deepseek.SHARED,
    *llama.HEAD,
)
DEFAULTS = deepseek.ExpertDefaults(
    experts=128, expert_channels=1408, shared_experts=1, dense_layers=1, scale=1.0
)


def _read(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    normed = config.get("use_qk_norm", False)
    return {
        "attention": AttentionSettings(qk_norm="head" if normed else None),
        "feedforward": deepseek.read_sigmoid_experts(config, DEFAULTS, groups=1, active_groups=1),
    }


def _write(config: DecoderConfig) -> dict[str, Any]:
    return {
        "use_qk_norm": config.attention.qk_norm is not None,
        **deepseek.write_experts(config),
        **deepseek.write_sigmoid_choice(keys.find_experts(config)),
    }


GLM4_MOE = keys.declare_family(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    TENSORS,
    (
        keys.convert_sizes(positions=131_072, epsilon=1e-5, kv_heads=8),
        keys.SILU,
        keys.convert_rope(rotated_share=0.5),
        keys.convert_bias("attention_bias", "qkv"),
        keys.Keys(_read, _write),
    ),
    experts=True,
    # The layer that predicts the token after the next one, in GLM-4.5-Air and in GLM-4.5.
    surplus=r"model\.layers\.(46|92)\..*",
)
