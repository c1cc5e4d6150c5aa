"""Space for workers on a cluster: what one worker takes, where it may run, and whether all fit.

Stages that compute with a model take GPUs where the cluster has some, and leave the head alone
where they can: a large model there could end the processes that the whole cluster needs.
"""

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from trainrig.config import ResourceRequest
from trainrig.errors import ClusterError, ClusterLost, ConfigError, Unfinished
from trainrig.ray_runtime import ray_local, ray_pools

log = logging.getLogger(__name__)
JOIN_SECONDS = 300.0  # s that nodes may take to join a cluster without an autoscaler
MIB = 2**20  # bytes
# Share of the smallest node's memory that a worker requests at most. Above a half, no second such
# worker runs there. Not all, because a pool may state more memory than Ray finds on its nodes.
MOST_OF_NODE = 0.6
LOOK_EVERY = 0.5  # s between two looks at the nodes
IDLE_SECONDS = 20.0  # s without a finished split, after which the workers may have no space

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class WorkerPlace:
    """Resources of one worker, and the nodes that it may run on."""

    need: ray_pools.Need
    selector: Mapping[str, str]  # label selector, as Ray takes it
    most: int  # number of workers that run at a time

    @property
    def gpus(self) -> float:
        """Number of GPUs of one worker."""
        return self.need.get("GPU", 0)

    @property
    def memory(self) -> float | None:
        """Bytes of memory that one worker requests; None if it requests none."""
        return self.need.get("memory")


def find_place(workers: int, models: bool, memory: int) -> WorkerPlace:
    """Return the place of `workers` workers of a stage, each of which takes `memory` bytes.

    On GPUs, as many run at a time as the cluster may hold, up to `workers`. Workers that load a
    model (`models`) leave out the head if the other nodes hold all of them. If the memory of the
    nodes holds fewer workers, fewer run at a time. A worker requests at most MOST_OF_NODE of the
    smallest node: the others may be lost, and the stage then goes on there. It requests no memory
    if that of a node or pool is unknown, or in a placement group, which may have reserved none.
    """
    request, selector = _request(workers, models)
    pools = ray_pools.find_pools()
    found = ray_pools.find_capacity(request.each, selector, pools)
    held = found.live if found.later is None else found.later
    most = workers
    if request.gpus and found.later is not None:
        most = max(1, min(workers, held))
    headless = models and found.head > 0 and held - found.head >= most
    need = request.each
    smallest = ray_pools.find_least_memory(need, selector, pools, headless)
    if smallest and not ray_pools.is_in_placement_group():
        need["memory"] = min(memory, int(MOST_OF_NODE * smallest))
        found = ray_pools.find_capacity(need, selector, pools)
        held = found.live if found.later is None else found.later
        most = _limit_to_memory(most, held - found.head if headless else held, need)
    if headless:
        selector |= ray_pools.build_headless_selector()
    return WorkerPlace(need, selector, most)


