"""Command R and R7B: both parts of a layer in parallel after one layer norm without a bias.

Neighbouring channels are rotated together. Command R7B and Command A (`cohere2`) have a window in
three of four layers, and no rotary positions in the others (arXiv:2504.00698).
"""

from typing import Any

from trainrig.errors import DataError
from trainrig.models.architecture.attention_settings import AttentionSettings
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import LayerNorm, ParallelBlock
from trainrig.models.families import keys, llama
from trainrig.models.families.glm import PAIRED_ATTENTION
from trainrig.models.families.mapping import HubConfig
from trainrig.models.families.rope_tables import read_rope

TENSORS = (*llama.EMBEDDINGS, llama.NORMS[0], *PAIRED_ATTENTION, *llama.GATED, *llama.HEAD)


def _read_norm(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    return {"norm": LayerNorm(epsilon=config.get("layer_norm_eps", 1e-5), bias=False)}


def _list_keys(rope: keys.Keys) -> tuple[keys.Keys, ...]:
    """Return the keys that both families share, and the keys of `rope`."""
    return (
        keys.convert_sizes(positions=8192, epsilon=1e-5, tied=True),
        keys.Keys(_read_norm, lambda config: {"layer_norm_eps": config.norm.epsilon}),
        keys.SILU,
        rope,
        keys.convert_bias("attention_bias", "qkv", "output"),
        keys.convert_key("logit_multiplier", "logit_scale", 0.0625),
        keys.assume(block=ParallelBlock()),
    )


COHERE = keys.declare_family(
    "cohere",
    "CohereForCausalLM",
    TENSORS,
    (
        *_list_keys(keys.convert_rope(theta=500_000.0)),
        # That norm would have separate gains for every head.
        keys.fix_key("use_qk_norm", False, None),
    ),
    heads={},  # Transformers has no classifier of these families.
)


def _read_cohere2(config: HubConfig, before: dict[str, Any]) -> dict[str, Any]:
    layers = before["layers"]
    every = config.get_positive("sliding_window_pattern", 4)
    kinds = config.layer_types(layers) or keys.repeat_kinds(layers, every)
    size = config.take_positive("sliding_window", 4096)
    if size is None or keys.LOCAL not in kinds:
        raise DataError(
            f"{config.path}: no layer has a sliding window, so none has positions; only models "
            "with sliding_window and layers of sliding_attention can be imported as cohere2"
        )
    pattern = tuple("rotated" if kind == keys.LOCAL else "unrotated" for kind in kinds)
    return {
        "head_channels": None,  # Transformers reads no `head_dim` here
        "position_embedding": read_rope(config).model_copy(update={"pattern": pattern}),
        "attention": AttentionSettings(window=keys.build_window(kinds, size, before["positions"])),
    }


def _write_cohere2(config: DecoderConfig) -> dict[str, Any] | None:
    window = config.attention.window
    if window is None:
        return None
    return {"sliding_window": window.size, "layer_types": keys.list_layer_types(config)}


COHERE2 = keys.declare_family(
    "cohere2",
    "Cohere2ForCausalLM",
    TENSORS,
    (
        *_list_keys(keys.convert_rope()),
        keys.Keys(_read_cohere2, _write_cohere2),
    ),
    heads={},
)
