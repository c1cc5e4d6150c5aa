"""The devices of a run, as axes with names."""

import os
import socket
import time
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainrig.errors import ClusterError

DATA_AXIS = "data"
REPLICA_AXIS = "replica"
CONTEXT_AXIS = "context"
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


def data_mesh(device: torch.device) -> DeviceMesh:
    """All processes of the group along one axis."""
    return init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=(DATA_AXIS,))


def replica_mesh(device: torch.device, replicas: int) -> DeviceMesh:
    """All processes of the group as `replicas` groups of neighbours, which must be of one size."""
    sizes = (replicas, dist.get_world_size() // replicas)
    return init_device_mesh(device.type, sizes, mesh_dim_names=(REPLICA_AXIS, DATA_AXIS))


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
