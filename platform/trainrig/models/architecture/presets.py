"""Presets of published models and of a series of small ones (the ladder), by `[model] preset`.

Sizes and constants are those of each model's published config.json, or of its paper where there is
none. A preset without a vocabulary size takes the tokenizer's.
tests/models/architecture/test_presets.py checks the number of parameters of each.
"""

from collections.abc import Mapping
from typing import Any

Preset = dict[str, Any]

_LLAMA_INIT: Preset = {"initialisation": {"kind": "LlamaInit"}}


def _rope(theta: float, **scaling: Any) -> Preset:
    return {"kind": "Rope", "theta": theta, **({"scaling": scaling} if scaling else {})}


def _rms(epsilon: float, **more: Any) -> Preset:
    return {"kind": "RMSNorm", "epsilon": epsilon, **more}


def _sizes(
    layers: int,
    channels: int,
    heads: int,
    kv_heads: int,
    feedforward_channels: int,
    vocabulary: int,
    positions: int,
    head_channels: int | None = None,
) -> Preset:
    given = {
        "layers": layers,
        "channels": channels,
        "heads": heads,
        "kv_heads": kv_heads,
        "feedforward_channels": feedforward_channels,
        "vocabulary": vocabulary,
        "positions": positions,
    }
    return given if head_channels is None else given | {"head_channels": head_channels}


# Sources: Radford et al. 2019 and Brown et al. 2020 (arXiv:2005.14165, table 2.1). Every second
# layer of GPT-3 had banded attention of an unpublished width; here all layers are dense.
_GPT: Preset = {
    "norm": {"kind": "LayerNorm", "epsilon": 1e-5},
    "position_embedding": {"kind": "LearnedPositions"},
    "feedforward": {"kind": "GELU"},
    "biases": {"qkv": True, "output": True, "feedforward": True},
}

# Llama 2: arXiv:2307.09288. 3 to 3.3: arXiv:2407.21783; the only Llama 3 with 405B is 3.1.
_LLAMA_2: Preset = _LLAMA_INIT | {"tie_embeddings": False, "norm": _rms(1e-5)}
_LLAMA_3: Preset = _LLAMA_2 | {"position_embedding": _rope(500_000.0)}
_LLAMA_3_1: Preset = _LLAMA_2 | {
    "position_embedding": _rope(500_000.0, kind="Llama3Scaling", factor=8.0)
}
_LLAMA_3_2: Preset = _LLAMA_2 | {
    "position_embedding": _rope(500_000.0, kind="Llama3Scaling", factor=32.0),
    "tie_embeddings": True,
}

# Qwen2.5: arXiv:2412.15115. Qwen3: arXiv:2505.09388.
_QWEN_3: Preset = _LLAMA_INIT | {
    "position_embedding": _rope(1_000_000.0),
    "norm": _rms(1e-6),
    "attention": {"qk_norm": "head"},
}
_QWEN_3_UNTIED: Preset = _QWEN_3 | {"tie_embeddings": False}


def _qwen_3_experts(expert_channels: int) -> Preset:
    mixture = {
        "kind": "MixtureOfExperts",
        "experts": 128,
        "active": 8,
        "expert_channels": expert_channels,
        "balance_loss": 0.001,
        "router_z_loss": 0.0,
    }
    return _QWEN_3_UNTIED | {"feedforward": mixture}


def _gemma_2(channels: int, query_channels: int) -> Preset:
    """Return the preset of a Gemma 2 model (arXiv:2408.00118)."""
    return _LLAMA_INIT | {
        "norm": _rms(1e-6, unit_offset=True),
        "block": {"kind": "SandwichNorm"},
        "feedforward": {"kind": "GEGLU"},
        "attention": {
            "window": {"size": 4096, "pattern": ("local", "global")},
            "logit_cap": 50.0,
            "query_scale": query_channels**-0.5,
        },
        "logit_cap": 30.0,
        "embedding_multiplier": channels**0.5,
    }


