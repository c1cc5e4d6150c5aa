"""What layers keep for the backward pass, in the host's memory until then.

Of each layer, what autograd saves goes to the host (pinned, on a stream of its own) as soon as it
is saved, and comes back while the layer after it goes backward, so a device holds that of two
layers (Rhu et al. 2016, "vDNN", arXiv:1602.08124). Beside recomputation of whole layers, what they
save is their input alone. Bytes are copied, and tensors lie in them as they did: no bit changes.

Left where they are: parameters, which are there in any case, what all layers share (masks and
angles), and memory of less than LEAST_BYTES, which costs more to send than it takes.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

LEAST_BYTES = 2**20
# Devices with memory of their own.
APART = ("cuda",)


def keep_on_host(layers: Sequence[nn.Module]) -> None:
    """Have what each of `layers` saves for the backward pass wait in the host's memory.

    In place, names unchanged. To be called after `recompute` and `compile_layers`, before `shard`.
    On a device whose memory is the host's, nothing is moved.
    """
    before = _Before()
    for number, layer in enumerate(layers):
        call = functools.partial(_run, layer, layer.forward, before, number)
        layer.forward = call


def _run(
    layer: nn.Module,
    forward: Callable[..., Any],
    before: "_Before",
    number: int,
    *args: Any,
    **kwargs: Any,
) -> Any:
    given = next((each for each in args if isinstance(each, Tensor)), None)
    if given is None or given.device.type not in APART or not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    stay = [*layer.parameters(), *_find_shared((*args, *kwargs.values()))]
    copies = LayerCopies(stay, before.follow(number))
    before.last = weakref.ref(copies)
    with saved_tensors_hooks(copies.pack, copies.unpack):
        return forward(*args, **kwargs)


def _find_shared(given: Iterable[Any]) -> Iterator[Tensor]:
    """Tensors of the plain objects among `given` (`Sight`), which all layers are given alike."""
    for each in given:
        if isinstance(each, tuple | list):
            yield from _find_shared(each)
        elif not isinstance(each, Tensor | nn.Module) and hasattr(each, "__dict__"):
            parts = vars(each).values()
            yield from (part for part in parts if isinstance(part, Tensor))
            yield from _find_shared(parts)


class _Before:
    """The layer that went forward last, of a pass through layers in their order."""

    def __init__(self) -> None:
        self.last: weakref.ref[LayerCopies] | None = None

    def follow(self, number: int) -> "weakref.ref[LayerCopies] | None":
        """The one before layer `number` in the pass; None: it is the first."""
        return self.last if number else None


@dataclass(eq=False)
class HostCopy:
    """Memory in which some of what was saved lies."""

    of: StorageWeakRef  # the memory on the device; while this is held no other has its number
    there: Tensor  # its bytes, on the host
    device: torch.device
    back: Tensor | None = None  # its bytes on the device again


@dataclass(frozen=True)
class SavedTensor:
    """Where in a copy a tensor lies."""

    copy: HostCopy
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]

    def restore(self) -> Tensor:
        """It, in the bytes that are back on the device."""
        assert self.copy.back is not None
        made = torch.empty(0, dtype=self.dtype, device=self.copy.device)
        storage = self.copy.back.untyped_storage()
        return made.set_(storage, self.offset, self.size, self.stride)


class LayerCopies:
    """What one pass through a layer has saved."""

    def __init__(
        self, stay: Sequence[Tensor], before: "weakref.ref[LayerCopies] | None" = None
    ) -> None:
        """`stay`: tensors that do, and all that lies in their memory; `before`: of the layer before
        it, which is to be fetched while this one goes backward."""
        self._stay = {each.untyped_storage().data_ptr() for each in stay if each.numel()}
        self._copies: dict[tuple[int, int], HostCopy] = {}
        self._before = before
        self._fetched = False

    def pack(self, tensor: Tensor) -> Tensor | SavedTensor:
        """Send the memory of `tensor` to the host, once for all that lies in it."""
        storage = tensor.untyped_storage()
        here = tensor.device.type in APART and storage.nbytes() >= LEAST_BYTES
        if not here or storage.data_ptr() in self._stay:
            return tensor
        of = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        key = of.cdata, tensor._version
        if key not in self._copies:
            held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._copies[key] = HostCopy(of, _send(held), tensor.device)
        offset = int(tensor.storage_offset())
        return SavedTensor(self._copies[key], tensor.dtype, offset, tensor.size(), tensor.stride())

    def unpack(self, saved: Tensor | SavedTensor) -> Tensor:
        """What was saved, on its device; all of the layer is fetched with the first."""
        if isinstance(saved, Tensor):
            return saved
        self.fetch()
        before = self._before() if self._before else None
        if before is not None:
            before.fetch()
        assert saved.copy.back is not None
        _wait(saved.copy.back)
        return saved.restore()

    def fetch(self) -> None:
        """Begin to bring all of it back to the device, once."""
        if not self._fetched:
            self._fetched = True
            for each in self._copies.values():
                each.back = _fetch(each.there, each.device)


@functools.cache
def _find_stream(device: torch.device) -> torch.cuda.Stream:
    """Copies of `device` go one after another, so each is there before it is fetched again."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _send(tensor: Tensor) -> Tensor:
    """A copy on the host; on CUDA it is under way on a stream of its own."""
    if not tensor.is_cuda:
        return tensor.clone()
    there = torch.empty_like(tensor, device="cpu", pin_memory=True)
    stream = _find_stream(tensor.device)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(stream):
        there.copy_(tensor, non_blocking=True)
    tensor.record_stream(stream)
    return there


def _fetch(there: Tensor, device: torch.device) -> Tensor:
    """A copy on `device`, under way on the stream of `_send`."""
    if device.type != "cuda":
        return there.clone()
    with torch.cuda.stream(_find_stream(device)):
        return there.to(device, non_blocking=True)


def _wait(back: Tensor) -> None:
    """Have what is computed next see `back`."""
    if back.is_cuda:
        current = torch.cuda.current_stream(back.device)
        current.wait_stream(_find_stream(back.device))
        back.record_stream(current)
