"""The keepers of a run's ranks: one group of Ray Train's workers, for as many attempts as it lives.

A rank that dies leaves its keeper, which stands by. The next attempt is ordered of the same crew,
and takes no longer than forks do. A keeper that dies, a node that goes and a run that moves take
the crew with them, and Ray starts another.
"""

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any

from trainrig.ray_runtime.ray_session import WORKER_ENVIRONMENT
from trainrig.train.elastic.messages import End, Group
from trainrig.train.elastic.warm_actors import Spares, only_on

ANSWER = 1.0  # s for a fork server's actor to say what its node has seen
ENDS_WITHIN = 3.0  # s; Ray Train looks every half second whether its workers are done, or dead


class Crew:
    """As its driver sees it."""

    def __init__(
        self, spares: Spares, control: Any, config: Mapping[str, Any], workers: int, gpus: bool
    ) -> None:
        """Have Ray start `workers` keepers, each for `config`; returns before one is up.

        `control`: the handle of the Control actor.
        """
        self.number: int = config["attempt"]  # of its first attempt
        self.workers = workers
        self.nodes: dict[int, str] = {}  # by rank, as far as they have said so
        self.stands_by = False  # every keeper does, and waits for an order
        self.meeting = ""  # where the ranks could meet then
        self._control, self._spares = control, spares
        self._conductor = spares.conductor()
        name = f"attempt-{self.number:04d}"
        group = Group(name=name, workers=workers, gpus=gpus, environment=WORKER_ENVIRONMENT)
        self.fit: Any = self._conductor.fit.remote(group, dict(config))
        spares.engaged(self.fit)

    def over(self) -> bool:
        """Whether Ray says that it is no more."""
        import ray

        return bool(ray.wait([self.fit], timeout=0)[0])

    def error(self) -> BaseException | None:
        """What ended it, once it is over, if it was not the end of its work."""
        import ray

        try:
            raised: BaseException | None = ray.get(self.fit)
        except Exception as error:
            return error
        return raised

    def conductor_died(self) -> bool:
        """Of a crew that is over."""
        import ray.exceptions

        error, raised_there = self.error(), ray.exceptions.RayTaskError
        return isinstance(error, ray.exceptions.RayError) and not isinstance(error, raised_there)

    def stand_by(self, ends: Mapping[int, End]) -> None:
        """It does, as all its ranks came to those `ends`."""
        self.stands_by, self.meeting = True, ends[0].meeting
        self.nodes = {rank: end.node for rank, end in ends.items()}

    def can(self, workers: int, nodes: Set[str]) -> bool:
        """Whether it waits for an order, has so many `workers`, and all of them on `nodes`."""
        there = set(self.nodes.values()) <= nodes
        return self.stands_by and self.workers == workers and there and not self.over()

    def places(self) -> Counter[str]:
        """How many of its keepers are on each node, as far as they have said so."""
        return Counter(() if self.over() else self.nodes.values())

    def kill(self, pids: Iterable[tuple[str, int]]) -> None:
        """SIGKILL to processes by node and pid."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        by_node: dict[str, set[int]] = {}
        for node, pid in pids:
            by_node.setdefault(node, set()).add(pid)
        for node, left in by_node.items():
            if node == here:
                _kill(left)
            else:
                ray.remote(_kill).options(num_cpus=0, scheduling_strategy=only_on(node)).remote(
                    left
                )

    def ended_for_memory(self, node: str, pid: int) -> bool:
        """Whether the keeper of that `pid`, which died, was ended by Ray or the kernel of its
        `node` for want of memory."""
        import ray
        import ray.exceptions
        from ray._private.state import state
        from ray.core.generated import common_pb2, gcs_pb2

        table: Any = gcs_pb2.WorkerTableData  # type: ignore[attr-defined]
        by_ray: int = common_pb2.WorkerExitType.NODE_OUT_OF_MEMORY  # type: ignore[attr-defined]
        for written in state._connect_and_get_accessor().get_worker_table():
            worker = table.FromString(written)
            there = worker.worker_address.node_id.hex() == node
            if there and worker.pid == pid and worker.exit_type == by_ray:
                return True
        server = self._spares.fork_servers.by_node.get(node)
        with contextlib.suppress(ray.exceptions.RayError):
            if server is not None:
                return bool(ray.get(server.ran_out_of_memory.remote(), timeout=ANSWER))
        return False

    def leave(self) -> None:
        """Let the keepers go that stand by; free what they hold."""
        self.stands_by = False
        self._control.dismiss.remote(self.number)
        self.free()

    def free(self) -> None:
        """What it holds, once it is no more, or does not get there.

        The next crew would wait for what a conductor that died leaves reserved.
        """
        import ray
        from ray._private.state import state
        from ray._raylet import PlacementGroupID
        from ray.core.generated import gcs_pb2
        from ray.util import remove_placement_group
        from ray.util.placement_group import PlacementGroup

        ray.wait([self.fit], timeout=ENDS_WITHIN)
        if not self.over():  # it waits for keepers that will never answer
            ray.kill(self._conductor)
            self._spares.conductor_lost()
        elif self.conductor_died():
            self._spares.conductor_lost()
        table: Any = gcs_pb2.PlacementGroupTableData  # type: ignore[attr-defined]
        for written in state._connect_and_get_accessor().get_placement_group_table():
            group = table.FromString(written)
            own = group.creator_actor_id == self._conductor._actor_id.binary()
            if own and group.state != table.REMOVED:
                remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
