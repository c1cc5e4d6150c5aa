"""Bytes of attention masks for rows with several documents, or with prefixes.

One mask is made for each micro-batch, [B, 1, T, T]: as numbers in the dtype of the model, which all
layers keep for the backward pass, and as the booleans that they are made of, which layers with
recomputation keep as well. docs/attention.md says which kernels take one. The masks of
encoder-decoders, whose biases differ by head, are not counted.
"""

from dataclasses import dataclass

from trainrig.models.architecture.attention_settings import TOGETHER
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.kernels.kernel_choice import (
    CPU_CARD,
    USUAL_GPU,
)
from trainrig.objectives import CausalLM, PrefixLM, SpanCorruption
from trainrig.objectives.objective_interface import find_parts
from trainrig.train.run_file.training_settings import Training


@dataclass(frozen=True)
class RowMasks:
    """Kinds of masks that rows need, and whether a CPU computes them."""

    documents: bool = False
    marks: bool = False  # rows have prefixes or branches
    on_cpu: bool = False

    @classmethod
    def of(cls, objective: CausalLM, by_document: bool, on_cpu: bool) -> "RowMasks":
        """Return the masks of the rows that `objective` makes.

        `by_document` says that tokens attend only to their own document.
        """
        marks = any(
            isinstance(part, PrefixLM) or (isinstance(part, SpanCorruption) and part.joined)
            for _, part in find_parts(objective)
        )
        return cls(by_document, marks, on_cpu)

    def count_kept(
        self, model: DecoderConfig, training: Training, rows: float, length: int
    ) -> float:
        """Return the bytes of masks on one device for a micro-batch of `rows`.

        The device computes the rows, or shares them with other ranks.
        """
        context = training.parallel.context
        size = training.precision.bytes
        if isinstance(model, EncoderDecoderConfig) or not model.takes_mask(length):
            return 0.0
        pairs = rows * length**2
        card = CPU_CARD if self.on_cpu else USUAL_GPU
        tells_apart = training.choose_attention(model, card).kernel is not None
        # Two chunks of a row for each rank, each with all positions before its end.
        if context is not None:
            if context.kind != "Gathered" or tells_apart:
                return 0.0
            pairs *= (2 * context.ranks + 1) / (4 * context.ranks**2)
        elif not self.marks:
            by_document = self.on_cpu and length > TOGETHER // size
            if not self.documents or tells_apart or by_document:
                return 0.0
        made_of = 0 if training.recompute is None else 1
        both = 1 if model.generator_model is None else 2  # the generator's mask is kept as well
        return float(both * pairs * (size + made_of))


NO_MASKS = RowMasks()
