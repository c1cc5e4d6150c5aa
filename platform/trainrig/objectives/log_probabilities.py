"""Log-probabilities of targets, with the entropy there, and of whole completions.

They are computed from logits at the targets' positions alone.

Shapes: B rows, T positions, V entries of the vocabulary, N positions that have a target, R of
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainrig.objectives.chunked_head import PartialHead, compute_head_loss
from trainrig.objectives.cross_entropy import cut_rows, token_nats
from trainrig.objectives.objective_interface import Output, RowParts
from trainrig.objectives.shared_prompts import read_answers
from trainrig.tokens.batches import IGNORE


@dataclass(frozen=True)
class TokenLogProbabilities:
    """Log-probability and entropy at each target; 0 where there is none."""

    log_probabilities_BT: Tensor  # float32
    entropy_BT: Tensor  # float32, nats, without a gradient
    auxiliary: Mapping[str, Tensor]  # the model's auxiliary terms


def read_tokens(
    model: nn.Module,
    ids_BT: Tensor,
    targets_BT: Tensor,
    temperature: float,
    entries: int | None = None,
) -> TokenLogProbabilities:
    """Run `model` on `ids_BT`, and return log-probability and entropy at each target.

    Logits are computed at the positions of targets alone and divided by `temperature`. `entries`:
    ids from there on only pad the model's table and get no probability.
    """
    flat = targets_BT.flatten()
    places_N = (flat != IGNORE).nonzero().squeeze(1)
    output: Output = model(ids_BT, places_N=places_N)
    logits_NV = output.logits[:, :entries]
    if temperature != 1:
        logits_NV = logits_NV / temperature
    nats_N = token_nats(logits_NV, flat[places_N])
    zeros = torch.zeros(flat.shape, dtype=torch.float32, device=flat.device)
    return TokenLogProbabilities(
        zeros.index_put((places_N,), -nats_N).view(targets_BT.shape),
        zeros.index_put((places_N,), _entropy(logits_NV.detach())).view(targets_BT.shape),
        output.auxiliary,
    )


def _entropy(logits_NV: Tensor) -> Tensor:
    """Return the entropy [N] of each row of logits, in nats."""
    entropy_N = torch.empty(len(logits_NV), dtype=torch.float32, device=logits_NV.device)
    for rows in cut_rows(logits_NV):
        log_RV = logits_NV[rows].float().log_softmax(-1)
        entropy_N[rows] = -(log_RV.exp() * log_RV).sum(-1)
    return entropy_N


@dataclass(frozen=True)
class Completions:
    """Log-probabilities and lengths of the completions of some rows."""

    sums_B: Tensor  # float64, log-probability of each completion
    lengths_B: Tensor  # number of targets of each completion

    @property
    def means_B(self) -> Tensor:
        """The mean log-probability of a token."""
        return self.sums_B / self.lengths_B.clamp(min=1)


def read_completions(
    model: nn.Module, *rows: tuple[Tensor, Tensor], parts: RowParts | None = None
) -> tuple[list[Completions], Mapping[str, Tensor]]:
    """Return the completions of each of `rows`, and the model's auxiliary terms.

    Each of `rows` is a pair of ids and targets [B, T]. One forward pass reads all of them, and
    reads the common beginning of two answers to a prompt once. `parts`: set if ranks share the
    rows; each rank then gets the whole completions.

    Sums are in float64, because the difference between two models over hundreds of tokens may be
    small.
    """
    ids_BT, targets_BT = stack_rows(*rows)
    flat = targets_BT.flatten()
    places_N = (flat != IGNORE).nonzero().squeeze(1)
    output = read_answers(model, ids_BT, targets_BT, places_N, sets=len(rows), parts=parts)
    nats_N = _compute_nats(output, flat[places_N])
    zeros = torch.zeros(flat.shape, dtype=torch.float64, device=flat.device)
    nats_BT = zeros.index_put((places_N,), nats_N.double()).view(targets_BT.shape)
    sums_B = -nats_BT.sum(1)
    lengths_B = (targets_BT != IGNORE).sum(1)
    if parts is not None:
        sums_B, lengths_B = parts.gather(torch.stack((sums_B, lengths_B.double()))).sum(0)
        lengths_B = lengths_B.long()
    counts = [len(ids) for ids, _ in rows]
    completions = [
        Completions(*pair)
        for pair in zip(torch.split(sums_B, counts), torch.split(lengths_B, counts), strict=True)
    ]
    return completions, output.auxiliary


def _compute_nats(output: Output, targets_N: Tensor) -> Tensor:
    if isinstance(output.head, PartialHead):  # no rank has the logits of all entries
        return compute_head_loss(output.hidden, output.head, targets_N).nats_BT
    return token_nats(output.logits, targets_N)


def stack_rows(*rows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Concatenate pairs of ids and targets [B, T] along the rows, padded to the widest."""
    width = max(ids_BT.shape[1] for ids_BT, _ in rows)
    ids_BT = torch.cat([_widen(ids_BT, width, 0) for ids_BT, _ in rows])
    return ids_BT, torch.cat([_widen(targets_BT, width, IGNORE) for _, targets_BT in rows])


def find_last_places(targets_BT: Tensor) -> Tensor:
    """Return the index [B], among all B * T positions, of the last target of each row."""
    width = targets_BT.shape[1]
    places_T = torch.arange(width, device=targets_BT.device)
    last_B = places_T.where(targets_BT != IGNORE, 0).amax(1)
    return last_B + torch.arange(len(targets_BT), device=targets_BT.device) * width


def _widen(array_BT: Tensor, width: int, value: int) -> Tensor:
    """Pad `array_BT` with `value` at the end of rows, where no earlier position attends to it."""
    return F.pad(array_BT, (0, width - array_BT.shape[1]), value=value)
