"""Steps of any optimizer with state in the host's memory (Ren et al. 2021, arXiv:2101.06840).

Unlike that paper, which updates on the CPU, the state is copied to the device and the device
updates: the same kernels on the same numbers give the same bits.

Fetches from the host, computation and stores back are ordered by `Lanes`.

Everything passes through two slots of device memory in turn: while one is used in computation, the
other is stored and refilled.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainrig.optim.elementwise import lay_out_like, to_local
from trainrig.optim.matrix_steps import WholeTensorSteps, split_into_rounds
from trainrig.optim.parameter_groups import ParameterGroup

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


COUNTER = "step"  # a scalar, which stays where the optimizer keeps it
ALIGNMENT = 512  # bytes, as in CUDA's allocator: kernels read vectors


@dataclass(frozen=True)
class Unit:
    """Parameters that are updated together: a single one, or a round of whole matrices."""

    group: ParameterGroup  # the group of the parameters
    parameters: Sequence[Tensor]


class OffloadedOptimizer(torch.optim.Optimizer):
    """Optimizer that takes the steps of `inner` unit by unit, with state in the host's memory.

    The device holds the state of two units during a step, and none between steps.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__([_name_parameters(group) for group in inner.param_groups], inner.defaults)
        whole = isinstance(inner, WholeTensorSteps)
        self._cut: Callable[[Iterable[Tensor]], Iterator[list[Tensor]]] = (
            split_into_rounds if whole else _take_singly
        )
        self._inner = inner
        self._lanes: Lanes | None = None  # None until the first step determines the device

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step on every parameter that has a gradient."""
        units = list(self._list_units())
        if not units:
            return
        device = to_local(units[0].parameters[0]).device
        lanes = self._lanes = self._lanes or open_lanes(device)
        slots = self._make_slots(units, device)
        lanes.begin()
        fetched = self._fetch(units[0], lanes, slots, 0)
        for number, unit in enumerate(units):
            ahead = number + 1
            coming = self._fetch(units[ahead], lanes, slots, ahead) if ahead < len(units) else {}
            lanes.use(number % SLOTS)
            self._update(unit, fetched)
            self._store(unit, lanes, number % SLOTS)
            fetched = coming
        self._inner.state.clear()
        lanes.join()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer state, after all of it has arrived in the host's memory."""
        if self._lanes:
            self._lanes.wait()
        return super().state_dict()

    def _list_units(self) -> Iterator[Unit]:
        for group in self.param_groups:
            for parameters in self._cut(p for p in group["params"] if p.grad is not None):
                yield Unit(group, parameters)

    def _list_hosted(self, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and tensor of each state of `parameter` in the host's memory."""
        for name, kept in self.state.get(parameter, {}).items():
            if name != COUNTER:
                yield name, kept

    def _make_slots(self, units: Sequence[Unit], device: torch.device) -> list[Tensor]:
        """Allocate the slots on `device`, each for the largest unit that passes through it."""
        sizes = [0] * SLOTS
        for number, unit in enumerate(units):
            size = sum(
                _count_room(kept)
                for parameter in unit.parameters
                for _, kept in self._list_hosted(parameter)
            )
            sizes[number % SLOTS] = max(sizes[number % SLOTS], size)
        return [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]

    def _fetch(
        self, unit: Unit, lanes: Lanes, slots: Sequence[Tensor], number: int
    ) -> dict[Tensor, dict[str, Any]]:
        """Copy the state of unit `number` into its slot, and return it by parameter and name."""
        found: dict[Tensor, dict[str, Any]] = {}
        slot = number % SLOTS
        at = 0
        with lanes.fetch(slot):
            for parameter in unit.parameters:
                if parameter not in self.state:
                    continue
                found[parameter] = dict(self.state[parameter])
                for name, kept in self._list_hosted(parameter):
                    size = to_local(kept).nbytes
                    copy = _lay_out(slots[slot][at : at + size], kept)
                    to_local(copy).copy_(to_local(kept), non_blocking=True)
                    found[parameter][name] = copy
                    at += _count_room(kept)
        return found

    def _update(self, unit: Unit, fetched: dict[Tensor, dict[str, Any]]) -> None:
        """Take a step of the inner optimizer on `unit` alone."""
        self._inner.param_groups = [unit.group | {"params": list(unit.parameters)}]
        self._inner.state.clear()
        self._inner.state.update(fetched)
        self._inner.step()

    def _store(self, unit: Unit, lanes: Lanes, slot: int) -> None:
        """Copy the inner optimizer's new state of `unit` to the host's memory."""
        fresh = False
        with lanes.store(slot):
            for parameter in unit.parameters:
                state = self.state[parameter]
                for name, value in self._inner.state[parameter].items():
                    if name == COUNTER:
                        state[name] = value
                        continue
                    if name not in state:
                        state[name] = _make_host_tensor(value)
                        fresh = True
                    to_local(state[name]).copy_(to_local(value), non_blocking=True)
        if fresh:  # new state is outside the slots, and its memory is freed now
            lanes.join()


def _name_parameters(group: ParameterGroup) -> ParameterGroup:
    """Return `group` with pairs of name and parameter, as optimizers accept it."""
    rest = {key: value for key, value in group.items() if key != "param_names"}
    if names := group.get("param_names"):
        rest["params"] = list(zip(names, group["params"], strict=True))
    return rest


def _take_singly(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    return ([parameter] for parameter in parameters)


def _count_room(kept: Tensor) -> int:
    """Return the bytes of a slot that this rank's slice of `kept` takes, with alignment."""
    return -(-to_local(kept).nbytes // ALIGNMENT) * ALIGNMENT


def _make_host_tensor(like: Tensor) -> Tensor:
    """Allocate a tensor like `like` in the host's memory, with the same sharding and mesh.

    `DTensor.from_local` would move it to the device of the mesh. `empty_like` with a device
    allocates the slice there and keeps the mesh.
    """
    pinned = to_local(like).is_cuda  # copies of pageable memory would not overlap with computation
    return torch.empty_like(like, device="cpu", pin_memory=pinned)


def _lay_out(room: Tensor, kept: Tensor) -> Tensor:
    """Return the device memory `room`, as large as the slice of `kept`, as a tensor like `kept`."""
    local = to_local(kept)
    return lay_out_like(room.view(local.dtype).as_strided(local.shape, local.stride()), kept)
