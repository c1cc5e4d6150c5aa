"""Activations saved for the backward pass, offloaded to the host's memory until then.

Whatever autograd saves within a layer is copied to the host (pinned memory, on a stream of its own)
as soon as it is saved. The device memory is released when the layer after the next one begins, and
the copy returns while the following layer goes backward. A device therefore holds the activations
of two layers (Rhu et al. 2016, "vDNN", arXiv:1602.08124). With recomputation of whole layers, only
the input of each layer is saved and copied. Bytes are copied, and tensors keep their layout in
them, so no bit changes.

Three kinds of tensors stay on the device: parameters, which are there in any case; tensors that
several layers receive (masks, rotary angles, the encoder output that a decoder attends to); and
memory of less than LEAST_BYTES, where the transfer costs more than the space.

All device memory belongs to the compute stream, which waits for copies out of a block before the
block is released, and for copies into it before it is read. The allocator can then reuse blocks at
once. `Tensor.record_stream` would instead keep each block until the host, which runs far ahead, has
seen an event.
"""

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

LEAST_BYTES = 2**20
LAYERS_HELD = 2  # layers whose saved tensors stay on the device after their forward pass
# Device types with memory separate from the host's.
APART = ("cuda",)


def keep_on_host(stages: Sequence[Sequence[nn.Module]]) -> None:
    """Offload what the layers of each of `stages` save for the backward pass to the host's memory.

    Each stage of a pipeline is traversed on its own. Layers are changed in place and keep their
    names. Call this after `recompute` and `compile_layers`, and before `shard`. On a device that
    shares the host's memory, nothing is moved.
    """
    leaving: deque[weakref.ref[LayerCopies]] = deque()
    for layers in stages:
        passing = _Passing(leaving)
        for number, layer in enumerate(layers):
            layer.forward = functools.partial(_run, layer, layer.forward, passing, number == 0)


def _run(
    layer: nn.Module,
    forward: Callable[..., Any],
    passing: "_Passing",
    first: bool,
    *args: Any,
    **kwargs: Any,
) -> Any:
    given = next((argument for argument in args if isinstance(argument, Tensor)), None)
    if given is None or given.device.type not in APART or not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    shared = list(
        _find_tensors([argument for argument in (*args, *kwargs.values()) if argument is not given])
    )
    copies = LayerCopies(layer, shared, passing.begin(first))
    passing.add(copies)
    with saved_tensors_hooks(copies.pack, copies.unpack):
        return forward(*args, **kwargs)


def _find_tensors(given: Iterable[Any], seen: set[int] | None = None) -> Iterator[Tensor]:
    """Yield the tensors in `given`, also inside tuples, lists and plain objects such as `Sight`."""
    seen = set() if seen is None else seen
    for item in given:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, tuple | list):
            yield from _find_tensors(item, seen)
        elif not isinstance(item, nn.Module | type) and id(item) not in seen:
            seen.add(id(item))
            yield from _find_tensors(getattr(item, "__dict__", {}).values(), seen)


class _Passing:
    """Sequence of forward passes through the layers of one stage, in order."""

    def __init__(self, leaving: "deque[weakref.ref[LayerCopies]]") -> None:
        """`leaving`: saved tensors of all stages that may be on the device, the oldest first."""
        self._leaving = leaving
        # copies of the latest layer of the current pass
        self._last: weakref.ref[LayerCopies] | None = None

    def begin(self, first: bool) -> "weakref.ref[LayerCopies] | None":
        """Begin a layer's forward pass, and return the copies of the layer before it.

        Returns None for the `first` layer of a pass. Older copies beyond LAYERS_HELD release their
        device memory.
        """
        if self._leaving and (newest := self._leaving[-1]()) is not None:
            newest.finish()
        while len(self._leaving) >= LAYERS_HELD:
            if (oldest := self._leaving.popleft()()) is not None:
                oldest.release()
        return None if first else self._last

    def add(self, copies: "LayerCopies") -> None:
        """Register the copies of the layer that begins its forward pass."""
        self._last = weakref.ref(copies)
        self._leaving.append(self._last)


@dataclass(eq=False)
class HostCopy:
    """Host copy of one storage that holds saved tensors."""

    of: StorageWeakRef  # storage on the device; holding this reference keeps its id unique
    there: Tensor  # the bytes of the storage, on the host
    device: torch.device
    here: Tensor | None  # the bytes on the device; None between release and fetch


@dataclass(frozen=True)
class SavedTensor:
    """Position and layout of one saved tensor within a `HostCopy`."""

    copy: HostCopy
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]

    def restore(self) -> Tensor:
        """Return the saved tensor as a view of the bytes on the device."""
        assert self.copy.here is not None
        made = torch.empty(0, dtype=self.dtype, device=self.copy.device)
        return made.set_(self.copy.here.untyped_storage(), self.offset, self.size, self.stride)


