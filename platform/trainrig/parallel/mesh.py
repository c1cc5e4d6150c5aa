"""The devices of a run, as axes with names: the one place that says what each rank is for.

A *replica* is the ranks that compute a micro-batch together, neighbours of each other. Data is
divided among replicas, so what asks for a share of it, or adds up over it, asks for `data_rank` and
`data_size`, never for the rank in the process group.
"""

import os
import socket
import time
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainrig.errors import ClusterError

# The axes of a mesh, the outermost first: ranks next to each other differ in the last.
REPLICATE, SHARD, CONTEXT, TENSOR = "data_replicate", "data_shard", "context", "tensor"
EXPERT = "expert"  # where CONTEXT is: no mesh has both
PIPELINE = "pipeline"  # between SHARD and these
# SHARD and CONTEXT or EXPERT as one axis, or REPLICATE and one of these.
SLICES, COPIES = "slices", "copies"
PROBE_SECONDS = 0.005  # s between the first two of the rendezvous endpoint; then ever longer,
LONGEST_PROBE = 0.2  # up to this
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def local_device() -> torch.device:
    """The device of this process: its GPU if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def use_device(number: int | None) -> None:
    """Let this process's GPU be the one of this number; None: it was given none of its own.

    Raises ClusterError if it is not there: a rank that went on would train on its CPU unsaid, and
    the others wait for it.
    """
    if number is None:
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number >= count:
        raise ClusterError(
            f"{socket.gethostname()}: this rank was given GPU {number}, and CUDA sees {count} here "
            "(CUDA_VISIBLE_DEVICES="
            f"'{os.environ.get('CUDA_VISIBLE_DEVICES', '')}'); is it lost? See nvidia-smi and dmesg"
        )
    torch.cuda.set_device(number)


@dataclass(frozen=True)
class Axis:
    """This rank and its peers along one axis."""

    size: int = 1
    rank: int = 0  # this one's place among them
    group: dist.ProcessGroup | None = None  # they; None: this rank alone


@dataclass(frozen=True)
class WorkerMesh:
    """All ranks of a run, as this one sees them. An axis of one rank has no group, sends nothing
    and is no axis of any tensor."""

    devices: DeviceMesh  # of all axes that are longer than 1, and SHARD
    sharding: DeviceMesh  # along whose last axis FSDP slices; along one before it, alike
    slices: Axis = field(default_factory=Axis)  # the last of `sharding`
    context: Axis = field(default_factory=Axis)  # ranks that share each row
    tensor: Axis = field(default_factory=Axis)  # ranks that share each layer
    pipeline: Axis = field(default_factory=Axis)  # ranks that have some layers each
    pipeline_back: Axis = field(default_factory=Axis)  # the same, for what goes backward
    expert: Axis = field(default_factory=Axis)  # ranks that share experts, and each micro-batch
    # `sharding` and `slices` of experts that are divided; None: they are not.
    experts: DeviceMesh | None = None
    expert_slices: Axis = field(default_factory=Axis)

    @property
    def parts(self) -> Axis:
        """The ranks that have a part each of the same micro-batches: of rows, or some rows."""
        return self.expert if self.expert.group else self.context

    @property
    def data_rank(self) -> int:
        """Which replica this rank is part of, as data is divided among them."""
        return dist.get_rank() // self._replica

    @property
    def data_size(self) -> int:
        """How many replicas there are."""
        return dist.get_world_size() // self._replica

    @property
    def speaks(self) -> bool:
        """Whether this rank says, once for its replica, what all of that know."""
        return dist.get_rank() % self._replica == 0

    @property
    def _replica(self) -> int:
        return self.parts.size * self.tensor.size * self.pipeline.size


def build_mesh(
    device: torch.device,
    copies: int | None = None,
    context: int = 1,
    tensor: int = 1,
    expert: int = 1,
    pipeline: int = 1,
) -> WorkerMesh:
    """The mesh of all ranks of the process group, which all call it; `context` or `expert` is 1.

    `copies`: groups of ranks that hold a whole model each (a whole part of each layer, where
    `tensor` ranks share one; a whole stage, where `pipeline` ranks have some layers each), in
    slices within the group; None: one, and `sharding` has one axis.
    """
    assert context == 1 or expert == 1, "a mesh has one axis of parts of micro-batches"
    within, parts = (EXPERT, expert) if expert > 1 else (CONTEXT, context)
    slices = dist.get_world_size() // tensor // pipeline // (copies or 1)
    whole = copies is not None and slices == 1  # then ranks of a replica are copies as well
    shared = parts if whole else 1
    sizes = {
        REPLICATE: (copies or 1) // shared,
        SHARD: slices * shared // parts,
        PIPELINE: pipeline,
        within: parts,
        TENSOR: tensor,
    }
    always = {SHARD} if copies is None else {REPLICATE, SHARD}
    apart = (REPLICATE, within, SHARD, PIPELINE, TENSOR)
    order = apart if whole else (REPLICATE, SHARD, PIPELINE, within, TENSOR)
    names = tuple(name for name in order if sizes[name] > 1 or name in always)
    lengths = tuple(sizes[name] for name in names)
    devices = init_device_mesh(device.type, lengths, mesh_dim_names=names)
    outer, inner = REPLICATE, SHARD
    if parts > 1 and whole:
        outer = _flatten(devices, (REPLICATE, within), COPIES)
    elif parts > 1:
        inner = _flatten(devices, (SHARD, within), SLICES)

    def slicing(outer: str, inner: str) -> DeviceMesh:
        return devices[inner] if copies is None else devices[outer, inner]

    sharding = slicing(outer, inner)
    return WorkerMesh(
        devices,
        sharding,
        _axis(sharding, inner),
        _axis(devices, CONTEXT),
        _axis(devices, TENSOR),
        pipeline=_axis(devices, PIPELINE),
        pipeline_back=_axis(_twin(devices), PIPELINE) if pipeline > 1 else Axis(),
        expert=_axis(devices, EXPERT),
        experts=slicing(REPLICATE, SHARD) if expert > 1 else None,
        expert_slices=_axis(devices, SHARD),
    )


def _twin(devices: DeviceMesh) -> DeviceMesh:
    """The same ranks along the same axes, in process groups of their own."""
    shape = tuple(devices.shape)
    return init_device_mesh(devices.device_type, shape, mesh_dim_names=devices.mesh_dim_names)


def _flatten(devices: DeviceMesh, names: tuple[str, str], name: str) -> str:
    """Have two axes of `devices` be known as one of that `name`, too."""
    devices[names]._flatten(name)
    return name


def _axis(devices: DeviceMesh, name: str) -> Axis:
    """The axis of `devices` that has that `name`, if one has."""
    names = devices.mesh_dim_names or ()
    if name not in names or (size := devices.size(names.index(name))) == 1:
        return Axis()
    return Axis(size, devices.get_local_rank(name), devices.get_group(name))


def join_group(rank: int, world: int, rendezvous: str, timeout: timedelta) -> None:
    """Form a group with the other processes, which meet at the URL `rendezvous`."""
    if rank and rendezvous.startswith("tcp:"):
        _await(rendezvous, time.monotonic() + timeout.total_seconds())
    dist.init_process_group(
        BACKENDS[local_device().type],
        init_method=rendezvous,
        rank=rank,
        world_size=world,
        timeout=timeout,
    )


def _await(rendezvous: str, until: float) -> None:
    """Return when somebody listens there, or it is time to find out why not.

    torch's own client waits for 0.25 to 1 s after it came too early, which most do.
    """
    place = urlsplit(rendezvous)
    pause = PROBE_SECONDS
    while time.monotonic() < until:
        try:
            socket.create_connection((place.hostname, place.port), timeout=LONGEST_PROBE).close()
            return
        except OSError:
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PROBE)
