"""Continued pretraining: start from another run's weights, with a new schedule and new data."""

import logging
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import describe_table_difference
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint

log = logging.getLogger(__name__)
# Share of the earlier run's peak learning rate above which more of the old data is forgotten than
# necessary. A rule of thumb; 10% to 30% is a good start.
HIGH_RATE = 0.3
RUN_OF_CHECKPOINT = re.compile(r"(.*)/checkpoints/step_\d+/attempt-\d+")


@dataclass(frozen=True)
class InitialWeights:
    """Checkpoint whose weights a run starts with."""

    path: str
    model: DecoderConfig


def find_initial_weights(
    path: str, tokens: str, encoder: Encoder, model: DecoderConfig | None
) -> InitialWeights:
    """Find the newest complete checkpoint at `path`, a run folder or one of its checkpoints.

    Further prediction heads of the checkpoint's model are ignored. Raises ConfigError if its model
    differs from `model` (None accepts any), and DataError if `tokens`, encoded with `encoder`, were
    made by another tokenizer than the checkpoint's.
    """
    found = checkpoint.resolve(storage.make_absolute(path))
    there, tokenizer = checkpoint.describe(found)
    if Encoder(tokenizer).fingerprint != encoder.fingerprint:
        raise DataError(
            f"{tokens}: the tokenizer differs from the tokenizer of continue_from; tokenize "
            f"the documents with {found}/tokenizer.json"
        )
    if model is not None:
        settled = model.for_tokenizer(there.shape.vocabulary).without_further_heads
        differing = describe_table_difference(
            there.model_dump(mode="json"), settled.model_dump(mode="json")
        )
        if differing:
            raise ConfigError(
                f"continue_from: {found} has another model ({differing}); leave out [model], and "
                "it is taken from there. Longer sequences are a stage of [[context]] from step 0"
            )
    return InitialWeights(found, there)


def warn_of_high_rate(path: str, peak: float) -> None:
    """Log a warning if the rate `peak` is over 30% of the peak rate of the checkpoint's run."""
    before = _read_peak_rate(path)
    if before is not None and peak > HIGH_RATE * before:
        log.warning(
            "training.optimizer.lr is %g, %.0f%% of the earlier run's %g: the model may "
            "forget; %g to %g (10%% to 30%%) is a good start",
            peak,
            100 * peak / before,
            before,
            0.1 * before,
            HIGH_RATE * before,
        )


def _read_peak_rate(path: str) -> float | None:
    """Return the peak rate of the run that made the checkpoint at `path`; None if unknown."""
    run = RUN_OF_CHECKPOINT.fullmatch(path)
    file = storage.join(run[1], "run.toml") if run else ""
    if not run or not storage.exists(file):
        return None
    written: Any = tomllib.loads(storage.read(file).decode())
    rate = written.get("training", {}).get("optimizer", {}).get("lr")
    return float(rate) if rate is not None else None
