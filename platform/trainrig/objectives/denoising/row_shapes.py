"""Rows and models that pretraining objectives need, checked before a run starts."""

from trainrig.objectives.denoising.masked import MaskedLM
from trainrig.objectives.denoising.prefix import PrefixLM
from trainrig.objectives.denoising.span_corruption import SpanCorruption
from trainrig.objectives.next_token import CausalLM, MultiTokenPrediction
from trainrig.objectives.objective_interface import find_parts
from trainrig.tokens.rows.batch_stages import BatchSettings


def check_rows(objective: CausalLM, batches: BatchSettings) -> None:
    """Raise ValueError if `objective` cannot train on the rows of `batches`."""
    shortest = min(stage.sequence_length for stage in batches.resolve_stages())
    for _, part in find_parts(objective):
        if isinstance(part, PrefixLM | MultiTokenPrediction):
            part.check_length(shortest)
        if isinstance(part, MultiTokenPrediction):
            part.check_packing(batches.packing)


def compute_widest_row(objective: CausalLM, length: int) -> int:
    """Return the positions of the widest decoder rows made from rows of `length` tokens."""
    parts = [part for _, part in find_parts(objective) if isinstance(part, SpanCorruption)]
    return max([length, *(part.compute_row_length(length) for part in parts)])


def count_further_heads(objective: CausalLM) -> int:
    """Return the number of heads for tokens after the next that `objective` trains."""
    return len(objective.further_weights) if isinstance(objective, MultiTokenPrediction) else 0


def find_model_kind(objective: CausalLM) -> str:
    """Return the kind of model that `objective` trains from fresh weights."""
    parts = [part for _, part in find_parts(objective)]
    if all(isinstance(part, MaskedLM) for part in parts):
        return "Encoder"
    apart = any(isinstance(part, SpanCorruption) and not part.joined for part in parts)
    return "EncoderDecoder" if apart else "Decoder"
