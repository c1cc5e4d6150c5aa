"""Where in a row that stands which a query sees, and where those stand which see a key.

Documents, windows and what comes after come to two places each, so that what computes attention
need know of none of them. Found on the device, and nothing waits for it.

Shapes: B rows, or 1 where all are alike; T queries, the last of S positions; S keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Reach(NamedTuple):
    """The first and the last of each, themselves among them; int32. Where the last is before the
    first there are none."""

    first_key_BT: Tensor
    last_key_BT: Tensor
    first_query_BS: Tensor
    last_query_BS: Tensor


def find_reach(
    documents_BS: Tensor | None,
    new: int,
    seen: int,
    window: int | None,
    causal: bool,
    device: torch.device,
) -> Reach:
    """What the last `new` of `seen` positions see: see `blocked_attention`. Places of a document
    stand together."""
    past = seen - new
    first_BS, last_BS = find_document_ends(documents_BS, seen, device)
    back = seen if window is None else window - 1 if causal else (window - 1) // 2
    ahead = 0 if causal else back
    at_S = torch.arange(seen, dtype=torch.int32, device=device)
    at_T = at_S[past:]
    return Reach(
        torch.maximum(first_BS[:, past:], at_T - back),
        torch.minimum(last_BS[:, past:], at_T + ahead),
        (torch.maximum(first_BS, at_S - ahead) - past).clamp(min=0),
        torch.minimum(last_BS, at_S + back) - past,
    )


def find_document_ends(
    documents_BS: Tensor | None, seen: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """[B, S] int32 each: the first and the last place of the document of each of `seen`; None: a
    row is one."""
    at_S = torch.arange(seen, dtype=torch.int32, device=device)
    if documents_BS is None:
        return torch.zeros_like(at_S)[None], torch.full_like(at_S, seen - 1)[None]
    rows = documents_BS.shape[0]
    changes_BS = documents_BS[:, 1:] != documents_BS[:, :-1]
    first_BS = at_S.new_zeros(rows, seen)
    first_BS[:, 1:] = torch.where(changes_BS, at_S[1:], 0)
    behind_BS = at_S.new_zeros(rows, seen)  # places after the last one
    behind_BS[:, :-1] = torch.where(changes_BS, seen - at_S[1:], 0)
    last_BS = seen - 1 - behind_BS.flip(1).cummax(1).values.flip(1)
    return first_BS.cummax(1).values, last_BS
