"""KL(student || teacher) over the whole vocabulary, computed from hidden states in blocks.

One pass over the logits of a block gives the divergence, the log-probability of the target, the
entropy, and the gradients of the divergence (chunked_head.py). The logits of all tokens, the
student's or the teacher's, are never in memory at once.

Shapes: B rows, T positions, N tokens, R rows at a time, C and D channels of student and teacher, V
entries of the vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainrig.objectives.chunked_head import LogitTransform, compute_row_losses, put_back
from trainrig.objectives.contract import Output, OutputHead
from trainrig.objectives.cross_entropy import cut_rows
from trainrig.tokens.batches import IGNORE


@dataclass(frozen=True)
class DivergenceFromTeacher:
    """Divergence in nats, log-probability of the target, and entropy. See `RowLosses`."""

    hidden_ND: Tensor  # the teacher's hidden states
    head: OutputHead  # the teacher's head
    targets_N: Tensor
    bend: LogitTransform
    temperature: float
    entries: int  # number of entries of the vocabulary; later ones only pad a model's table

    def replace_by_gradients(
        self, logits_RV: Tensor, rows: slice, counts_R: Tensor | None, parts_3R: Tensor
    ) -> None:
        """Compute the three numbers and gradients. See `RowLosses`.

        In float32, a few rows at a time, which stay in a core's cache. With p the student's
        probabilities, q the teacher's and T the temperature, the gradient of an entry is p (log p -
        log q - KL) / T.
        """
        teacher_RV = self.head(self.hidden_ND[rows])[:, : self.entries]
        targets_R = self.targets_N[rows]
        for some in cut_rows(logits_RV):
            x = logits_RV[some].float()  # a copy, unless logits are already float32
            left = self.bend.apply(x)
            log_p = (x[:, : self.entries] / self.temperature).log_softmax(1)
            log_q = (teacher_RV[some].float() / self.temperature).log_softmax(1)
            p = log_p.exp()
            log_q.neg_().add_(log_p)  # log p - log q
            nats = (p * log_q).sum(1)
            parts_3R[0, some] = nats
            parts_3R[1, some] = log_p.gather(1, targets_R[some, None]).squeeze(1)
            parts_3R[2, some] = -(p * log_p).sum(1)
            x.zero_()
            torch.mul(p, log_q.sub_(nats[:, None]), out=x[:, : self.entries])
            x.div_(self.temperature)
            put_back(x, logits_RV[some], left, None if counts_R is None else counts_R[some])


@dataclass(frozen=True)
class TeacherReading:
    """Divergence, log-probability and entropy at each target, in float32; 0 where there is none."""

    divergence_BT: Tensor  # nats, with gradients
    log_probabilities_BT: Tensor  # the student's log-probability of the target
    entropy_BT: Tensor  # the student's entropy, in nats
    auxiliary: Mapping[str, Tensor]  # the student's auxiliary terms


def read_beside_teacher(
    student: nn.Module,
    teacher: nn.Module,
    ids_BT: Tensor,
    targets_BT: Tensor,
    temperature: float,
    entries: int,
) -> TeacherReading:
    """Run student and teacher on `ids_BT`, and return the student's divergence at each target.

    The logits of both are divided by `temperature`. `entries`: ids from there on only pad the
    models' tables.
    """
    flat = targets_BT.flatten()
    places_N = (flat != IGNORE).nonzero().squeeze(1)
    targets_N = flat[places_N]
    with torch.no_grad():
        expected: Output = teacher(ids_BT, places_N=places_N)
    output: Output = student(ids_BT, places_N=places_N)
    losses = DivergenceFromTeacher(
        expected.hidden.detach(),
        expected.head,
        targets_N,
        LogitTransform.of(output.head),
        temperature,
        entries,
    )
    # All targets at once, because only the sum of each gradient is needed.
    divergence, log, entropy = compute_row_losses(output.hidden, output.head, targets_BT, losses)
    return TeacherReading(divergence, log, entropy, output.auxiliary)