def _gemma_3(channels: int, query_channels: int, window: int, factor: float) -> Preset:
    """Return the preset of a Gemma 3 language model (arXiv:2503.19786)."""
    scaling = {"kind": "LinearInterpolation", "factor": factor} if factor > 1 else {}
    return _LLAMA_INIT | {
        "norm": _rms(1e-6, unit_offset=True),
        "block": {"kind": "SandwichNorm"},
        "feedforward": {"kind": "GEGLU"},
        "position_embedding": _rope(1_000_000.0, **scaling),
        "attention": {
            "window": {
                "size": window,
                "pattern": ("local",) * 5 + ("global",),
                "rope": {"theta": 10_000.0},
            },
            "qk_norm": "head",
            "query_scale": query_channels**-0.5,
        },
        "embedding_multiplier": channels**0.5,
    }


# arXiv:2501.00656.
_OLMO_2: Preset = _LLAMA_INIT | {
    "position_embedding": _rope(500_000.0),
    "norm": _rms(1e-6),
    "block": {"kind": "OutputNorm"},
    "attention": {"qk_norm": "projection"},
    "tie_embeddings": False,
}

# arXiv:2310.06825, arXiv:2401.04088.
_MISTRAL: Preset = _LLAMA_2 | {"attention": {"window": {"size": 4096}}}
_MIXTRAL: Preset = _LLAMA_2 | {
    "position_embedding": _rope(1_000_000.0),
    "feedforward": {
        "kind": "MixtureOfExperts",
        "experts": 8,
        "active": 2,
        "balance_loss": 0.02,
        "router_z_loss": 0.0,
    },
}

# arXiv:2502.02737.
_SMOLLM_2: Preset = _LLAMA_INIT | {"position_embedding": _rope(100_000.0), "norm": _rms(1e-5)}


def _bert(segments: int, epsilon: float, offset: int) -> Preset:
    """Return the preset of a BERT (arXiv:1810.04805) or RoBERTa model (arXiv:1907.11692)."""
    return _LLAMA_INIT | {
        "kind": "Encoder",
        "segments": segments,
        "position_embedding": {"kind": "LearnedPositions"},
        "positions_offset": offset,
        "norm": {"kind": "LayerNorm", "epsilon": epsilon},
        "block": {"kind": "PostNorm"},
        "feedforward": {"kind": "GELU", "tanh": False},
        "biases": {"qkv": True, "output": True, "feedforward": True, "head": True},
        "transform": {"bias": True},
    }


_BERT = _bert(2, 1e-12, 0)
_ROBERTA = _bert(1, 1e-5, 2)


def _electra(embedding_channels: int, heads: int, generator_channels: int) -> Preset:
    """Return the preset of an ELECTRA model (arXiv:2003.10555, table 6).

    `heads` are the generator's attention heads, as in the published checkpoints.
    """
    return _BERT | {
        "head": "replaced",
        "embedding_channels": embedding_channels,
        "pooler": "GELU",
        "generator": {
            "channels": generator_channels,
            "heads": heads,
            "feedforward_channels": 4 * generator_channels,
        },
    }


# arXiv:2412.13663.
_MODERNBERT: Preset = _LLAMA_INIT | {
    "kind": "Encoder",
    "position_embedding": _rope(160_000.0),
    "attention": {
        "window": {
            "size": 129,  # 64 tokens to each side, and the token itself
            "pattern": ("global", "local", "local"),
            "rope": {"theta": 10_000.0},
        }
    },
}


def _rung(layers: int, channels: int, heads: int, feedforward_channels: int) -> Preset:
    """Return the preset of a ladder model: the default (Llama-like) parts with SmallInit."""
    return {
        "layers": layers,
        "channels": channels,
        "heads": heads,
        "feedforward_channels": feedforward_channels,
        "initialisation": {"kind": "SmallInit"},
    }


