"""RoBERTa: BERT with positions that begin after the padding's (Liu et al. 2019).

Source: arXiv:1907.11692.
"""

from typing import Any

from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.encoder.config import EncoderConfig
from trainrig.models.families.encoders.bert import (
    PARTS,
    list_body,
    list_heads,
    read_settings,
    write_settings,
)
from trainrig.models.families.mapping import Family, HubConfig, map_one

TENSORS = (
    *list_body("roberta"),
    *(map_one(f"transform.dense.{part}", f"lm_head.dense.{part}") for part in PARTS),
    *(map_one(f"transform.norm.{part}", f"lm_head.layer_norm.{part}") for part in PARTS),
    map_one("head_bias", "lm_head.bias"),
)
SURPLUS = r"(roberta\.)?pooler\..*|lm_head\.decoder\..*"


def _read(config: HubConfig) -> DecoderConfig:
    config.check_only("hidden_act", "gelu")  # the head's activation is fixed
    settings = read_settings(config, 512)
    # Positions are counted from the padding id on, so the first pad_token_id + 1 entries are
    # unused.
    offset = config.get("pad_token_id", 1) + 1
    settings |= {"positions_offset": offset, "positions": settings["positions"] - offset}
    return config.build(EncoderConfig, **settings)


def _write(config: DecoderConfig) -> dict[str, Any] | None:
    settings = write_settings(config)
    if settings is None or not isinstance(config, EncoderConfig) or not config.positions_offset:
        return None
    return settings | {"pad_token_id": config.positions_offset - 1}


ROBERTA = Family(
    "roberta",
    "RobertaForMaskedLM",
    TENSORS,
    _read,
    _write,
    prefix="roberta.",
    heads=list_heads("classifier.dense", "classifier.out_proj", "qa_outputs"),
    surplus=SURPLUS,
)
