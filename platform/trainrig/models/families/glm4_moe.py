"""GLM-4.5 and 4.6: experts scored by sigmoids as in DeepSeek V3, and rotation of half of each head.

Source: GLM-4.5 team 2025, arXiv:2508.06471.

The layers that predict further tokens are left out, as in Transformers.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings, Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import MixtureOfExperts, Rope, SwiGLU
from trainrig.models.families import deepseek, llama
from trainrig.models.families.mapping import Family, HubConfig
from trainrig.models.families.qwen_olmo import EXPERTS, QK_NORMS
from trainrig.models.families.rope_tables import read_rope, write_partial_rope

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


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "silu")
    normed = config.get("use_qk_norm", False)
    return config.build(
        **llama.read_sizes(config, positions=131_072, epsilon=1e-5, kv_heads=8),
        position_embedding=read_rope(config.with_defaults(partial_rotary_factor=0.5)),
        attention=AttentionSettings(qk_norm="head" if normed else None),
        feedforward=deepseek.read_sigmoid_experts(config, DEFAULTS, groups=1, active_groups=1),
        biases=Biases(qkv=config.get("attention_bias", False)),
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    rope = config.position_embedding
    experts = config.feedforward
    if not isinstance(rope, Rope) or not isinstance(experts, MixtureOfExperts):
        return None
    if not isinstance(experts.network, SwiGLU):
        return None
    return {
        **llama.write_sizes(config),
        "hidden_act": "silu",
        **write_partial_rope(rope),
        "attention_bias": config.biases.qkv,
        "use_qk_norm": config.attention.qk_norm is not None,
        **deepseek.write_experts(config, experts),
        **deepseek.write_sigmoid_choice(experts),
    }


GLM4_MOE = Family(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    TENSORS,
    _read,
    _write,
    # The layer that predicts the token after the next one, in GLM-4.5-Air and in GLM-4.5.
    surplus=r"model\.layers\.(46|92)\..*",
)
