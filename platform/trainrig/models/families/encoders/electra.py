"""ELECTRA: BERT with a head that finds replaced tokens, and perhaps a narrower embedding.

Its generator has a head for tokens (Clark et al. 2020, arXiv:2003.10555).
"""

from typing import Any

from trainrig.models.architecture.decoder_fields import Head
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.encoder.config import EncoderConfig
from trainrig.models.families.encoders.bert import (
    PARTS,
    list_body,
    list_heads,
    read_settings,
    write_settings,
)
from trainrig.models.families.mapping import Family, HubConfig, TensorName, map_one

PROJECTION = tuple(
    map_one(f"embedding_projection.{part}", f"electra.embeddings_project.{part}") for part in PARTS
)
TENSORS = (
    *list_body("electra"),
    *PROJECTION,
    *(map_one(f"transform.dense.{part}", f"generator_predictions.dense.{part}") for part in PARTS),
    *(
        map_one(f"transform.norm.{part}", f"generator_predictions.LayerNorm.{part}")
        for part in PARTS
    ),
    map_one("head_bias", "generator_lm_head.bias"),
)
HEADS: dict[Head, tuple[TensorName, ...]] = {
    **list_heads("classifier.dense", "classifier.out_proj", "qa_outputs"),
    "replaced": tuple(
        map_one(f"{ours}.{part}", f"discriminator_predictions.{theirs}.{part}")
        for ours, theirs in {"transform.dense": "dense", "head": "dense_prediction"}.items()
        for part in PARTS
    ),
}
# Published files repeat the tied weight.
SURPLUS = r"generator_lm_head\.weight"


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "gelu")  # the heads' activation is fixed
    channels = config.need("hidden_size")
    width = config.get("embedding_size", 128)
    return config.build(
        EncoderConfig,
        **read_settings(config, 512),
        embedding_channels=None if width == channels else width,
        pooler="GELU",
    )


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    settings = write_settings(config)
    if settings is None or not isinstance(config, EncoderConfig):
        return None
    return settings | {"embedding_size": config.embedding_width}


ELECTRA = Family(
    "electra",
    "ElectraForMaskedLM",
    TENSORS,
    _read,
    _write,
    prefix="electra.",
    heads=HEADS,
    surplus=SURPLUS,
)
