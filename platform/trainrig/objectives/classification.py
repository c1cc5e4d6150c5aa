"""Classification of whole texts, and extraction of answer spans.

Shapes: B rows, T positions, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from trainrig.objectives.objective_interface import (
    Computed,
    Contributions,
    DeviceBatch,
    Output,
    Term,
    average_rows,
)
from trainrig.objectives.objective_settings import ObjectiveSettings, Rows
from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens import batches

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

CROSS_ENTROPY = "cross_entropy"
F1 = "f1"
ACCURACY = "accuracy"
EXACT = "exact"
CLASS_F1 = f"{F1}/"  # prefix of the number of a class


class _OfTexts(ObjectiveSettings):
    """Base of both objectives: one cross-entropy, averaged over the rows of a global batch."""

    @property
    def terms(self) -> tuple[Term, ...]:
        """The cross-entropy alone."""
        return (Term(CROSS_ENTROPY, per=batches.EXAMPLES),)


class Classification(_OfTexts):
    """Cross-entropy of the label of each row, in nats."""

    rows: ClassVar[Rows] = "classified"
    head: ClassVar[Literal["classes"]] = "classes"
    right_diagnostic: ClassVar[str | None] = "accuracy"

    kind: Literal["Classification"] = "Classification"
    # Label smoothing: the share of a row's weight that is spread evenly over all classes (Szegedy
    # et al. 2016, arXiv:1512.00567, section 7). 0: none.
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    # Dropout: the share of the head's input channels that are set to 0 in training, while the rest
    # are scaled up. 0: none. The choice depends on the sample and the channel alone.
    dropout: float = Field(default=0.0, ge=0, lt=1)
    dropout_seed: int = 0  # random seed of the dropout

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the cross-entropy and accuracy of each row, and F1 counts of held-out rows.

        F1 of a class is twice its hits, over the number of times it is predicted plus the number of
        times it is right (van Rijsbergen 1979, chapter 7).
        """
        import torch
        from torch.nn.functional import cross_entropy

        arrays = batch.arrays
        output = read_texts(model, arrays)
        logits_BK = self._compute_logits(output, batch.samples_B).float()
        classes_B = arrays[batches.CLASSES]
        losses_B = cross_entropy(
            logits_BK, classes_B, reduction="none", label_smoothing=self.label_smoothing
        )
        told_B = logits_BK.argmax(1)
        hits_B = told_B == classes_B
        diagnostics = average_rows(accuracy=hits_B.float())
        if not torch.is_grad_enabled():  # held-out rows only: a training step has too few
            for number in range(logits_BK.shape[1]):
                told = told_B == number
                right = classes_B == number
                diagnostics[f"{CLASS_F1}{number}"] = Contributions(
                    2.0 * (told & right).float(), told.long() + right.long()
                )
        terms = {CROSS_ENTROPY: Contributions(losses_B, torch.ones_like(classes_B))}
        return Computed(terms, output.auxiliary, diagnostics)

    def _compute_logits(self, output: Output, samples_B: Tensor) -> Tensor:
        import torch

        if not self.dropout or not torch.is_grad_enabled():
            return output.logits
        read_BC = output.hidden
        places_1C = torch.arange(read_BC.shape[-1], device=read_BC.device)[None]
        drawn_BC = draw_uniforms(
            RandomKey(self.dropout_seed, "dropout", "head"), places_1C, samples_B[:, None]
        )
        kept_BC = (drawn_BC >= self.dropout).to(read_BC.dtype)
        return output.head(read_BC * kept_BC / (1 - self.dropout))

    def derive(self, diagnostics: Mapping[str, float]) -> Mapping[str, float]:
        """Return macro F1: the mean of F1 over the classes that are predicted or right anywhere."""
        found = [value for name, value in diagnostics.items() if name.startswith(CLASS_F1)]
        return {F1: sum(found) / len(found)} if found else {}