class LayerCopies:
    """Host copies of everything that one forward pass of a layer saved."""

    def __init__(
        self,
        layer: nn.Module,
        shared: Sequence[Tensor],
        before: "weakref.ref[LayerCopies] | None" = None,
    ) -> None:
        """Start with no copies.

        `shared`: tensors that stay on the device, as the parameters of `layer` do. `before`: copies
        of the preceding layer, which are fetched while this layer goes backward.
        """
        self._layer = layer
        self._before = before
        self._shared = {tensor.untyped_storage().data_ptr() for tensor in shared if tensor.numel()}
        self._copies: dict[tuple[int, int], HostCopy] = {}
        self._left: torch.cuda.Event | None = None  # recorded once all copies have reached the host
        # recorded once the fetched copies are on the device
        self._arrived: torch.cuda.Event | None = None
        self._fetched = False

    def pack(self, tensor: Tensor) -> Tensor | SavedTensor:
        """Copy the storage of `tensor` to the host, once for all tensors that share it.

        Returns `tensor` itself if it stays on the device.
        """
        storage = tensor.untyped_storage()
        if tensor.device.type not in APART or storage.nbytes() < LEAST_BYTES:
            return tensor
        of = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        key = of.cdata, tensor._version
        if key not in self._copies:
            if self._is_kept_on_device(storage.data_ptr()):
                return tensor
            here = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._copies[key] = HostCopy(of, _send(here), tensor.device, here)
        offset = int(tensor.storage_offset())
        return SavedTensor(self._copies[key], tensor.dtype, offset, tensor.size(), tensor.stride())

    def _is_kept_on_device(self, place: int) -> bool:
        """Return whether the storage at address `place` is a parameter or shared between layers.

        The parameters are looked up at each call, because FSDP gathers experts within the layer.
        """
        own = (
            parameter.to_local() if isinstance(parameter, DTensor) else parameter
            for parameter in self._layer.parameters()
        )
        return place in self._shared or any(
            tensor.untyped_storage().data_ptr() == place for tensor in own
        )

    def finish(self) -> None:
        """Record that the layer has saved all its tensors."""
        if self._left is None:
            self._left = _record([copy.device for copy in self._copies.values()])

    def release(self) -> None:
        """Release the device memory of all copies until they are fetched."""
        if self._fetched:
            return
        for copy in self._copies.values():
            if self._left is not None:
                torch.cuda.current_stream(copy.device).wait_event(self._left)
            copy.here = None

    def unpack(self, saved: Tensor | SavedTensor) -> Tensor:
        """Return a saved tensor on its device.

        The first call fetches all copies of the layer, and then starts to fetch those of the layer
        before it.
        """
        if isinstance(saved, Tensor):
            return saved
        self.fetch()
        self._wait()
        before = self._before() if self._before else None
        if before is not None:
            before.fetch()
        return saved.restore()

    def fetch(self) -> None:
        """Start to copy back everything that is on the host alone; does nothing the second time."""
        if self._fetched:
            return
        self._fetched = True
        gone = [copy for copy in self._copies.values() if copy.here is None]
        if gone:
            self._arrived = _fetch(gone)

    def _wait(self) -> None:
        """Make the compute stream wait for the fetched copies."""
        if self._arrived is not None:
            device = next(iter(self._copies.values())).device
            torch.cuda.current_stream(device).wait_event(self._arrived)
            self._arrived = None

    def __del__(self) -> None:
        # The allocator must not reuse memory while a copy into it is running.
        self._wait()


@functools.cache
def _find_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the one copy stream of `device`.

    Copies on it run in order, so each has arrived before it is fetched again.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _send(here: Tensor) -> Tensor:
    """Return a copy of `here` on the host; on CUDA the copy runs on its own stream."""
    if not here.is_cuda:
        return here.clone()
    there = torch.empty_like(here, device="cpu", pin_memory=True)
    stream = _find_stream(here.device)
    stream.wait_stream(torch.cuda.current_stream(here.device))
    with torch.cuda.stream(stream):
        there.copy_(here, non_blocking=True)
    return there


def _record(devices: Sequence[torch.device]) -> torch.cuda.Event | None:
    """Return an event for when all copies from the single device in `devices` have arrived."""
    if not devices or devices[0].type != "cuda":
        return None
    event: torch.cuda.Event = _find_stream(devices[0]).record_event()
    return event


def _fetch(gone: Sequence[HostCopy]) -> torch.cuda.Event | None:
    """Copy `gone` back to their common device, and return an event for when all have arrived."""
    device = gone[0].device
    if device.type != "cuda":
        for copy in gone:
            copy.here = copy.there.clone()
        return None
    stream = _find_stream(device)
    room = [torch.empty_like(copy.there, device=device, pin_memory=False) for copy in gone]
    # earlier operations may still use that memory
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for copy, here in zip(gone, room, strict=True):
            here.copy_(copy.there, non_blocking=True)
            copy.here = here
    event: torch.cuda.Event = stream.record_event()
    return event
