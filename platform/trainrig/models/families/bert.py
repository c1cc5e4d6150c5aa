"""BERT, RoBERTa and ELECTRA: encoders with learnt positions and norms after each part.

Sources: Devlin et al. 2018, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692; Clark et al.
2020, arXiv:2003.10555.

RoBERTa's positions begin after the padding's. ELECTRA has a head that finds replaced tokens, and
perhaps a narrower embedding; its generator has a head for tokens.
"""

from typing import Any

from trainrig.models.architecture.attention_settings import Biases
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.decoder_fields import Head
from trainrig.models.architecture.encoder_configs import EncoderConfig, HeadTransform
from trainrig.models.architecture.layer_settings import GELU, LayerNorm, LearnedPositions, PostNorm
from trainrig.models.families.mapping import Family, HubConfig, TensorName, map_modules, map_one

# Whether each is the tanh approximation.
ACTIVATIONS = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True}


def list_body(prefix: str) -> tuple[TensorName, ...]:
    """Return the tensors of all but the head; their names begin with `prefix`."""
    embeddings = f"{prefix}.embeddings"
    layer = f"{prefix}.encoder.layer.{{layer}}"
    return (
        map_one("embedding.weight", f"{embeddings}.word_embeddings.weight"),
        map_one("position_embedding.weight", f"{embeddings}.position_embeddings.weight"),
        map_one("segment_embedding.weight", f"{embeddings}.token_type_embeddings.weight"),
        *map_modules(
            {
                "embedding_norm": f"{embeddings}.LayerNorm",
                "layers.{layer}.attention.query": f"{layer}.attention.self.query",
                "layers.{layer}.attention.key": f"{layer}.attention.self.key",
                "layers.{layer}.attention.value": f"{layer}.attention.self.value",
                "layers.{layer}.attention.output": f"{layer}.attention.output.dense",
                "layers.{layer}.attention_norm": f"{layer}.attention.output.LayerNorm",
                "layers.{layer}.feedforward.up": f"{layer}.intermediate.dense",
                "layers.{layer}.feedforward.down": f"{layer}.output.dense",
                "layers.{layer}.feedforward_norm": f"{layer}.output.LayerNorm",
            }
        ),
    )


TENSORS = (
    *list_body("bert"),
    *map_modules(
        {
            "transform.dense": "cls.predictions.transform.dense",
            "transform.norm": "cls.predictions.transform.LayerNorm",
        }
    ),
    map_one("head_bias", "cls.predictions.bias"),
)


def list_heads(pooler: str, classes: str) -> dict[Head, tuple[TensorName, ...]]:
    """Return the tensors of the heads for classes and spans, given the names of their modules.

    The pooler comes before the classes.
    """
    return {
        "classes": map_modules({"pooler": pooler, "head": classes}),
        "spans": map_modules({"head": "qa_outputs"}),
    }


HEADS = list_heads("bert.pooler.dense", "classifier")
# Published files also have the head of next-sentence prediction, and repeat tied parameters.
SURPLUS = r"(bert\.)?pooler\..*|cls\.seq_relationship\..*|cls\.predictions\.decoder\..*"


def read_settings(config: HubConfig, positions: int) -> dict[str, Any]:
    """Return the settings that BERT and RoBERTa share, from a config.json.

    `positions` is Transformers' default.
    """
    config.check_only("hidden_act", *ACTIVATIONS)
    config.check_only("position_embedding_type", "absolute", None)
    config.check_only("is_decoder", False)
    config.check_only("add_cross_attention", False)
    config.check_only("tie_word_embeddings", True)
    return {
        "layers": config.need("num_hidden_layers"),
        "channels": config.need("hidden_size"),
        "heads": config.need("num_attention_heads"),
        "feedforward_channels": config.need("intermediate_size"),
        "vocabulary": config.need("vocab_size"),
        "positions": config.get("max_position_embeddings", positions),
        "position_embedding": LearnedPositions(),
        "segments": config.get("type_vocab_size", 2),
        "feedforward": GELU(tanh=ACTIVATIONS[config.get("hidden_act", "gelu")]),
        "norm": LayerNorm(epsilon=config.get("layer_norm_eps", 1e-12)),
        "block": PostNorm(),
        "biases": Biases(qkv=True, output=True, feedforward=True, head=True),
        "embedding_norm": True,
        "transform": HeadTransform(bias=True),
    }