class AnswerSpan(_OfTexts):
    """Cross-entropy of the first and the last token of the answer, half of each, in nats.

    Devlin et al. 2018, arXiv:1810.04805, section 4.2. In a text without an answer, both are the
    row's first token (section 4.3).
    """

    rows: ClassVar[Rows] = "questions"
    head: ClassVar[Literal["spans"]] = "spans"
    right_diagnostic: ClassVar[str | None] = "exact"

    kind: Literal["AnswerSpan"] = "AnswerSpan"
    longest_answer: int = Field(default=30, ge=1)  # maximum length of a predicted answer, in tokens

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """Compute the cross-entropy, exact match and F1 of each row.

        F1 is that of the tokens of the likeliest span and the right one (Rajpurkar et al. 2016,
        arXiv:1606.05250).
        """
        import torch
        from torch.nn.functional import cross_entropy

        arrays = batch.arrays
        output = read_texts(model, arrays)
        logits_BT2 = output.logits.float().masked_fill(
            arrays[batches.SEGMENTS][:, :, None] == 0, -1e30
        )
        starts_B = arrays[batches.ANSWER_STARTS]
        ends_B = arrays[batches.ANSWER_ENDS]
        losses_B = (
            cross_entropy(logits_BT2[:, :, 0], starts_B, reduction="none")
            + cross_entropy(logits_BT2[:, :, 1], ends_B, reduction="none")
        ) / 2
        first_B, last_B, _ = find_likeliest_spans(
            logits_BT2, arrays[batches.CONTEXT], self.longest_answer
        )
        exact_B = (first_B == starts_B) & (last_B == ends_B)
        shared_B = (torch.minimum(last_B, ends_B) - torch.maximum(first_B, starts_B) + 1).clamp(0)
        tokens_B = last_B - first_B + 1 + ends_B - starts_B + 1
        diagnostics = average_rows(exact=exact_B.float(), f1=2.0 * shared_B / tokens_B)
        terms = {CROSS_ENTROPY: Contributions(losses_B, torch.ones_like(starts_B))}
        return Computed(terms, output.auxiliary, diagnostics)


def read_texts(model: nn.Module, arrays: Mapping[str, Tensor]) -> Output:
    """Return the output of `model` for rows of whole texts.

    The head in the model's config decides whether there are logits of classes per row or per
    position.
    """
    import torch

    ids_BT = arrays[batches.IDS]
    there_BT = arrays[batches.SEGMENTS]
    config: Any = model.config
    given: dict[str, Tensor] = {}
    if config.head == "classes":
        # In an encoder the first position has read the whole text; in a decoder, the last.
        last_B = there_BT.sum(1) - 1
        places_B = torch.zeros_like(last_B) if config.bidirectional else last_B
        rows_B = torch.arange(len(ids_BT), device=ids_BT.device)
        given["places_N"] = rows_B * ids_BT.shape[1] + places_B
    if config.bidirectional:
        given["documents_BS"] = there_BT
        if config.segments > 1:
            given["segments_BT"] = arrays[batches.TEXTS]
    output: Output = model(ids_BT, **given)
    return output


def find_likeliest_spans(
    logits_BT2: Tensor, context_BT: Tensor, longest: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first and last position [B] of the likeliest span of each row, and its score [B].

    The score is the sum of the start and end logit. A span has at most `longest` tokens, all in the
    context. Position 0 alone, "no answer", is a candidate too.
    """
    import torch

    starts_BT, ends_BT = logits_BT2.unbind(2)
    length = starts_BT.shape[1]
    places_T = torch.arange(length, device=starts_BT.device)
    ahead_TT = places_T[None, :] - places_T[:, None]
    allowed_TT = (ahead_TT >= 0) & (ahead_TT < longest)
    inside_BT = context_BT.bool()
    allowed_BTT = allowed_TT & inside_BT[:, :, None] & inside_BT[:, None, :]
    allowed_BTT[:, 0, 0] = True
    sums_BTT = starts_BT[:, :, None] + ends_BT[:, None, :]
    best_B, where_B = sums_BTT.masked_fill(~allowed_BTT, -torch.inf).flatten(1).max(1)
    return where_B // length, where_B % length, best_B
