"""What layers keep for the backward pass, in the host's memory until then.

Of each layer, what autograd saves goes to the host (pinned, on a stream of its own) as soon as it
is saved. Its memory is let go of when the layer after the next begins, and comes back while the
layer after it goes backward; so a device holds that of two layers (Rhu et al. 2016, "vDNN",
arXiv:1602.08124). Beside recomputation of whole layers, what they save is their input alone. Bytes
are copied, and tensors lie in them as they did: no bit changes.

Left where they are: parameters, which are there in any case, what several layers are given alike
(masks, angles, the text that a decoder looks at), and memory of less than LEAST_BYTES, which costs
more to send than it takes.

All memory of the device belongs to the stream that computes, which waits for copies out of it
before it is let go of, and for copies into it before it is read. So the allocator hands it on in
time, without `Tensor.record_stream`, after which it would keep each block until an event that the
host, far ahead, has not seen.
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
LAYERS_HELD = 2  # whose memory is still on the device when they have gone forward
# Devices with memory of their own.
APART = ("cuda",)


def keep_on_host(stages: Sequence[Sequence[nn.Module]]) -> None:
    """Have what the layers of each of `stages` save for the backward pass wait in the host's
    memory: of several stages of a pipeline each is gone through by itself.

    In place, names unchanged. To be called after `recompute` and `compile_layers`, before `shard`.
    On a device whose memory is the host's, nothing is moved.
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
    given = next((each for each in args if isinstance(each, Tensor)), None)
    if given is None or given.device.type not in APART or not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    shared = list(_find_tensors([each for each in (*args, *kwargs.values()) if each is not given]))
    copies = LayerCopies(layer, shared, passing.begin(first))
    passing.add(copies)
    with saved_tensors_hooks(copies.pack, copies.unpack):
        return forward(*args, **kwargs)


def _find_tensors(given: Iterable[Any], seen: set[int] | None = None) -> Iterator[Tensor]:
    """Those among `given`, and in what plain objects among it (`Sight`) have."""
    seen = set() if seen is None else seen
    for each in given:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple | list):
            yield from _find_tensors(each, seen)
        elif not isinstance(each, nn.Module | type) and id(each) not in seen:
            seen.add(id(each))
            yield from _find_tensors(getattr(each, "__dict__", {}).values(), seen)


class _Passing:
    """Passes through the layers of a stage, in their order."""

    def __init__(self, leaving: "deque[weakref.ref[LayerCopies]]") -> None:
        """`leaving`: of all stages, whose memory may still be on the device, the oldest first."""
        self._leaving = leaving
        self._last: weakref.ref[LayerCopies] | None = None  # of the pass that is under way

    def begin(self, first: bool) -> "weakref.ref[LayerCopies] | None":
        """A layer goes forward, the `first` or not: the one before it in the pass; None: none."""
        if self._leaving and (newest := self._leaving[-1]()) is not None:
            newest.finish()
        while len(self._leaving) >= LAYERS_HELD:
            if (oldest := self._leaving.popleft()()) is not None:
                oldest.let_go()
        return None if first else self._last

    def add(self, copies: "LayerCopies") -> None:
        """The copies of the layer that goes forward."""
        self._last = weakref.ref(copies)
        self._leaving.append(self._last)


@dataclass(eq=False)
class HostCopy:
    """Memory in which some of what was saved lies."""

    of: StorageWeakRef  # the memory on the device; while this is held no other has its number
    there: Tensor  # its bytes, on the host
    device: torch.device
    here: Tensor | None  # its bytes on the device, until they are let go of and once they are back


@dataclass(frozen=True)
class SavedTensor:
    """Where in a copy a tensor lies."""

    copy: HostCopy
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]

    def restore(self) -> Tensor:
        """It, in the bytes that are on the device."""
        assert self.copy.here is not None
        made = torch.empty(0, dtype=self.dtype, device=self.copy.device)
        return made.set_(self.copy.here.untyped_storage(), self.offset, self.size, self.stride)