def write_settings(config: DecoderConfig) -> dict[str, Any] | None:
    """Return the config.json keys that `read_settings` reads, or None for another kind of model."""
    shape = config.shape
    network = config.feedforward
    if not isinstance(config, EncoderConfig) or not isinstance(network, GELU):
        return None
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.channels,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feedforward_channels,
        "max_position_embeddings": config.positions + config.positions_offset,
        "type_vocab_size": config.segments,
        "hidden_act": "gelu_new" if network.tanh else "gelu",
        "layer_norm_eps": config.norm.epsilon,
        "initializer_range": config.initial_std,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "is_decoder": False,
        "add_cross_attention": False,
    }


def _read_bert(config: HubConfig) -> DecoderConfig:
    return config.build(EncoderConfig, **read_settings(config, 512))


BERT = Family(
    "bert",
    "BertForMaskedLM",
    TENSORS,
    _read_bert,
    write_settings,
    prefix="bert.",
    heads=HEADS,
    surplus=SURPLUS,
)


ROBERTA_TENSORS = (
    *list_body("roberta"),
    *map_modules({"transform.dense": "lm_head.dense", "transform.norm": "lm_head.layer_norm"}),
    map_one("head_bias", "lm_head.bias"),
)
ROBERTA_SURPLUS = r"(roberta\.)?pooler\..*|lm_head\.decoder\..*"


def _read_roberta(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "gelu")  # the head's activation is fixed
    settings = read_settings(config, 512)
    # Positions are counted from the padding id on, so the first pad_token_id + 1 entries are
    # unused.
    offset = config.get("pad_token_id", 1) + 1
    settings |= {"positions_offset": offset, "positions": settings["positions"] - offset}
    return config.build(EncoderConfig, **settings)


def _write_roberta(config: DecoderConfig) -> dict[str, Any] | None:
    settings = write_settings(config)
    if settings is None or not isinstance(config, EncoderConfig) or not config.positions_offset:
        return None
    return settings | {"pad_token_id": config.positions_offset - 1}


ROBERTA = Family(
    "roberta",
    "RobertaForMaskedLM",
    ROBERTA_TENSORS,
    _read_roberta,
    _write_roberta,
    prefix="roberta.",
    heads=list_heads("classifier.dense", "classifier.out_proj"),
    surplus=ROBERTA_SURPLUS,
)


ELECTRA_TENSORS = (
    *list_body("electra"),
    *map_modules(
        {
            "embedding_projection": "electra.embeddings_project",
            "transform.dense": "generator_predictions.dense",
            "transform.norm": "generator_predictions.LayerNorm",
        }
    ),
    map_one("head_bias", "generator_lm_head.bias"),
)
ELECTRA_HEADS: dict[Head, tuple[TensorName, ...]] = {
    **list_heads("classifier.dense", "classifier.out_proj"),
    "replaced": map_modules(
        {
            "transform.dense": "discriminator_predictions.dense",
            "head": "discriminator_predictions.dense_prediction",
        }
    ),
}
# Published files repeat the tied weight.
ELECTRA_SURPLUS = r"generator_lm_head\.weight"


def _read_electra(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "gelu")  # the heads' activation is fixed
    channels = config.need("hidden_size")
    width = config.get("embedding_size", 128)
    return config.build(
        EncoderConfig,
        **read_settings(config, 512),
        embedding_channels=None if width == channels else width,
        pooler="GELU",
    )


def _write_electra(config: DecoderConfig) -> dict[str, Any] | None:
    settings = write_settings(config)
    if settings is None or not isinstance(config, EncoderConfig):
        return None
    return settings | {"embedding_size": config.embedding_width}


ELECTRA = Family(
    "electra",
    "ElectraForMaskedLM",
    ELECTRA_TENSORS,
    _read_electra,
    _write_electra,
    prefix="electra.",
    heads=ELECTRA_HEADS,
    surplus=ELECTRA_SURPLUS,
)