def _limit_to_memory(workers: int, held: int, need: ray_pools.Need) -> int:
    """Return how many of `workers` run at a time on nodes whose memory holds `held` of them."""
    most = min(workers, max(1, held))
    if most < workers:
        _warn_of_memory(most, workers, int(need["memory"]) // MIB)
    return most


@functools.cache  # a stage has many phases, and one warning is enough
def _warn_of_memory(most: int, workers: int, mebibytes: int) -> None:
    log.warning(
        "workers: %d of %d run at a time, because each one requests %s MiB of memory from Ray; for "
        "more, add nodes or use nodes with more memory",
        *(most, workers, f"{mebibytes:,}"),
    )


def warn_without_space(rows: Iterator[_Row | None], place: WorkerPlace) -> Iterator[_Row | None]:
    """Yield `rows`, and warn once if no worker runs because the cluster has no space for one.

    A None among `rows` means that no split was done for a while.
    """
    since = time.monotonic()
    for row in rows:
        yield row
        if row is not None:
            since = time.monotonic()
        elif ray_local.is_in_cluster() and time.monotonic() - since >= IDLE_SECONDS:
            free = ray_local.call_while_ray_lives(ray_pools.describe_free_for_waiting, place.need)
            if free:
                log.warning(
                    "workers: none runs yet, because the cluster has no space for one: %s; they "
                    "start when other work ends or nodes are added",
                    free,
                )
                break
            since = time.monotonic()
    yield from rows


def find_place_beside(workers: int, tasks: int) -> WorkerPlace:
    """Return the place of each of `tasks` tasks that use a model while a run of `workers` goes on.

    A task takes a GPU if the live nodes have one more for each task than the workers may take: a
    node that may be started may never come, and the run would wait for the task. It takes no CPU,
    because the workers may hold all of them. It leaves out the head if there are other nodes.
    """
    found = ray_pools.find_capacity({"GPU": 1}, {}, ray_pools.find_pools())
    others = not ray_pools.is_head_alone()
    gpus = found.live - (found.head if others else 0) >= workers + tasks
    return WorkerPlace(
        {"GPU": 1} if gpus else {}, ray_pools.build_headless_selector() if others else {}, tasks
    )


def wait_for_workers(workers: int, what: str, models: bool) -> None:
    """Wait until the workers of a stage fit the cluster; see `wait_until_fit`.

    `what` names them in messages; `models`: whether they load a model.
    """

    def find_lack() -> str | None:
        request, selector = _request(workers, models)
        return describe_lack(request.least, request.each, what, selector)

    wait_until_fit(find_lack)


def _request(workers: int, models: bool) -> tuple[ResourceRequest, dict[str, str]]:
    """Return what the workers of a stage request, and the labels of their nodes."""
    pools = ray_pools.find_pools()
    request = ResourceRequest.on_cores(workers)
    if models:
        request = ResourceRequest.for_models(workers, ray_pools.contains_gpus(pools))
    return request, ray_pools.build_cpu_selector(pools) if request.pool else {}


def wait_until_fit(find_lack: Callable[[], str | None], seconds: float = JOIN_SECONDS) -> None:
    """Wait until `find_lack` returns None: nodes may still join a cluster without an autoscaler.

    Raises ConfigError with what `find_lack` returns if no node is expected: the autoscaler can
    start none that fits, Ray is local, or the cluster is complete. A cluster without an autoscaler
    counts as complete once no node joined or was lost within `seconds`, or within JOIN_SECONDS if
    that is longer.
    Raises ClusterError if it is still lacking after `seconds`, and Unfinished if the cluster is
    lost meanwhile.
    """
    began = time.monotonic()
    waiting = False
    try:
        while lack := ray_local.call_while_ray_lives(find_lack):
            if ray_pools.find_pools() or not ray_local.is_in_cluster():
                raise ConfigError(lack)
            if time.monotonic() - began >= seconds:
                raise ClusterError(f"{lack}; no such nodes joined within {seconds:g} s")
            if not waiting:
                since = max(seconds, JOIN_SECONDS)
                if ray_local.call_while_ray_lives(ray_pools.is_settled, since):
                    raise ConfigError(
                        f"{lack}. The cluster has no autoscaler, and no node joined in the last "
                        f"{since / 60:g} minutes, so trainrig does not wait for one"
                    )
                log.warning("%s; waiting up to %g s for nodes to join the cluster", lack, seconds)
                waiting = True
            time.sleep(LOOK_EVERY)
    except ClusterLost as lost:
        raise Unfinished(f"{lost}; run the same command to continue") from None
    if waiting:
        log.info("enough nodes have joined after %.0f s", time.monotonic() - began)


def describe_lack(
    workers: int, need: ray_pools.Need, what: str, labels: Mapping[str, str] | None = None
) -> str | None:
    """Return why the workers never fit the cluster as it is; None if they do, or if unknown.

    Args:
        workers: the number of workers.
        need: the resources of one worker.
        what: name of the workers in the message; its last word is the key or option for them.
        labels: labels that a node must have.
    """
    pools = ray_pools.find_pools()
    found = ray_pools.find_capacity(need, labels or {}, pools)
    if workers <= found.live or found.later is None or workers <= found.later:
        return None
    resources = " and ".join(f"{count:g} {name}" for name, count in need.items())
    asked = f"{what}: {workers} workers of {resources} each, but "
    room = found.later if pools else found.live
    fewer = f"set {what.rpartition(' ')[2]} = {room} or fewer, or " if room else ""
    if pools:
        held = f"the nodes that may be added hold {room} ({'; '.join(map(str, pools))})"
        return f"{asked}{held}; {fewer}let a pool have more nodes"
    return f"{asked}Ray has {_describe_workers(room, need)}; {fewer}add nodes"


def _describe_workers(workers: int, need: ray_pools.Need) -> str:
    return f"{workers} logical CPUs" if list(need) == ["CPU"] else f"space for {workers}"
