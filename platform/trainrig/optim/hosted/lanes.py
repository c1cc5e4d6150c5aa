"""Ordering of fetches from the host, computation and stores back.

Everything passes through two slots of device memory in turn: while one is used in computation, the
other is stored and refilled.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch

SLOTS = 2
# torch does not annotate these constructors.
_Stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
_Event: Callable[[], torch.cuda.Event] = torch.cuda.Event


class Lanes:
    """Order of copies and computation on a device that executes everything in order, like a CPU."""

    def begin(self) -> None:
        """Order later fetches after the allocation of the slots."""

    def fetch(self, slot: int) -> AbstractContextManager[None]:
        """Run the copies of the block into a slot, after the slot's previous content is stored."""
        return contextlib.nullcontext()

    def use(self, slot: int) -> None:
        """Order later computation after the last fetch into a slot."""

    def store(self, slot: int) -> AbstractContextManager[None]:
        """Run the copies of the block out of a slot, after the computation so far."""
        return contextlib.nullcontext()

    def join(self) -> None:
        """Order later computation after all stores, also where it reuses freed memory."""

    def wait(self) -> None:
        """Wait until all stores have reached the host's memory, so that the host can read it."""


class SideStreams(Lanes):
    """Lanes of a GPU, with one stream for fetches and one for stores besides the compute stream.

    The slots belong to the compute stream, which joins the others before it frees them. The
    allocator can then reuse the memory at once. `Tensor.record_stream` would instead keep each
    block until the host, which runs far ahead, has seen an event, so that more than two blocks
    would exist.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._fetches, self._stores = (_Stream(device) for _ in range(2))
        # Waiting for an event that was never recorded returns at once.
        self._fetched = [_Event() for _ in range(SLOTS)]
        self._stored = [_Event() for _ in range(SLOTS)]

    @property
    def _computes(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def begin(self) -> None:
        """Order fetches after the allocation of the slots on the compute stream."""
        self._fetches.wait_stream(self._computes)

    @contextlib.contextmanager
    def fetch(self, slot: int) -> Iterator[None]:
        """Run the block on the fetch stream. See `Lanes.fetch`."""
        self._fetches.wait_event(self._stored[slot])
        with torch.cuda.stream(self._fetches):
            yield
            self._fetched[slot].record()

    def use(self, slot: int) -> None:
        """Make the compute stream wait for the fetch. See `Lanes.use`."""
        self._computes.wait_event(self._fetched[slot])

    @contextlib.contextmanager
    def store(self, slot: int) -> Iterator[None]:
        """Run the block on the store stream. See `Lanes.store`."""
        self._stores.wait_stream(self._computes)
        with torch.cuda.stream(self._stores):
            yield
            self._stored[slot].record()

    def join(self) -> None:
        """Make the compute stream wait for all stores. See `Lanes.join`."""
        self._computes.wait_stream(self._stores)

    def wait(self) -> None:
        """Block the host until the store stream is done. See `Lanes.wait`."""
        self._stores.synchronize()


def open_lanes(device: torch.device) -> Lanes:
    """Return the lanes for `device`."""
    return SideStreams(device) if device.type == "cuda" else Lanes()
