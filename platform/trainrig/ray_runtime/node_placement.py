"""Nodes of a run on Ray: its requests to the autoscaler, its placement groups, its ranks' order.

Ray keeps a resource request until any process sends another one. The request of a dead driver
would keep its nodes for ever. Requests are therefore sent through the actor that Ray's own
libraries use. The actor sums the requests of all requesters and drops the requests that are not
renewed. The order of ranks puts those that communicate most on the same node.
"""

import re
import time
import uuid
from collections.abc import Mapping, Sequence, Set
from typing import Any

from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.ray_pools import Need

RENEW_SECONDS = 15.0  # s between two requests
EXPIRE_SECONDS = 60.0  # s after the last request; the actor checks every 20 s


def name_actor(*parts: object) -> str:
    """Return a name for an actor made of `parts`, for `ray list actors`; no two are equal.

    A name is free again only some time after its actor has ended.
    """
    words = [re.sub(r"[^\w.]+", "-", str(part)) for part in parts]
    return "-".join([*words, uuid.uuid4().hex[:8]])


class AutoscalerRequest:
    """The resource request of one run; the first call of `request` sends it."""

    def __init__(self) -> None:
        self._requested_at = float("-inf")
        self._workers = 0  # workers that the last request was for
        self._requests = ray_private.NodeRequests(f"trainrig-{uuid.uuid4().hex}")

    def request(self, workers: int, need: Need) -> None:
        """Request nodes for `workers` in total that take `need` each.

        Call this often: a request is sent when the number changes and every RENEW_SECONDS, and
        expires without renewal.
        """
        now = time.monotonic()
        if workers == self._workers and now - self._requested_at < RENEW_SECONDS:
            return
        self._workers = workers
        self._requested_at = now
        self._requests.send([dict(need)] * workers, EXPIRE_SECONDS)

    def cancel(self) -> None:
        """Cancel the request."""
        self._requests.cancel()


def order_by_node(nodes: Sequence[str], sizes: Sequence[int]) -> list[int]:
    """Return the indices of the workers in the order of their ranks.

    `nodes` holds the node of each worker, and `sizes` the sizes of the communication groups,
    innermost first. Consecutive ranks form groups of the first size, consecutive groups form groups
    of the second size, and so on. As many groups as possible lie on a single node, the largest
    first. Workers that are left over form groups that span several nodes.
    """
    left: dict[str, list[int]] = {}
    for worker, node in enumerate(nodes):
        left.setdefault(node, []).append(worker)
    order: list[int] = []
    for size in (*reversed(sizes), 1):
        for there in left.values():
            whole = len(there) // size * size
            order += there[:whole]
            del there[:whole]
    return order


def list_placement_groups() -> frozenset[str]:
    """Return the ids of all placement groups of the cluster."""
    from ray.util import placement_group_table

    return frozenset(placement_group_table())


def remove_placement_groups(earlier: Set[str], bundles: int) -> None:
    """Remove the placement groups that Ray Train made in this job for `bundles` workers.

    Ray keeps the placement groups of a dead train controller until its job ends, so another worker
    group would wait for their resources. Ray Train's own cleaner needs the dashboard, and Ray does
    not tell which actor created a group. Removed are the groups of this job that have no name and
    as many bundles, and were not there `earlier`.
    """
    import ray
    from ray.util import placement_group_table, remove_placement_group
    from ray.util.placement_group import PlacementGroup

    job = ray.get_runtime_context().get_job_id()
    table: Mapping[str, Mapping[str, Any]] = placement_group_table()
    for number, group in table.items():
        ours = number not in earlier and number.endswith(job)  # an id ends with the id of its job
        alike = not group["name"] and len(group["bundles"]) == bundles
        if ours and alike and group["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number))))