PRESETS: Mapping[str, Preset] = {
    "gpt-2-1.5b": _GPT | _sizes(48, 1600, 25, 25, 6400, 50_257, 1024),
    "gpt-3-175b": _GPT | _sizes(96, 12_288, 96, 96, 49_152, 50_257, 2048),
    "llama-2-7b": _LLAMA_2 | _sizes(32, 4096, 32, 32, 11_008, 32_000, 4096),
    "llama-2-70b": _LLAMA_2 | _sizes(80, 8192, 64, 8, 28_672, 32_000, 4096),
    "llama-3-8b": _LLAMA_3 | _sizes(32, 4096, 32, 8, 14_336, 128_256, 8192),
    "llama-3-70b": _LLAMA_3 | _sizes(80, 8192, 64, 8, 28_672, 128_256, 8192),
    "llama-3-405b": _LLAMA_3_1 | _sizes(126, 16_384, 128, 8, 53_248, 128_256, 131_072),
    "llama-3.1-8b": _LLAMA_3_1 | _sizes(32, 4096, 32, 8, 14_336, 128_256, 131_072),
    "llama-3.1-70b": _LLAMA_3_1 | _sizes(80, 8192, 64, 8, 28_672, 128_256, 131_072),
    "llama-3.2-1b": _LLAMA_3_2 | _sizes(16, 2048, 32, 8, 8192, 128_256, 131_072),
    "llama-3.2-3b": _LLAMA_3_2 | _sizes(28, 3072, 24, 8, 8192, 128_256, 131_072),
    "llama-3.3-70b": _LLAMA_3_1 | _sizes(80, 8192, 64, 8, 28_672, 128_256, 131_072),
    "mistral-7b": _MISTRAL | _sizes(32, 4096, 32, 8, 14_336, 32_000, 32_768),
    "mixtral-8x7b": _MIXTRAL | _sizes(32, 4096, 32, 8, 14_336, 32_000, 32_768),
    "qwen-2.5-72b": _LLAMA_2
    | {"position_embedding": _rope(1_000_000.0), "biases": {"qkv": True}}
    | _sizes(80, 8192, 64, 8, 29_568, 152_064, 131_072),
    "qwen-3-0.6b": _QWEN_3 | _sizes(28, 1024, 16, 8, 3072, 151_936, 40_960, 128),
    "qwen-3-1.7b": _QWEN_3 | _sizes(28, 2048, 16, 8, 6144, 151_936, 40_960, 128),
    "qwen-3-4b": _QWEN_3 | _sizes(36, 2560, 32, 8, 9728, 151_936, 40_960, 128),
    "qwen-3-8b": _QWEN_3_UNTIED | _sizes(36, 4096, 32, 8, 12_288, 151_936, 40_960, 128),
    "qwen-3-14b": _QWEN_3_UNTIED | _sizes(40, 5120, 40, 8, 17_408, 151_936, 40_960, 128),
    "qwen-3-32b": _QWEN_3_UNTIED | _sizes(64, 5120, 64, 8, 25_600, 151_936, 40_960, 128),
    "qwen-3-30b-a3b": _qwen_3_experts(768) | _sizes(48, 2048, 32, 4, 6144, 151_936, 40_960, 128),
    "qwen-3-235b-a22b": _qwen_3_experts(1536)
    | _sizes(94, 4096, 64, 4, 12_288, 151_936, 40_960, 128),
    "gemma-2-2b": _gemma_2(2304, 256) | _sizes(26, 2304, 8, 4, 9216, 256_000, 8192, 256),
    "gemma-2-9b": _gemma_2(3584, 256) | _sizes(42, 3584, 16, 8, 14_336, 256_000, 8192, 256),
    "gemma-2-27b": _gemma_2(4608, 144) | _sizes(46, 4608, 32, 16, 36_864, 256_000, 8192, 128),
    "gemma-3-1b": _gemma_3(1152, 256, 512, 1) | _sizes(26, 1152, 4, 1, 6912, 262_144, 32_768, 256),
    "gemma-3-4b": _gemma_3(2560, 256, 1024, 8)
    | _sizes(34, 2560, 8, 4, 10_240, 262_208, 131_072, 256),
    "gemma-3-12b": _gemma_3(3840, 256, 1024, 8)
    | _sizes(48, 3840, 16, 8, 15_360, 262_208, 131_072, 256),
    "gemma-3-27b": _gemma_3(5376, 168, 1024, 8)
    | _sizes(62, 5376, 32, 16, 21_504, 262_208, 131_072, 128),
    "olmo-2-1b": _OLMO_2 | _sizes(16, 2048, 16, 16, 8192, 100_352, 4096),
    "olmo-2-7b": _OLMO_2 | _sizes(32, 4096, 32, 32, 11_008, 100_352, 4096),
    "olmo-2-13b": _OLMO_2 | _sizes(40, 5120, 40, 40, 13_824, 100_352, 4096),
    "olmo-2-32b": _OLMO_2 | _sizes(64, 5120, 40, 8, 27_648, 100_352, 4096),
    "smollm-2-135m": _SMOLLM_2 | _sizes(30, 576, 9, 3, 1536, 49_152, 8192),
    "smollm-2-360m": _SMOLLM_2 | _sizes(32, 960, 15, 5, 2560, 49_152, 8192),
    "smollm-2-1.7b": _SMOLLM_2
    | {"position_embedding": _rope(130_000.0)}
    | _sizes(24, 2048, 32, 32, 8192, 49_152, 8192),
    "bert-base": _BERT | _sizes(12, 768, 12, 12, 3072, 30_522, 512),
    "bert-large": _BERT | _sizes(24, 1024, 16, 16, 4096, 30_522, 512),
    "roberta-base": _ROBERTA | _sizes(12, 768, 12, 12, 3072, 50_265, 512),
    "roberta-large": _ROBERTA | _sizes(24, 1024, 16, 16, 4096, 50_265, 512),
    "electra-small": _electra(128, 1, 64) | _sizes(12, 256, 4, 4, 1024, 30_522, 512),
    "electra-base": _electra(768, 4, 256) | _sizes(12, 768, 12, 12, 3072, 30_522, 512),
    "electra-large": _electra(1024, 4, 256) | _sizes(24, 1024, 16, 16, 4096, 30_522, 512),
    "modernbert-base": _MODERNBERT | _sizes(22, 768, 12, 12, 1152, 50_368, 8192),
    "modernbert-large": _MODERNBERT | _sizes(28, 1024, 16, 16, 2624, 50_368, 8192),
    # The ladder, named by the number of parameters without the embedding.
    "ladder-1m": _rung(5, 128, 4, 384),
    "ladder-2m": _rung(5, 192, 6, 512),
    "ladder-5m": _rung(6, 256, 8, 704),
    "ladder-10m": _rung(6, 384, 6, 1024),
    "ladder-20m": _rung(8, 448, 7, 1216),
    "ladder-50m": _rung(10, 640, 10, 1728),
    "ladder-100m": _rung(14, 768, 12, 2048),
    "ladder-200m": _rung(16, 1024, 16, 2752),
    "ladder-500m": _rung(23, 1344, 21, 3584),
    "ladder-1b": _rung(20, 2048, 32, 5504),
}


def with_preset(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model table `given` with the values of its preset filled in.

    A nested table of `given` overrides the preset's table key by key, unless its `kind` differs.
    Raises KeyError for an unknown preset.
    """
    merged = dict(given)
    name = merged.pop("preset", None)
    return merged if name is None else _merge_tables(PRESETS[name], merged)


def _merge_tables(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **given}
    for key, value in given.items():
        table = defaults.get(key)
        if isinstance(table, Mapping) and isinstance(value, Mapping):
            same = "kind" not in table or value.get("kind", table["kind"]) == table["kind"]
            merged[key] = _merge_tables(table, value) if same else value
    return merged
