"""Decoder, encoder and encoder-decoder networks, and their conversion from and to Hugging Face.

A model here is a plain function of token ids. Nothing in this folder knows of batches, losses,
optimizers or the number of devices.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from trainrig.config.field_marks import FitsSeveral
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderConfig, EncoderDecoderConfig
from trainrig.models.architecture.presets import PRESETS

ENCODER_DECODER = "EncoderDecoder"  # the value of `kind` in run files
_CLASSES: Mapping[str, type[DecoderConfig]] = {
    "Decoder": DecoderConfig,
    "Encoder": EncoderConfig,
    ENCODER_DECODER: EncoderDecoderConfig,
}


def _find_kind(given: Mapping[str, Any]) -> Any:
    """Return the `kind` of the model that a table describes: given, of its preset, or "Decoder"."""
    preset = PRESETS.get(str(given.get("preset")), {})
    return given.get("kind", preset.get("kind", "Decoder"))


def find_model_class(given: Mapping[str, Any]) -> type[DecoderConfig]:
    """Return the settings class for the `[model]` table `given` of a run file or checkpoint."""
    return _CLASSES.get(_find_kind(given), DecoderConfig)


def _add_kind(given: Any) -> Any:
    return {**given, "kind": _find_kind(given)} if isinstance(given, Mapping) else given


# Add a new kind of model both here and to `_CLASSES`.
Model = Annotated[
    DecoderConfig | EncoderConfig | EncoderDecoderConfig,
    Field(discriminator="kind"),
    BeforeValidator(_add_kind),
    FitsSeveral(),
]
