"""Divergences from a teacher model, computed from hidden states in blocks.

*Reverse divergence*, KL(student || teacher) over the whole vocabulary. One pass over the logits
of a block gives the divergence, the log-probability of the target, the entropy, and the gradients
of the divergence (chunked_head.py). The logits of all tokens, the student's or the teacher's, are
never in memory at once.

*Soft targets*, a stored part of the teacher's distribution. For each position the teacher's
likeliest entries are known, and the total probability of all others. One pass over the logits of
a block gives the divergence, the cross-entropy of the target, and the gradients of both
(chunked_head.py). The logits of all tokens are never in memory at once.

Shapes: B rows, T positions, N tokens, R rows at a time, C and D channels of student and teacher,
V entries of the vocabulary; of soft targets: N targets of the teacher's, K of them processed, R
rows at a time, E entries that the teacher names, V entries of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainrig.objectives.chunked_head import LogitTransform, compute_row_losses, put_back
from trainrig.objectives.cross_entropy import cut_rows
from trainrig.objectives.objective_interface import Output, OutputHead
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


@dataclass(frozen=True)
class TeacherRows:
    """The teacher's distribution at each position that has a target."""

    ids_KE: Tensor  # int64, the likeliest first
    log_KE: Tensor  # float32, their log-probabilities at the temperature
    rest_K: Tensor  # float32, log of the total probability of all others; -inf: there are none


@dataclass(frozen=True)
class SoftTargets:
    """Divergence from a teacher, plus cross-entropy. See `RowLosses`.

    Three numbers of each target: the divergence times the temperature squared, the cross-entropy of
    the target in nats, and whether the likeliest entry is the teacher's. The backward pass of the
    first includes `hard` times that of the second.
    """

    teacher: TeacherRows
    targets_K: Tensor
    bend: LogitTransform
    temperature: float
    bucket: bool  # True if unnamed entries form one event; otherwise they have no probability
    hard: float

    def replace_by_gradients(
        self, logits_RV: Tensor, rows: slice, counts_R: Tensor | None, parts_3R: Tensor
    ) -> None:
        """Compute the three numbers and gradients. See `RowLosses`.

        In float32, a few rows at a time, which stay in a core's cache.
        """
        first = rows.start
        for some in cut_rows(logits_RV):
            own = slice(first + some.start, min(first + some.stop, first + len(logits_RV)))
            x = logits_RV[some].float()  # a copy, unless logits are already float32
            left = self.bend.apply(x)
            ids_RE = self.teacher.ids_KE[own]
            targets_R1 = self.targets_K[own, None]
            parts_3R[2, some] = (x.argmax(1) == ids_RE[:, 0]).float()
            hard_RV = self._fill_cross_entropy(x, targets_R1, parts_3R[1, some])
            self._fill_divergence(x, own, parts_3R[0, some])
            if hard_RV is not None:
                x.add_(hard_RV)
            put_back(x, logits_RV[some], left, None if counts_R is None else counts_R[some])

    def _fill_cross_entropy(self, x: Tensor, targets_R1: Tensor, nats_R: Tensor) -> Tensor | None:
        """Fill `nats_R`, and return its gradients times `hard`, or None if `hard` is 0."""
        normaliser_R = x.logsumexp(1)
        nats_R.copy_(normaliser_R - x.gather(1, targets_R1).squeeze(1))
        if not self.hard:
            return None
        gradients_RV = (x - normaliser_R[:, None]).exp_()
        gradients_RV.scatter_add_(1, targets_R1, x.new_full(targets_R1.shape, -1.0))
        return gradients_RV.mul_(self.hard)

    def _fill_divergence(self, x: Tensor, own: slice, found_R: Tensor) -> None:
        """Fill `found_R`, and overwrite the logits `x` with gradients.

        With p the teacher's and q the student's probabilities at the temperature T, the gradient of
        an entry that the teacher names is T (q - p). For the other entries, with total
        probabilities P and Q, it is T q (1 - P / Q) if they are one event, and T q if the teacher
        gives them none.
        """
        ids_RE = self.teacher.ids_KE[own]
        log_RE = self.teacher.log_KE[own]
        rest_R = self.teacher.rest_K[own]
        if not self.bucket:
            log_RE = log_RE - log_RE.logsumexp(1, keepdim=True)
        p_RE = log_RE.exp()
        x.div_(self.temperature)
        log_q_RE = x.gather(1, ids_RE)
        largest_R1 = x.amax(1, keepdim=True)
        x.sub_(largest_R1).exp_()
        total_R = x.sum(1)
        log_q_RE -= largest_R1 + total_R.log()[:, None]
        nats_R = (p_RE * (log_RE - log_q_RE)).sum(1)
        q_RE = log_q_RE.exp()
        x.div_(total_R[:, None]).scatter_(1, ids_RE, 0.0)
        if self.bucket:
            others_R = rest_R.exp()
            # If the student is certain of the named entries, float32 leaves nothing for the others.
            q_others_R = x.sum(1).clamp(min=torch.finfo(torch.float32).tiny)
            missing_R = others_R * (rest_R - q_others_R.log())
            nats_R = nats_R + missing_R.where(others_R > 0, 0.0)
            x.mul_((1 - others_R / q_others_R)[:, None])
        x.scatter_(1, ids_RE, q_RE - p_RE)
        x.mul_(self.temperature)
        found_R.copy_(nats_R * self.temperature**2)
