"""Floor 2: networks as plain functions of token ids, and the way in and out of Hugging Face.

Nothing here knows of batches, losses, optimizers or how many devices there are.
"""

from trainrig.models.decoder_config import DecoderConfig

Model = DecoderConfig  # a new family adds its settings: `DecoderConfig | EncoderConfig`

__all__ = ["Model"]
