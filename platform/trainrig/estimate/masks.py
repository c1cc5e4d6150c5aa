"""Bytes of the masks that say what rows of several documents, or with prefixes, see of themselves.

One is made for each micro-batch, [B, 1, T, T]: numbers as the model computes in, which all layers
keep for the backward pass, and true or false, which it is made of and layers that compute again
keep beside. docs/performance.md says where a kernel takes one. Not those of encoder-decoders, whose
biases differ by head.
"""

from dataclasses import dataclass

from trainrig.models.architecture.attention import TOGETHER
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.encoder_decoder.config import EncoderDecoderConfig
from trainrig.models.kernels.choice import CPU_CARD, USUAL_GPU
from trainrig.objectives import CausalLM, PrefixLM, SpanCorruption
from trainrig.objectives.contract import find_parts
from trainrig.train.run_file.training import Training


@dataclass(frozen=True)
class RowMasks:
    """What of rows asks for a mask, and whether a CPU reads them."""

    documents: bool = False
    marks: bool = False  # prefixes, or branches
    on_cpu: bool = False

    @classmethod
    def of(cls, objective: CausalLM, by_document: bool, on_cpu: bool) -> "RowMasks":
        """Of rows as `objective` makes them; `by_document`: those before are confined to one."""
        marks = any(
            isinstance(each, PrefixLM) or (isinstance(each, SpanCorruption) and each.joined)
            for _, each in find_parts(objective)
        )
        return cls(by_document, marks, on_cpu)

    def count_kept(
        self, model: DecoderConfig, training: Training, rows: float, length: int
    ) -> float:
        """Bytes on one device, of a micro-batch whose `rows` rows it reads or shares."""
        context, size = training.parallel.context, training.precision.bytes
        if isinstance(model, EncoderDecoderConfig) or not model.takes_mask(length):
            return 0.0
        pairs = rows * length**2
        card = CPU_CARD if self.on_cpu else USUAL_GPU
        tells_apart = training.choose_attention(model, card).kernel is not None
        if context is not None:  # two chunks of a row, each with all before its end
            if context.kind != "Gathered" or tells_apart:
                return 0.0
            pairs *= (2 * context.ranks + 1) / (4 * context.ranks**2)
        elif not self.marks:
            by_document = self.on_cpu and length > TOGETHER // size
            if not self.documents or tells_apart or by_document:
                return 0.0
        made_of = 0 if training.recompute is None else 1
        both = 1 if model.generator_model is None else 2  # it goes first, and is kept beside
        return float(both * pairs * (size + made_of))


NO_MASKS = RowMasks()
