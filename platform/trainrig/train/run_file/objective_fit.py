"""Checks that a model fits an objective: its kind, its additional parts and its positions."""

from trainrig.models import ENCODER_DECODER
from trainrig.models.architecture.attention_settings import find_maskless_setting
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.objectives import (
    CausalLM,
    MaskedLM,
    PrefixLM,
    ReplacedTokenDetection,
    SpanCorruption,
)
from trainrig.objectives.denoising.row_shapes import (
    count_further_heads,
)


def check_extra_parts(objective: CausalLM, model: DecoderConfig) -> None:
    """Raise ValueError unless `model` has exactly the additional parts that `objective` trains.

    They are the generator of ReplacedTokenDetection and further prediction heads.
    """
    heads = count_further_heads(objective)
    if heads != model.further_heads and not model.bidirectional:
        raise ValueError(
            f"model.further_heads ({model.further_heads}) is not {heads}, the number of further "
            f"tokens that objective {objective.kind} predicts; set model.further_heads = {heads}"
            + ("" if heads else ', or objective.kind = "MultiTokenPrediction"')
        )
    detects = isinstance(objective, ReplacedTokenDetection)
    if detects and model.generator_model is None:
        raise ValueError(
            "objective ReplacedTokenDetection trains a small generator with the model, "
            'but the model has none: set model.kind = "Encoder", model.head = "replaced" '
            'and [model.generator], or start from a preset such as "electra-small"'
        )
    if not detects and model.head == "replaced":
        raise ValueError(
            f'model.head: "replaced" predicts whether a token was replaced, which objective '
            f'{objective.kind} does not train; set objective.kind = "ReplacedTokenDetection"'
        )


def check_fit(objective: CausalLM, model: DecoderConfig, convert: bool) -> None:
    """Raise ValueError if `model` cannot learn what `objective` asks.

    `convert`: whether the model is a decoder that is made an encoder before the training.
    """
    spans = isinstance(objective, SpanCorruption)
    joined = isinstance(objective, SpanCorruption) and objective.joined
    needs_encoder_decoder = spans and not joined
    if needs_encoder_decoder != isinstance(model, EncoderDecoderConfig):
        remedy = f'model.kind = "{ENCODER_DECODER}", or joined = true of the objective'
        if not needs_encoder_decoder:
            remedy = "joined = false" if spans else 'objective.kind = "SpanCorruption"'
        raise ValueError(
            f"objective {objective.kind} does not fit a model of kind {model.kind}: only "
            f"one of the two has separate input and output texts; set {remedy}"
        )
    masked = isinstance(objective, MaskedLM)  # true for ReplacedTokenDetection, too
    check_extra_parts(objective, model)
    if masked and not model.bidirectional and not convert:
        raise ValueError(
            "objective MaskedLM needs the context on both sides, which a decoder does not "
            'see; set model.kind = "Encoder", or with `continue_from` convert = true'
        )
    if model.bidirectional and not masked:
        raise ValueError(
            f"objective {objective.kind} predicts the next token, which an encoder can see; "
            'set objective.kind = "MaskedLM"'
        )
    setting = find_maskless_setting(model.attention, model.position_embedding)
    if (isinstance(objective, PrefixLM) or joined) and setting:
        raise ValueError(
            f"objective {objective.kind}: model.{setting} uses a kernel that cannot mask "
            "prefixes; leave it out, or choose another objective"
        )


def check_positions(
    sequence_length: int,
    model: DecoderConfig,
    setting: str = "model.positions",
    row_length: int | None = None,
) -> None:
    """Raise ValueError if sequences are longer than the model's positions.

    `setting`: name of the setting that the message says to increase. `row_length`: length of the
    row that the objective makes of a sequence; None means the same length.
    """
    needed = row_length or sequence_length
    if needed > model.positions:
        wider = f" in a row of {needed} positions" if needed > sequence_length else ""
        raise ValueError(
            f"sequence_length ({sequence_length} tokens{wider}) is beyond the model's "
            f"{model.positions} positions; lower it, or set {setting} = {needed}"
        )
