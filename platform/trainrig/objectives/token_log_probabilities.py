"""Log-probability of each target, and the model's entropy there.

Shapes: B rows, T positions, V entries of the vocabulary, N positions that have a target, R of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainrig.objectives.contract import Output
from trainrig.objectives.cross_entropy import cut_rows, token_nats
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
