"""The evaluated model, loaded onto its device."""

from dataclasses import dataclass

import torch

from trainrig.errors import ConfigError
from trainrig.evaluate.run_file import Evaluation
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.decoder import Decoder
from trainrig.parallel.mesh import find_local_device
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint


@dataclass(frozen=True)
class OpenedModel:
    """A model on its device, with its tokenizer."""

    model: Decoder
    encoder: Encoder

    @classmethod
    def load(cls, run: Evaluation) -> "OpenedModel":
        """Load the model and the tokenizer of the run's checkpoint.

        Raises ConfigError if the device is missing, or the model cannot do the run's evaluations.
        """
        if run.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device = 'cuda', but this machine has no GPU; leave `device` out")
        torch.set_num_threads(run.threads)
        device = find_local_device() if run.device == "auto" else torch.device(run.device)
        opened = checkpoint.open_model(run.checkpoint)
        if opened.config.head != "tokens":
            raise ConfigError(
                f"checkpoint: {opened.path} is {opened.config.description}, which computes no "
                "probabilities of text; use `trainrig score` with it"
            )
        if isinstance(opened.config, EncoderDecoderConfig):
            raise ConfigError(
                f"checkpoint: {opened.path} is an encoder-decoder, which `evaluate` does not "
                "support; see its held-out loss in the metrics of its run"
            )
        if opened.config.bidirectional and (run.tasks or run.conversations):
            raise ConfigError(
                f"checkpoint: {opened.path} is an encoder, which cannot continue a text; leave "
                "`tasks` and `conversations` out, and set `tokens`"
            )
        model = opened.build().to(device=device, dtype=getattr(torch, run.dtype))
        return cls(model, Encoder(opened.tokenizer, opened.path, opened.beside))
