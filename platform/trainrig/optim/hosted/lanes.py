"""When what is fetched from the host, computed with and stored again comes to pass.

It all goes through two slots of the device's memory in turn: while one is computed with, the other
is stored and filled anew.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch

SLOTS = 2
# torch does not say the types of what makes them.
_Stream: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
_Event: Callable[[], torch.cuda.Event] = torch.cuda.Event


class Lanes:
    """Orders copies to and from the host among what is computed: here of a device that does
    everything as it is told, one after another, as a CPU does."""

    def begin(self) -> None:
        """The slots were made: what is fetched from here on comes later."""

    def fetch(self, slot: int) -> AbstractContextManager[None]:
        """Copies into a slot, which come after what was in it is stored."""
        return contextlib.nullcontext()

    def use(self, slot: int) -> None:
        """What is computed from here on comes after what was fetched into a slot."""

    def store(self, slot: int) -> AbstractContextManager[None]:
        """Copies out of a slot, which come after what has been computed."""
        return contextlib.nullcontext()

    def join(self) -> None:
        """What is computed from here on, in memory given back too, comes after all stores."""

    def wait(self) -> None:
        """Return once all that is stored is in the host's memory, for the host to read."""


class SideStreams(Lanes):
    """Lanes of a GPU: one stream fetches and one stores beside the one that computes.

    The slots belong to the stream that computes, which has joined the others before it gives them
    back. So the allocator hands them on in time, without `Tensor.record_stream`, after which it
    would keep each block until an event that the host, far ahead, has not seen: of such blocks more
    than two would be there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._fetches, self._stores = (_Stream(device) for _ in range(2))
        # Those that were never recorded are waited for in no time.
        self._fetched = [_Event() for _ in range(SLOTS)]
        self._stored = [_Event() for _ in range(SLOTS)]

    @property
    def _computes(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def begin(self) -> None:
        """The slots belong to the stream that computes."""
        self._fetches.wait_stream(self._computes)

    @contextlib.contextmanager
    def fetch(self, slot: int) -> Iterator[None]:
        """See Lanes."""
        self._fetches.wait_event(self._stored[slot])
        with torch.cuda.stream(self._fetches):
            yield
            self._fetched[slot].record()

    def use(self, slot: int) -> None:
        """See Lanes."""
        self._computes.wait_event(self._fetched[slot])

    @contextlib.contextmanager
    def store(self, slot: int) -> Iterator[None]:
        """See Lanes."""
        self._stores.wait_stream(self._computes)
        with torch.cuda.stream(self._stores):
            yield
            self._stored[slot].record()

    def join(self) -> None:
        """See Lanes."""
        self._computes.wait_stream(self._stores)

    def wait(self) -> None:
        """See Lanes: the host waits for the stream that stores."""
        self._stores.synchronize()


def open_lanes(device: torch.device) -> Lanes:
    """Those of `device`."""
    return SideStreams(device) if device.type == "cuda" else Lanes()
