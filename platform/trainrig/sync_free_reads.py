"""Host copies of tensors on a device, to read their values without a synchronisation.

Reading values from a device waits until all its queued work is done. Batches are copied from the
host, so their values can be read from the host tensor instead, which is looked up by the copy.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from torch import Tensor

_copies: "MutableMapping[Tensor, Tensor] | None" = None


def remember_copy(on_device: "Tensor", on_host: "Tensor") -> None:
    """Remember `on_host` as the source of its copy `on_device`, as long as the copy lives."""
    global _copies
    if _copies is None:
        from torch.utils.weak import WeakIdKeyDictionary

        _copies = WeakIdKeyDictionary()
    _copies[on_device] = on_host


def find_on_host(on_device: "Tensor") -> "Tensor | None":
    """Return the host tensor that `on_device` was copied from; None if it is unknown."""
    return None if _copies is None else _copies.get(on_device)
