"""GPT-2: learnt positions, LayerNorm, biases everywhere (Radford et al. 2019)."""

from typing import Any

from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import GELU, LayerNorm, LearnedPositions
from trainrig.models.families.mapping import Family, HubConfig, TensorName, map_modules, map_one

QKV = tuple(f"layers.{{layer}}.attention.{name}" for name in ("query", "key", "value"))
# GPT-2 stores matrices as [inputs, outputs], and queries, keys and values in one matrix.
TENSORS = (
    map_one("embedding.weight", "transformer.wte.weight"),
    map_one("position_embedding.weight", "transformer.wpe.weight"),
    TensorName(
        tuple(f"{name}.weight" for name in QKV),
        "transformer.h.{layer}.attn.c_attn.weight",
        transposed=True,
    ),
    TensorName(tuple(f"{name}.bias" for name in QKV), "transformer.h.{layer}.attn.c_attn.bias"),
    *(
        map_one(
            f"layers.{{layer}}.{ours}.{part}",
            f"transformer.h.{{layer}}.{theirs}.{part}",
            transposed=part == "weight" and "ln" not in theirs,
        )
        for ours, theirs in {
            "attention_norm": "ln_1",
            "attention.output": "attn.c_proj",
            "feedforward_norm": "ln_2",
            "feedforward.up": "mlp.c_fc",
            "feedforward.down": "mlp.c_proj",
        }.items()
        for part in ("weight", "bias")
    ),
    *map_modules({"norm": "transformer.ln_f"}),
    map_one("head.weight", "lm_head.weight"),
)
# Whether each is the tanh approximation.
ACTIVATIONS = {"gelu_new": True, "gelu_pytorch_tanh": True, "gelu": False}


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("activation_function", *ACTIVATIONS)
    config.check_only("scale_attn_weights", True)
    config.check_only("scale_attn_by_inverse_layer_idx", False)
    config.check_only("add_cross_attention", False)
    channels = config.need("n_embd")
    return config.build(
        layers=config.need("n_layer"),
        channels=channels,
        heads=config.need("n_head"),
        feedforward_channels=config.get("n_inner", 4 * channels),
        vocabulary=config.need("vocab_size"),
        positions=config.get("n_positions", 1024),
        position_embedding=LearnedPositions(),
        feedforward=GELU(tanh=ACTIVATIONS[config.get("activation_function", "gelu_new")]),
        norm=LayerNorm(epsilon=config.get("layer_norm_epsilon", 1e-5)),
        biases=Biases(qkv=True, output=True, feedforward=True),
        tie_embeddings=config.get("tie_word_embeddings", True),
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    shape = config.shape
    if not isinstance(config.feedforward, GELU):
        return None
    return {
        "vocab_size": shape.vocabulary,
        "n_embd": shape.channels,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": shape.feedforward_channels,
        "n_positions": config.positions,
        "n_ctx": config.positions,
        "activation_function": "gelu_new" if config.feedforward.tanh else "gelu",
        "layer_norm_epsilon": config.norm.epsilon,
        "initializer_range": config.initial_std,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "scale_attn_weights": True,
        "tie_word_embeddings": config.tie_embeddings,
        "use_cache": True,
    }


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    TENSORS,
    _read,
    _write,
    prefix="transformer.",
    score_architecture="GPT2ForSequenceClassification",
)
