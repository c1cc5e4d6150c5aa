"""T5 v1.1, with gated feed-forward networks (Raffel et al. 2019, Shazeer 2020).

Sources: arXiv:1910.10683 and arXiv:2002.05202. Transformers scales the input of the head unless
`tie_word_embeddings` is false, as version 1.0 does; trainrig does the same.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import AttentionSettings
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig, RelativeBias
from trainrig.models.architecture.layer_settings import GEGLU, RMSNorm
from trainrig.models.families.mapping import WRITING_LAYER, Family, HubConfig, TensorName, map_one

ENCODER = "encoder.block.{layer}"
DECODER = f"decoder.block.{WRITING_LAYER}"
OURS = "layers.{layer}"
WRITING = f"layers.{WRITING_LAYER}"
PARTS = {"query": "q", "key": "k", "value": "v", "output": "o"}
FEEDFORWARD = {"gate": "wi_0", "up": "wi_1", "down": "wo"}


def _map_layer(ours: str, theirs: str, last: int) -> tuple[TensorName, ...]:
    """Return the tensors of a layer whose feed-forward network is sublayer number `last`."""
    attention = (
        map_one(f"{ours}.attention.{part}.weight", f"{theirs}.layer.0.SelfAttention.{name}.weight")
        for part, name in PARTS.items()
    )
    dense = f"{theirs}.layer.{last}.DenseReluDense"
    feedforward = (
        map_one(f"{ours}.feedforward.{part}.weight", f"{dense}.{name}.weight")
        for part, name in FEEDFORWARD.items()
    )
    return (
        map_one(f"{ours}.attention_norm.weight", f"{theirs}.layer.0.layer_norm.weight"),
        *attention,
        map_one(f"{ours}.feedforward_norm.weight", f"{theirs}.layer.{last}.layer_norm.weight"),
        *feedforward,
    )


BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
TENSORS = (
    map_one("embedding.weight", "shared.weight"),
    *_map_layer(OURS, ENCODER, 1),
    *_map_layer(WRITING, DECODER, 2),
    map_one(f"{WRITING}.cross_norm.weight", f"{DECODER}.layer.1.layer_norm.weight"),
    *(
        map_one(
            f"{WRITING}.cross_attention.{part}.weight",
            f"{DECODER}.layer.1.EncDecAttention.{name}.weight",
        )
        for part, name in PARTS.items()
    ),
    map_one("encoder_bias.weight", f"encoder.{BIAS}"),
    map_one("decoder_bias.weight", f"decoder.{BIAS}"),
    map_one("encoder_norm.weight", "encoder.final_layer_norm.weight"),
    map_one("norm.weight", "decoder.final_layer_norm.weight"),
    map_one("head.weight", "lm_head.weight"),
)
# Older files repeat the shared embedding, and the first ones have an unused bias in
# cross-attention.
SURPLUS = r"(encoder|decoder)\.embed_tokens\.weight|decoder\..*EncDecAttention\.relative_.*"


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("is_encoder_decoder", True)
    config.need("feed_forward_proj")  # Transformers' default is "relu", of version 1.0
    config.check_only("feed_forward_proj", "gated-gelu")
    layers = config.need("num_layers")
    channels = config.need("d_model")
    tied = config.get("tie_word_embeddings", True)
    settings = {"logit_multiplier": channels**-0.5} if tied else {}
    return config.build(
        EncoderDecoderConfig,
        layers=config.get("num_decoder_layers", layers),
        encoder_layers=layers,
        channels=channels,
        heads=config.need("num_heads"),
        head_channels=config.need("d_kv"),
        feedforward_channels=config.need("d_ff"),
        vocabulary=config.need("vocab_size"),
        positions=config.get("n_positions", 512),
        position_embedding=RelativeBias(
            buckets=config.get("relative_attention_num_buckets", 32),
            farthest=config.get("relative_attention_max_distance", 128),
        ),
        feedforward=GEGLU(),
        norm=RMSNorm(epsilon=config.get("layer_norm_epsilon", 1e-6)),
        attention=AttentionSettings(query_scale=1.0),
        tie_embeddings=tied,
        **settings,
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    if not isinstance(config, EncoderDecoderConfig):
        return None
    shape = config.shape
    return {
        "vocab_size": shape.vocabulary,
        "d_model": shape.channels,
        "d_kv": shape.head_channels,
        "d_ff": shape.feedforward_channels,
        "num_layers": config.encoding_layers,
        "num_decoder_layers": shape.layers,
        "num_heads": shape.heads,
        "n_positions": config.positions,
        "relative_attention_num_buckets": config.position_embedding.buckets,
        "relative_attention_max_distance": config.position_embedding.farthest,
        "feed_forward_proj": "gated-gelu",
        "layer_norm_epsilon": config.norm.epsilon,
        "dropout_rate": 0.0,
        "tie_word_embeddings": config.tie_embeddings,
        "is_encoder_decoder": True,
    }


T5 = Family("t5", "T5ForConditionalGeneration", TENSORS, _read, _write, prefix="", surplus=SURPLUS)
