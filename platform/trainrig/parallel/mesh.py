"""The devices of a run, as axes with names: the one place that says what each rank is for.

A *replica* is the ranks that compute a micro-batch together, neighbours of each other. Data is
divided among replicas, so what asks for a share of it, or adds up over it, asks for `data_rank` and
`data_size`, never for the rank in the process group.
"""

import hashlib
import os
import socket
import time
from collections.abc import Sequence
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
NODES, NODE = "nodes", "node"
PROBE_SECONDS = 0.005  # s between the first two of the rendezvous endpoint; then ever longer,
LONGEST_PROBE = 0.2  # up to this
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def find_local_device() -> torch.device:
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
    # The same, for what goes from the last of them to the first, where each has several stages.
    pipeline_round: Axis = field(default_factory=Axis)
    pipeline_round_back: Axis = field(default_factory=Axis)  # and backward from the first to it
    expert: Axis = field(default_factory=Axis)  # ranks that share experts, and each micro-batch
    # `sharding` and `slices` of experts that are divided; None: they are not.
    experts: DeviceMesh | None = None
    expert_slices: Axis = field(default_factory=Axis)
    copies: Axis = field(default_factory=Axis)  # ranks that hold the same slices
    # Where nothing but `slices` is longer than 1, and every node has as many ranks as any other:
    node: Axis = field(default_factory=Axis)  # ranks of this node
    nodes: Axis = field(default_factory=Axis)  # ranks with this one's place in each node

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
    def lead(self) -> int:
        """The first of all ranks that have the layers which this one has, or a part of them."""
        names = self.devices.mesh_dim_names or ()
        place = tuple(self.pipeline.rank if name == PIPELINE else 0 for name in names)
        return int(self.devices.mesh[place])

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
    chunks: int = 1,
) -> WorkerMesh:
    """The mesh of all ranks of the process group, which all call it; `context` or `expert` is 1.
    `chunks`: stages of each of `pipeline` ranks.

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

    def choose_slicing(outer: str, inner: str) -> DeviceMesh:
        return devices[inner] if copies is None else devices[outer, inner]

    sharding = choose_slicing(outer, inner)
    count = 0 if pipeline == 1 else 1 if chunks == 1 else 3
    twins = [_find_axis(_make_twin(devices), PIPELINE) for _ in range(count)]
    back, around, around_back = (*twins, *[Axis()] * (3 - count))
    grid = None
    if copies is None and len(lengths) == 1:
        grid = _group_by_node(device)
    return WorkerMesh(
        devices,
        sharding,
        _find_axis(sharding, inner),
        _find_axis(devices, CONTEXT),
        _find_axis(devices, TENSOR),
        pipeline=_find_axis(devices, PIPELINE),
        pipeline_back=back,
        pipeline_round=around,
        pipeline_round_back=around_back,
        expert=_find_axis(devices, EXPERT),
        experts=choose_slicing(REPLICATE, SHARD) if expert > 1 else None,
        expert_slices=_find_axis(devices, SHARD),
        copies=Axis() if copies is None else _find_axis(sharding, outer),
        node=_find_axis(grid, NODE) if grid else Axis(),
        nodes=_find_axis(grid, NODES) if grid else Axis(),
    )


def find_node_name() -> str:
    """What the ranks of a node have in common, and no others."""
    return socket.gethostname()


def _group_by_node(device: torch.device) -> DeviceMesh | None:
    """All ranks by node and place in it; None: there is one node, or no two ranks of
    one can be divided from the rest evenly."""
    world = dist.get_world_size()
    name = hashlib.blake2b(find_node_name().encode(), digest_size=7).digest()
    mine = torch.tensor([int.from_bytes(name)], device=device)
    names_W = mine.new_empty(world)
    dist.all_gather_into_tensor(names_W, mine)
    size = count_ranks_of_node(names_W.tolist())
    if size in (1, world):
        return None
    return init_device_mesh(device.type, (world // size, size), mesh_dim_names=(NODES, NODE))


def count_ranks_of_node(nodes: Sequence[int]) -> int:
    """The most neighbouring ranks that all can be divided into so that each such group is on one of
    `nodes`, which are given by rank."""
    world = len(nodes)
    for size in range(world, 1, -1):
        groups = (nodes[first : first + size] for first in range(0, world, size))
        if world % size == 0 and all(len(set(each)) == 1 for each in groups):
            return size
    return 1


def count_spanning(nodes: Sequence[str], size: int) -> int:
    """How many groups of `size` neighbouring ranks are on several of `nodes`, which are given by
    rank."""
    firsts = range(0, len(nodes), size)
    return sum(len(set(nodes[first : first + size])) > 1 for first in firsts)


def _make_twin(devices: DeviceMesh) -> DeviceMesh:
    """The same ranks along the same axes, in process groups of their own."""
    shape = tuple(devices.shape)
    return init_device_mesh(devices.device_type, shape, mesh_dim_names=devices.mesh_dim_names)


def _flatten(devices: DeviceMesh, names: tuple[str, str], name: str) -> str:
    """Have two axes of `devices` be known as one of that `name`, too."""
    devices[names]._flatten(name)
    return name


def _find_axis(devices: DeviceMesh, name: str) -> Axis:
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
        BACKENDS[find_local_device().type],
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
