"""Where in a row that stands which a query sees, and where those stand which see a key.

Documents, windows and what comes after come to two places each, so that what computes attention
need know of none of them. Found on the device, and nothing waits for it.

Shapes: B rows, or 1 where all are alike; S positions of a row; T queries and N keys, of those.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Reach(NamedTuple):
    """The first and the last of each, themselves among them, counted from the first query and the
    first key; int32. Where the last is before the first there are none."""

    first_key_BT: Tensor
    last_key_BT: Tensor
    first_query_BN: Tensor
    last_query_BN: Tensor


def find_reach(
    ends: tuple[Tensor, Tensor], queries: range, keys: range, window: int | None, causal: bool
) -> Reach:
    """What `queries` see of `keys`, which are places of a row: see `blocked_attention`. `ends`: of
    documents, as `find_document_ends` gives them."""
    seen = ends[0].shape[1]
    back = seen if window is None else window - 1 if causal else (window - 1) // 2
    back = min(back, seen)  # more would be more than int32 holds
    ahead = 0 if causal else back
    of_queries = _find_places(ends, queries, keys, back, ahead)
    return Reach(*of_queries, *_find_places(ends, keys, queries, ahead, back))


def _find_places(
    ends: tuple[Tensor, Tensor], places: range, others: range, back: int, ahead: int
) -> tuple[Tensor, Tensor]:
    """The first and the last of `others` that are in the document of each of `places`, no more than
    `back` before it and `ahead` after."""
    first, last = (each[:, places.start : places.stop] for each in ends)
    at = torch.arange(places.start, places.stop, dtype=torch.int32, device=first.device)
    low = torch.maximum(first, at - back).clamp(min=others.start)
    high = torch.minimum(last, at + ahead).clamp(max=others.stop - 1)
    return low - others.start, high - others.start


def find_document_ends(
    documents_BS: Tensor | None, seen: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """[B, S] int32 each: the first and the last place of the document of each of `seen`; None: a
    row is one. Places of a document stand together: one that comes again is another."""
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
