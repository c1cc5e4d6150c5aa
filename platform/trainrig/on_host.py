"""What the host knows of tensors that it copied to a device.

Asking a device for numbers waits until all its queued work is done. Batches come from the host, so
what was copied can be looked up here instead, by the tensor that the copy gave.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from torch import Tensor

_copies: "MutableMapping[Tensor, Tensor] | None" = None


def remember_copy(on_device: "Tensor", on_host: "Tensor") -> None:
    """Remember that `on_device` is a copy of `on_host`, as long as the copy lives."""
    global _copies
    if _copies is None:
        from torch.utils.weak import WeakIdKeyDictionary

        _copies = WeakIdKeyDictionary()
    _copies[on_device] = on_host


def find_on_host(on_device: "Tensor") -> "Tensor | None":
    """Return what `on_device` was copied from; None if nobody remembered it."""
    return None if _copies is None else _copies.get(on_device)
