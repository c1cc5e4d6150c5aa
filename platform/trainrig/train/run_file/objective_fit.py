"""Checks that a model can learn what an objective asks, on rows of their length."""

from trainrig.models import ENCODER_DECODER
from trainrig.models.architecture.attention import takes_no_mask
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.encoder_decoder.config import EncoderDecoderConfig
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


def check_beside(objective: CausalLM, model: DecoderConfig) -> None:
    """Raise ValueError unless `model` has exactly the additional parts that `objective` trains.

    They are the generator of ReplacedTokenDetection and further prediction heads.
    """
    heads = count_further_heads(objective)
    if heads != model.further_heads and not model.bidirectional:
        raise ValueError(
            f"model.further_heads ({model.further_heads}) is not the {heads} further tokens that "
            f"objective {objective.kind} predicts; set model.further_heads = {heads}"
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
            f'model.head: "replaced" says whether a token was replaced, which objective '
            f'{objective.kind} does not ask; set objective.kind = "ReplacedTokenDetection"'
        )


def check_fit(objective: CausalLM, model: DecoderConfig, convert: bool) -> None:
    """Raise ValueError if `model` cannot learn what `objective` asks.

    `convert`: whether the model is a decoder that becomes an encoder first.
    """
    spans = isinstance(objective, SpanCorruption)
    joined = isinstance(objective, SpanCorruption) and objective.joined
    asked = spans and not joined
    if asked != isinstance(model, EncoderDecoderConfig):
        wanted = f'model.kind = "{ENCODER_DECODER}", or joined = true of the objective'
        if not asked:
            wanted = "joined = false" if spans else 'objective.kind = "SpanCorruption"'
        raise ValueError(
            f"objective {objective.kind} does not fit a model of kind {model.kind}: only "
            f"one of the two has separate input and output texts; set {wanted}"
        )
    masked = isinstance(objective, MaskedLM)
    check_beside(objective, model)
    if masked and not model.bidirectional and not convert:
        raise ValueError(
            "objective MaskedLM needs the context on both sides, which a decoder does not "
            'see; set model.kind = "Encoder", or with `continue_from` convert = true'
        )
    if model.bidirectional and not masked:
        raise ValueError(
            f"objective {objective.kind} predicts the next token, which an encoder sees; "
            'set objective.kind = "MaskedLM"'
        )
    setting = takes_no_mask(model.attention, model.position_embedding)
    if (isinstance(objective, PrefixLM) or joined) and setting:
        raise ValueError(
            f"objective {objective.kind}: model.{setting} is computed by a kernel that takes no "
            "mask of prefixes; leave it out, or choose another objective"
        )


def check_positions(
    sequence_length: int,
    model: DecoderConfig,
    setting: str = "model.positions",
    places: int | None = None,
) -> None:
    """Raise ValueError if sequences are longer than the model's positions.

    `setting`: the setting to raise, for the message. `places`: length of the row that the objective
    makes of a sequence; None means the same length.
    """
    needed = places or sequence_length
    if needed > model.positions:
        wider = f" in a row of {needed} places" if needed > sequence_length else ""
        raise ValueError(
            f"sequence_length ({sequence_length} tokens{wider}) is beyond the model's "
            f"{model.positions} positions; lower it, or set {setting} = {needed}"
        )