class LayerCopies:
    """What one pass through a layer has saved."""

    def __init__(
        self,
        layer: nn.Module,
        shared: Sequence[Tensor],
        before: "weakref.ref[LayerCopies] | None" = None,
    ) -> None:
        """`shared`: tensors that stay, as the parameters of `layer` do; `before`: of the layer
        before it, which is to be fetched while this one goes backward."""
        self._layer, self._before = layer, before
        self._shared = {each.untyped_storage().data_ptr() for each in shared if each.numel()}
        self._copies: dict[tuple[int, int], HostCopy] = {}
        self._left: torch.cuda.Event | None = None  # when all is on the host
        self._arrived: torch.cuda.Event | None = None  # when what was fetched is on the device
        self._fetched = False

    def pack(self, tensor: Tensor) -> Tensor | SavedTensor:
        """Send the memory of `tensor` to the host, once for all that lies in it."""
        storage = tensor.untyped_storage()
        if tensor.device.type not in APART or storage.nbytes() < LEAST_BYTES:
            return tensor
        of = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        key = of.cdata, tensor._version
        if key not in self._copies:
            if self._stays(storage.data_ptr()):
                return tensor
            here = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._copies[key] = HostCopy(of, _send(here), tensor.device, here)
        offset = int(tensor.storage_offset())
        return SavedTensor(self._copies[key], tensor.dtype, offset, tensor.size(), tensor.stride())

    def _stays(self, place: int) -> bool:
        """Whether the memory at `place` is that of something shared, or of a parameter. FSDP
        gathers experts within the layer, so parameters are asked for now."""
        own = (
            each.to_local() if isinstance(each, DTensor) else each
            for each in self._layer.parameters()
        )
        return place in self._shared or any(
            each.untyped_storage().data_ptr() == place for each in own
        )

    def finish(self) -> None:
        """All that the layer saves has been saved."""
        if self._left is None:
            self._left = _record([copy.device for copy in self._copies.values()])

    def let_go(self) -> None:
        """Hold nothing of it on the device any more, until it is fetched."""
        if self._fetched:
            return
        for copy in self._copies.values():
            if self._left is not None:
                torch.cuda.current_stream(copy.device).wait_event(self._left)
            copy.here = None

    def unpack(self, saved: Tensor | SavedTensor) -> Tensor:
        """What was saved, on its device; all of the layer is fetched with the first, and then that
        of the layer before it, for when it is asked for."""
        if isinstance(saved, Tensor):
            return saved
        self.fetch()
        self._wait()
        before = self._before() if self._before else None
        if before is not None:
            before.fetch()
        return saved.restore()

    def fetch(self) -> None:
        """Begin to bring back what is on the host alone, once."""
        if self._fetched:
            return
        self._fetched = True
        gone = [copy for copy in self._copies.values() if copy.here is None]
        if gone:
            self._arrived = _fetch(gone)

    def _wait(self) -> None:
        """Have what is computed next see what was fetched."""
        if self._arrived is not None:
            device = next(iter(self._copies.values())).device
            torch.cuda.current_stream(device).wait_event(self._arrived)
            self._arrived = None

    def __del__(self) -> None:
        # Memory that copies still come into is not to be handed on.
        self._wait()


@functools.cache
def _find_stream(device: torch.device) -> torch.cuda.Stream:
    """Copies of `device` go one after another, so each is there before it is fetched again."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _send(here: Tensor) -> Tensor:
    """A copy on the host; on CUDA it is under way on a stream of its own."""
    if not here.is_cuda:
        return here.clone()
    there = torch.empty_like(here, device="cpu", pin_memory=True)
    stream = _find_stream(here.device)
    stream.wait_stream(torch.cuda.current_stream(here.device))
    with torch.cuda.stream(stream):
        there.copy_(here, non_blocking=True)
    return there


def _record(devices: Sequence[torch.device]) -> torch.cuda.Event | None:
    """When all that was sent from the one device of `devices` is on the host."""
    if not devices or devices[0].type != "cuda":
        return None
    event: torch.cuda.Event = _find_stream(devices[0]).record_event()
    return event


def _fetch(gone: Sequence[HostCopy]) -> torch.cuda.Event | None:
    """Bring `gone` back to the one device that they are of: when all of them are there."""
    device = gone[0].device
    if device.type != "cuda":
        for copy in gone:
            copy.here = copy.there.clone()
        return None
    stream = _find_stream(device)
    room = [torch.empty_like(copy.there, device=device, pin_memory=False) for copy in gone]
    stream.wait_stream(torch.cuda.current_stream(device))  # for what was in that memory
    with torch.cuda.stream(stream):
        for copy, here in zip(gone, room, strict=True):
            here.copy_(copy.there, non_blocking=True)
            copy.here = here
    event: torch.cuda.Event = stream.record_event()
    return event
