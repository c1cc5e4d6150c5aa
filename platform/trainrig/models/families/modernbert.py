"""ModernBERT: rotary positions, GEGLU, mostly local layers (Warner et al. 2024).

Source: arXiv:2412.13663.
"""

from collections.abc import Mapping
from typing import Any, Literal

from trainrig.models.architecture.attention_settings import AttentionSettings, Biases, SlidingWindow
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderConfig, HeadTransform
from trainrig.models.architecture.layer_settings import GEGLU, LayerNorm, Rope
from trainrig.models.families import mapping, rope_tables

LAYERS = "layers.{layer}"
# Queries, keys and values are one matrix, and so are the gate and the part that it multiplies.
TENSORS = (
    mapping.map_one("embedding.weight", "model.embeddings.tok_embeddings.weight"),
    *mapping.map_modules({"embedding_norm": "model.embeddings.norm"}),
    *(
        mapping.TensorName(
            tuple(f"{LAYERS}.{name}.{part}" for name in ours), f"model.{LAYERS}.{theirs}.{part}"
        )
        for ours, theirs in (
            (("attention_norm",), "attn_norm"),
            (("attention.query", "attention.key", "attention.value"), "attn.Wqkv"),
            (("attention.output",), "attn.Wo"),
            (("feedforward_norm",), "mlp_norm"),
            (("feedforward.gate", "feedforward.up"), "mlp.Wi"),
            (("feedforward.down",), "mlp.Wo"),
        )
        for part in ("weight", "bias")
    ),
    *mapping.map_modules(
        {"norm": "model.final_norm", "transform.dense": "head.dense", "transform.norm": "head.norm"}
    ),
    mapping.map_one("head_bias", "decoder.bias"),
)
SURPLUS = r"decoder\.weight"  # published files repeat the tied weight
THETA = 160_000.0
LOCAL_THETA = 10_000.0
POOLINGS: Mapping[str, Literal["first", "mean"]] = {"cls": "first", "mean": "mean"}
GLOBAL = "full_attention"
LOCAL = "sliding_attention"


def _read(config: mapping.HubConfig) -> DecoderConfig:
    config.check_only("hidden_activation", "gelu")
    config.check_only("classifier_activation", "gelu")
    config.check_only("classifier_pooling", *POOLINGS)
    config.check_only("tie_word_embeddings", True)
    layers = config.need("num_hidden_layers")
    positions = config.get("max_position_embeddings", 8192)
    every = config.get_positive("global_attn_every_n_layers", 3)
    kinds = config.layer_types(layers) or tuple(
        LOCAL if layer % every else GLOBAL for layer in range(layers)
    )
    reach = min(config.get("local_attention", 128) // 2, positions - 1)
    far = rope_tables.read_rope(config, GLOBAL, config.get("global_rope_theta", THETA))
    near = rope_tables.read_rope(config, LOCAL, config.get("local_rope_theta", LOCAL_THETA))
    window = SlidingWindow(
        size=2 * reach + 1,
        pattern=tuple("local" if kind == LOCAL else "global" for kind in _find_shortest(kinds)),
        rope=None if near == far else near,
    )
    biased = config.get("attention_bias", False)
    wide = config.get("mlp_bias", False)
    return config.build(
        EncoderConfig,
        layers=layers,
        channels=config.need("hidden_size"),
        heads=config.need("num_attention_heads"),
        feedforward_channels=config.need("intermediate_size"),
        vocabulary=config.need("vocab_size"),
        positions=positions,
        position_embedding=far,
        attention=AttentionSettings(window=window if "local" in window.pattern else None),
        feedforward=GEGLU(tanh=False),
        norm=LayerNorm(epsilon=config.get("norm_eps", 1e-5), bias=config.get("norm_bias", False)),
        biases=Biases(
            qkv=biased, output=biased, feedforward=wide, head=config.get("decoder_bias", True)
        ),
        transform=HeadTransform(bias=config.get("classifier_bias", False)),
        pooling=POOLINGS[config.get("classifier_pooling", "cls")],
    )


def _find_shortest(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the shortest pattern that gives the kind of each layer when it is repeated."""
    for length in range(1, len(kinds)):
        if all(kind == kinds[layer % length] for layer, kind in enumerate(kinds)):
            return kinds[:length]
    return kinds


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    shape = config.shape
    window = config.attention.window
    rope = config.position_embedding
    if not isinstance(config, EncoderConfig) or not isinstance(config.feedforward, GEGLU):
        return None
    if not isinstance(rope, Rope) or not isinstance(config.norm, LayerNorm):
        return None
    local = rope if window is None or window.rope is None else window.rope
    transform = config.transform
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.channels,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feedforward_channels,
        "max_position_embeddings": config.positions,
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "classifier_pooling": "cls" if config.pooling == "first" else "mean",
        "norm_eps": config.norm.epsilon,
        "norm_bias": config.norm.bias,
        "attention_bias": config.biases.qkv,
        "mlp_bias": config.biases.feedforward,
        "decoder_bias": config.biases.head,
        "classifier_bias": transform is not None and transform.bias,
        "layer_types": [
            LOCAL if window is not None and window.is_local(layer) else GLOBAL
            for layer in range(config.layers)
        ],
        # Older readers use this count instead, which agrees if the pattern is theirs.
        "global_attn_every_n_layers": 1 if window is None else len(window.pattern),
        "local_attention": 128 if window is None else window.size - 1,
        "global_rope_theta": rope.theta,
        "local_rope_theta": local.theta,
        "rope_parameters": {
            GLOBAL: {"rope_theta": rope.theta, **rope_tables.write_rope_table(rope)},
            LOCAL: {"rope_theta": local.theta, **rope_tables.write_rope_table(local)},
        },
        "initializer_range": config.initial_std,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "mlp_dropout": 0.0,
        "tie_word_embeddings": True,
    }


CLASSIFIER = mapping.map_modules({"head": "classifier"})
MODERNBERT = mapping.Family(
    "modernbert",
    "ModernBertForMaskedLM",
    TENSORS,
    _read,
    _write,
    heads={"classes": CLASSIFIER, "spans": CLASSIFIER},
    surplus=SURPLUS,
)
