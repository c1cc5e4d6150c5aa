"""What attention kernels share: the device's properties, the layout of outputs, and ranges of keys.

Documents, windows and causality all reduce to a first and a last place, so an attention kernel
needs to know nothing else. The ranges are computed on the device, and nothing waits for them.

In the memory of an attention output the heads of a place are contiguous.

The projection after attention reads them so, and torch's kernels write them so. An operator must
tell a compiler the layout that it really uses, so both its implementation and its shape function
use this.

Shapes: B rows, or 1 where all are alike; S positions of a row; T queries and N keys among them; H
heads, D channels of one head.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from trainrig.hardware import is_triton_installed
from trainrig.models.kernels.kernel_choice import CPU_CARD, Card


@functools.cache
def read_card(device: torch.device) -> Card:
    """Return the properties of `device` that attention kernels depend on."""
    if device.type != "cuda":
        return CPU_CARD
    capability = torch.cuda.get_device_capability(device)
    return Card(capability, find_shared_memory(device), is_triton_installed())


@functools.cache
def find_shared_memory(device: torch.device) -> int:
    """Return the most bytes of shared memory for a thread block on the GPU `device`."""
    properties = torch.cuda.get_device_properties(device)
    # A device without an opt-in limit reports only the usual limit.
    return int(
        getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    )


def allocate_by_place(x_BHTD: Tensor) -> Tensor:
    """Return an empty tensor [B, H, T, D] like `x_BHTD`, with the heads of a place contiguous."""
    rows, heads, places, width = x_BHTD.shape
    return x_BHTD.new_empty((rows, places, heads, width)).transpose(1, 2)


def allocate_gradients(
    query_BHTD: Tensor, key_BKSD: Tensor, value_BKSD: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty tensors for the gradients of queries, keys and values."""
    return (
        allocate_by_place(query_BHTD),
        allocate_by_place(key_BKSD),
        allocate_by_place(value_BKSD),
    )


class Reach(NamedTuple):
    """First and last key of each query, and first and last query of each key, as int32.

    Both ends are included and are counted from the first query or the first key. A range whose last
    place is before its first is empty.
    """

    first_key_BT: Tensor
    last_key_BT: Tensor
    first_query_BN: Tensor
    last_query_BN: Tensor


def find_reach(
    ends: tuple[Tensor, Tensor], queries: range, keys: range, window: int | None, causal: bool
) -> Reach:
    """Return which of `keys` the `queries` attend to; both are ranges of places of a row.

    `ends` comes from `find_document_ends`; `blocked_attention` describes `window` and `causal`.
    """
    seen = ends[0].shape[1]
    back = seen if window is None else window - 1 if causal else (window - 1) // 2
    back = min(back, seen)  # a larger value could overflow int32
    ahead = 0 if causal else back
    of_queries = _find_places(ends, queries, keys, back, ahead)
    return Reach(*of_queries, *_find_places(ends, keys, queries, ahead, back))


def _find_places(
    ends: tuple[Tensor, Tensor], places: range, others: range, back: int, ahead: int
) -> tuple[Tensor, Tensor]:
    """Return the first and last of `others` in the document of each of `places`.

    They are at most `back` before the place and `ahead` after it.
    """
    first, last = (end[:, places.start : places.stop] for end in ends)
    at = torch.arange(places.start, places.stop, dtype=torch.int32, device=first.device)
    low = torch.maximum(first, at - back).clamp(min=others.start)
    high = torch.minimum(last, at + ahead).clamp(max=others.stop - 1)
    return low - others.start, high - others.start


def find_document_ends(
    documents_BS: Tensor | None, seen: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the first and last place of the document of each of `seen` places, [B, S] int32 each.

    Without documents, a row is one document. Places of a document are contiguous: a number that
    appears again after another one is a new document.
    """
    at_S = torch.arange(seen, dtype=torch.int32, device=device)
    if documents_BS is None:
        return torch.zeros_like(at_S)[None], torch.full_like(at_S, seen - 1)[None]
    rows = documents_BS.shape[0]
    changes_BS = documents_BS[:, 1:] != documents_BS[:, :-1]
    first_BS = at_S.new_zeros(rows, seen)
    first_BS[:, 1:] = torch.where(changes_BS, at_S[1:], 0)
    behind_BS = at_S.new_zeros(rows, seen)  # number of places after the last one of the document
    behind_BS[:, :-1] = torch.where(changes_BS, seen - at_S[1:], 0)
    last_BS = seen - 1 - behind_BS.flip(1).cummax(1).values.flip(1)
    return first_BS.cummax(1).values, last_BS
