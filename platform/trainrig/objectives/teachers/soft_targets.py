"""The divergence from a teacher's distribution, straight from hidden states, some rows at a time.

Of the teacher, the likeliest entries of each place are known, and how much probability all others
have together. In one pass over the logits of a block come the divergence, the cross-entropy of the
target, and the gradients of both (chunked_head.py): the logits of all tokens are never there at
once.

Shapes: N targets of the teacher's, K of them worked through, R rows at a time, E entries that the
teacher names, V entries of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainrig.objectives.chunked_head import Bend, put_back
from trainrig.objectives.cross_entropy import cut_rows


@dataclass(frozen=True)
class TeacherRows:
    """What the teacher expects at each place that has a target."""

    ids_KE: Tensor  # int64, the likeliest first
    log_KE: Tensor  # float32, their log-probabilities at the temperature
    rest_K: Tensor  # float32, the log-probability of all others together; -inf: there are none


@dataclass(frozen=True)
class SoftTargets:
    """A divergence with cross-entropy beside it, as `RowLosses`.

    Three numbers of each target: the divergence times the temperature squared, the nats of the
    target itself, and whether the likeliest entry is the teacher's. Going backward from the first
    is going backward from it and `hard` times the second.
    """

    teacher: TeacherRows
    targets_K: Tensor
    bend: Bend
    temperature: float
    bucket: bool  # all that the teacher does not name is one event; else it has no probability
    hard: float

    def replace_by_gradients(
        self, logits_RV: Tensor, rows: slice, counts_R: Tensor | None, parts_3R: Tensor
    ) -> None:
        """In float32, a few rows at a time, which stay in a core's cache."""
        first = rows.start
        for some in cut_rows(logits_RV):
            own = slice(first + some.start, min(first + some.stop, first + len(logits_RV)))
            x = logits_RV[some].float()  # float32 logits themselves, or a copy
            left = self.bend.apply(x)
            ids_RE, targets_R1 = self.teacher.ids_KE[own], self.targets_K[own, None]
            parts_3R[2, some] = (x.argmax(1) == ids_RE[:, 0]).float()
            hard_RV = self._fill_cross_entropy(x, targets_R1, parts_3R[1, some])
            self._fill_divergence(x, own, parts_3R[0, some])
            if hard_RV is not None:
                x.add_(hard_RV)
            put_back(x, logits_RV[some], left, None if counts_R is None else counts_R[some])

    def _fill_cross_entropy(self, x: Tensor, targets_R1: Tensor, nats_R: Tensor) -> Tensor | None:
        """Fill `nats_R`; the gradients of them times `hard`, None: there are none."""
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
        an entry that the teacher names is T (q - p). Of the others together, P and Q, it is
        T q (1 - P / Q) where they are one event, and T q where the teacher gives them nothing.
        """
        ids_RE, log_RE = self.teacher.ids_KE[own], self.teacher.log_KE[own]
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
            # A student that is sure of the entries named has nothing left that float32 could tell.
            q_others_R = x.sum(1).clamp(min=torch.finfo(torch.float32).tiny)
            missing_R = others_R * (rest_R - q_others_R.log())
            nats_R = nats_R + missing_R.where(others_R > 0, 0.0)
            x.mul_((1 - others_R / q_others_R)[:, None])
        x.scatter_(1, ids_RE, q_RE - p_RE)
        x.mul_(self.temperature)
        found_R.copy_(nats_R * self.temperature**2)
