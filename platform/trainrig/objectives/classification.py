"""Learning what a text is, by its label, and where in a text an answer stands.

Shapes: B rows, T positions, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from trainrig.config import Settings
from trainrig.objectives.contract import (
    Computed,
    Contributions,
    DeviceBatch,
    Output,
    Term,
    average_rows,
)
from trainrig.randomness import RandomKey, draw_uniforms
from trainrig.tokens.batches import (
    ANSWER_ENDS,
    ANSWER_STARTS,
    CLASSES,
    CONTEXT,
    EXAMPLES,
    IDS,
    SEGMENTS,
    TEXTS,
)

if TYPE_CHECKING:  # run files are read without torch, which takes seconds to import
    from torch import Tensor, nn

CROSS_ENTROPY = "cross_entropy"
F1, ACCURACY, EXACT = "f1", "accuracy", "exact"
CLASS_F1 = f"{F1}/"  # before the number of a class


class _OfTexts(Settings):
    """What both have: one cross-entropy, a mean over the rows of the global batch."""

    @property
    def terms(self) -> tuple[Term, ...]:
        """The cross-entropy alone."""
        return (Term(CROSS_ENTROPY, per=EXAMPLES),)

    @property
    def statistics(self) -> tuple[str, ...]:
        """None."""
        return ()

    def measure(self, model: nn.Module, batch: DeviceBatch) -> Mapping[str, Tensor]:
        """Nothing."""
        return {}


class Classification(_OfTexts):
    """Cross-entropy of the label of each row, in nats."""

    kind: Literal["Classification"] = "Classification"
    # Share of a row's weight that is spread evenly over all classes (Szegedy et al. 2016,
    # arXiv:1512.00567, section 7); 0: none.
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    # Share of what the head reads of a text that is set to 0 in training, the rest being scaled up;
    # 0: none. Which goes by the sample and the place alone.
    dropout: float = Field(default=0.0, ge=0, lt=1)
    dropout_seed: int = 0  # random seed of the dropout

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """The cross-entropy of each row; whether its likeliest class is the right one; and, of
        held-out rows, what F1 is made of: twice the hits of a class over how often it is told and
        how often it is right (van Rijsbergen 1979, chapter 7)."""
        import torch
        from torch.nn.functional import cross_entropy

        arrays = batch.arrays
        output = read_texts(model, arrays)
        logits_BK = self._compute_logits(output, batch.samples_B).float()
        classes_B = arrays[CLASSES]
        losses_B = cross_entropy(
            logits_BK, classes_B, reduction="none", label_smoothing=self.label_smoothing
        )
        told_B = logits_BK.argmax(1)
        hits_B = told_B == classes_B
        diagnostics = average_rows(accuracy=hits_B.float())
        if not torch.is_grad_enabled():  # of held-out rows: those of a step are few
            for number in range(logits_BK.shape[1]):
                told, right = told_B == number, classes_B == number
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
        """Macro F1: the mean of F1 over the classes that are told or right anywhere."""
        found = [value for name, value in diagnostics.items() if name.startswith(CLASS_F1)]
        return {F1: sum(found) / len(found)} if found else {}


class AnswerSpan(_OfTexts):
    """Cross-entropy of the first and of the last token of the answer, half of each, in nats (Devlin
    et al. 2018, arXiv:1810.04805, section 4.2). Where a text has no answer, both are the row's
    first token (section 4.3)."""

    kind: Literal["AnswerSpan"] = "AnswerSpan"
    longest_answer: int = Field(default=30, ge=1)  # tokens of an answer that is told

    def compute(
        self, model: nn.Module, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed:
        """The cross-entropy of each row; whether the likeliest span is the very one; and how much
        the two overlap, as the F1 of their tokens (Rajpurkar et al. 2016, arXiv:1606.05250)."""
        import torch
        from torch.nn.functional import cross_entropy

        arrays = batch.arrays
        output = read_texts(model, arrays)
        logits_BT2 = output.logits.float().masked_fill(arrays[SEGMENTS][:, :, None] == 0, -1e30)
        starts_B, ends_B = arrays[ANSWER_STARTS], arrays[ANSWER_ENDS]
        losses_B = (
            cross_entropy(logits_BT2[:, :, 0], starts_B, reduction="none")
            + cross_entropy(logits_BT2[:, :, 1], ends_B, reduction="none")
        ) / 2
        first_B, last_B, _ = find_likeliest_spans(logits_BT2, arrays[CONTEXT], self.longest_answer)
        exact_B = (first_B == starts_B) & (last_B == ends_B)
        shared_B = (torch.minimum(last_B, ends_B) - torch.maximum(first_B, starts_B) + 1).clamp(0)
        tokens_B = last_B - first_B + 1 + ends_B - starts_B + 1
        diagnostics = average_rows(exact=exact_B.float(), f1=2.0 * shared_B / tokens_B)
        terms = {CROSS_ENTROPY: Contributions(losses_B, torch.ones_like(starts_B))}
        return Computed(terms, output.auxiliary, diagnostics)


def read_texts(model: nn.Module, arrays: Mapping[str, Tensor]) -> Output:
    """What `model` makes of rows of whole texts: by the config of its head, logits of classes of
    each row or of each place."""
    import torch

    ids_BT, there_BT = arrays[IDS], arrays[SEGMENTS]
    config: Any = model.config
    given: dict[str, Tensor] = {}
    if config.head == "classes":
        # An encoder's first place has read all; a decoder's last has.
        last_B = there_BT.sum(1) - 1
        places_B = torch.zeros_like(last_B) if config.bidirectional else last_B
        rows_B = torch.arange(len(ids_BT), device=ids_BT.device)
        given["places_N"] = rows_B * ids_BT.shape[1] + places_B
    if config.bidirectional:
        given["documents_BS"] = there_BT
        if config.segments > 1:
            given["segments_BT"] = arrays[TEXTS]
    output: Output = model(ids_BT, **given)
    return output


def find_likeliest_spans(
    logits_BT2: Tensor, context_BT: Tensor, longest: int
) -> tuple[Tensor, Tensor, Tensor]:
    """[B] first and last place of the span of at most `longest` tokens of the context with the
    highest sum of both logits, and that sum; place 0 alone, "no answer", is one of them too."""
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
