"""Floor 2: networks as plain functions of token ids, and the way in and out of Hugging Face.

Nothing here knows of batches, losses, optimizers or how many devices there are.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from trainrig.config.field_marks import FitsSeveral
from trainrig.models.architecture.presets import PRESETS
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.encoder.config import EncoderConfig
from trainrig.models.encoder_decoder.config import EncoderDecoderConfig

ENCODER_DECODER = "EncoderDecoder"  # its `kind`
_CLASSES: Mapping[str, type[DecoderConfig]] = {
    "Decoder": DecoderConfig,
    "Encoder": EncoderConfig,
    ENCODER_DECODER: EncoderDecoderConfig,
}


def _find_kind(given: Mapping[str, Any]) -> Any:
    """The `kind` of the model that a table describes; most say none, and are decoders."""
    preset = PRESETS.get(str(given.get("preset")), {})
    return given.get("kind", preset.get("kind", "Decoder"))


def find_model_class(given: Mapping[str, Any]) -> type[DecoderConfig]:
    """The settings that the table `given` of a run file or a checkpoint is to be read as."""
    return _CLASSES.get(_find_kind(given), DecoderConfig)


def _add_kind(given: Any) -> Any:
    return {**given, "kind": _find_kind(given)} if isinstance(given, Mapping) else given


# A new kind of model is a member here, and of `_CLASSES`.
Model = Annotated[
    DecoderConfig | EncoderConfig | EncoderDecoderConfig,
    Field(discriminator="kind"),
    BeforeValidator(_add_kind),
    FitsSeveral(),
]

__all__ = ["ENCODER_DECODER", "Model", "find_model_class"]
