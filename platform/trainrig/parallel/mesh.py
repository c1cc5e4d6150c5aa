"""The named device mesh of a run, which decides what each rank is for.

A *replica* is a group of neighbouring ranks that compute a micro-batch together. Data is divided
among replicas: code that needs a share of the data, or sums over it, uses `data_rank` and
`data_size`, never the rank in the process group.
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

# The axes of a mesh, the outermost first: neighbouring ranks differ in the last axis.
REPLICATE = "data_replicate"
SHARD = "data_shard"
CONTEXT = "context"
TENSOR = "tensor"
EXPERT = "expert"  # takes the place of CONTEXT: no mesh has both
PIPELINE = "pipeline"  # between SHARD and CONTEXT or EXPERT
# SHARD with CONTEXT or EXPERT as one flattened axis, or REPLICATE with one of them.
SLICES = "slices"
COPIES = "copies"
NODES = "nodes"
NODE = "node"
PROBE_SECONDS = 0.005  # seconds between the first two connection attempts, which grow
LONGEST_PROBE = 0.2  # to at most this many seconds
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def find_local_device() -> torch.device:
    """Return the device of this process: its GPU if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def use_device(number: int | None) -> None:
    """Make GPU `number` the current device of this process; None leaves everything as it is.

    Raises ClusterError if CUDA does not see that GPU: the rank would otherwise train on its CPU
    without notice, while the others wait for it.
    """
    if number is None:
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number >= count:
        raise ClusterError(
            f"{socket.gethostname()}: this rank was given GPU {number}, but CUDA sees {count} "
            f"here (CUDA_VISIBLE_DEVICES='{os.environ.get('CUDA_VISIBLE_DEVICES', '')}'). Is the "
            "GPU lost? See nvidia-smi and dmesg"
        )
    torch.cuda.set_device(number)


@dataclass(frozen=True)
class Axis:
    """Size of one mesh axis, this rank's position on it, and its process group."""

    size: int = 1
    rank: int = 0  # position of this rank on the axis
    group: dist.ProcessGroup | None = None  # process group of the axis; None: this rank alone


@dataclass(frozen=True)
class WorkerMesh:
    """Device mesh of a run with all its axes, seen from this rank.

    An axis of size 1 has no group, sends nothing and is not a mesh dimension of any tensor.
    """

    devices: DeviceMesh  # mesh of all axes longer than 1, and SHARD
    sharding: DeviceMesh  # mesh for FSDP: slices along the last axis, copies along an earlier one
    slices: Axis = field(default_factory=Axis)  # the last axis of `sharding`
    context: Axis = field(default_factory=Axis)  # ranks that share each row
    tensor: Axis = field(default_factory=Axis)  # ranks that share each layer
    pipeline: Axis = field(default_factory=Axis)  # ranks that hold some of the layers each
    pipeline_back: Axis = field(default_factory=Axis)  # the same ranks, for gradients sent backward
    # The same ranks, for hidden states that the last rank sends to the first, where each has
    # several stages.
    pipeline_round: Axis = field(default_factory=Axis)
    # the same ranks, for gradients sent from the first to the last
    pipeline_round_back: Axis = field(default_factory=Axis)
    # ranks that divide experts and the rows of micro-batches
    expert: Axis = field(default_factory=Axis)
    # Like `sharding` and `slices`, for experts that are divided; None: experts are not divided.
    experts: DeviceMesh | None = None
    expert_slices: Axis = field(default_factory=Axis)
    copies: Axis = field(default_factory=Axis)  # ranks that hold the same slices
    # Set only where no axis but `slices` is longer than 1 and all nodes have equally many ranks:
    node: Axis = field(default_factory=Axis)  # ranks of this node
    nodes: Axis = field(default_factory=Axis)  # ranks with the same position on each node

    @property
    def parts(self) -> Axis:
        """The ranks that share the same micro-batches: each has parts of rows, or some rows."""
        return self.expert if self.expert.group else self.context

    @property
    def data_rank(self) -> int:
        """The number of this rank's replica; data is divided among replicas."""
        return dist.get_rank() // self._replica

    @property
    def data_size(self) -> int:
        """Number of replicas."""
        return dist.get_world_size() // self._replica

    @property
    def is_reporter(self) -> bool:
        """True on the one rank of a replica that reports what all its ranks know."""
        return dist.get_rank() % self._replica == 0

    @property
    def lead(self) -> int:
        """The first of all ranks that hold this rank's layers, or a part of them."""
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
    """Build the mesh of all ranks of the process group. Collective.

    At most one of `context` and `expert` is above 1. `chunks`: stages of each of `pipeline` ranks.
    `copies`: number of groups of ranks that each hold a whole model, in slices within the group (a
    whole part of each layer with `tensor` ranks, a whole stage with `pipeline` ranks). None: one
    group, and `sharding` has one axis.
    """
    assert context == 1 or expert == 1, "a mesh has one axis of parts of micro-batches"
    within, parts = (EXPERT, expert) if expert > 1 else (CONTEXT, context)
    slices = dist.get_world_size() // tensor // pipeline // (copies or 1)
    whole = copies is not None and slices == 1  # then the ranks of a replica are copies as well
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
    outer = REPLICATE
    inner = SHARD
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
    """Return a name that all ranks of a node share, and no ranks of other nodes."""
    return socket.gethostname()


def _group_by_node(device: torch.device) -> DeviceMesh | None:
    """Build the mesh of all ranks by node and position on the node.

    Returns None if there is one node, or if the ranks of nodes cannot be divided evenly.
    """
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
    """Return the largest group size that puts each group of neighbouring ranks on a single node.

    All ranks must divide into groups of that size. `nodes` lists the node of each rank.
    """
    world = len(nodes)
    for size in range(world, 1, -1):
        groups = (nodes[first : first + size] for first in range(0, world, size))
        if world % size == 0 and all(len(set(group)) == 1 for group in groups):
            return size
    return 1


def count_spanning(nodes: Sequence[str], size: int) -> int:
    """Return how many groups of `size` neighbouring ranks span several nodes.

    `nodes` lists the node of each rank.
    """
    firsts = range(0, len(nodes), size)
    return sum(len(set(nodes[first : first + size])) > 1 for first in firsts)


def _make_twin(devices: DeviceMesh) -> DeviceMesh:
    """Build a mesh of the same ranks and axes with new process groups."""
    shape = tuple(devices.shape)
    return init_device_mesh(devices.device_type, shape, mesh_dim_names=devices.mesh_dim_names)


def _flatten(devices: DeviceMesh, names: tuple[str, str], name: str) -> str:
    """Name two axes of `devices` together as one axis `name`, and return that name."""
    devices[names]._flatten(name)
    return name


def _find_axis(devices: DeviceMesh, name: str) -> Axis:
    """Return the axis `name` of `devices`, or an axis of size 1 if there is none."""
    names = devices.mesh_dim_names or ()
    if name not in names or (size := devices.size(names.index(name))) == 1:
        return Axis()
    return Axis(size, devices.get_local_rank(name), devices.get_group(name))


def join_group(rank: int, world: int, rendezvous: str, timeout: timedelta) -> None:
    """Form the process group with the other ranks, which meet at the URL `rendezvous`."""
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
    """Wait until the rendezvous endpoint accepts connections, or until the time `until`.

    torch's own client pauses 0.25 to 1 s after a failed attempt, and most ranks try too early.
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
