"""The worker group: Ray Train's workers, one agent in each, for as many attempts as they live.

A rank that dies leaves its worker agent, which stands by. The next attempt is assigned to the same
worker group, and takes no longer than forks do. A worker agent that dies, a node that goes and a
run that moves take the worker group with them, and Ray starts another.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any

from trainrig.processes.process_identity import Process
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.ray_session import WORKER_ENVIRONMENT
from trainrig.train.elastic.messages import RankExit, WorkerGroupSpec
from trainrig.train.elastic.warm_actors import WarmActors, place_only_on

ANSWER = 1.0  # s for a fork server's actor to say what its node has seen
END_TIMEOUT = 3.0  # s; Ray Train looks every half second whether its workers are done, or dead


class WorkerGroup:
    """As its driver sees it."""

    def __init__(
        self,
        warm_actors: WarmActors,
        coordinator: Any,
        config: Mapping[str, Any],
        workers: int,
        gpus: bool,
        avoid: frozenset[str],
        nested: tuple[int, ...] = (),
    ) -> None:
        """Have Ray start `workers` worker agents, each for `config` and none on the nodes `avoid`;
        returns before one is up. `nested`: sizes of groups of ranks, each of the ones before, that
        should be on one node.

        `coordinator`: the handle of the Coordinator actor.
        """
        self.number: int = config["attempt"]  # of its first attempt
        self.workers = workers
        self.nodes: dict[int, str] = {}  # by rank, as far as they have said so
        self.standing_by = False  # every worker agent does, and waits for an assignment
        self.rendezvous = ""  # where the ranks could meet then
        self._coordinator, self._warm_actors = coordinator, warm_actors
        self._controller = warm_actors.take_controller()
        name = f"attempt-{self.number:04d}"
        group = WorkerGroupSpec(
            name=name,
            workers=workers,
            gpus=gpus,
            environment=WORKER_ENVIRONMENT,
            avoid=avoid,
            nested=nested,
        )
        self.fit: Any = self._controller.fit.remote(group, dict(config))
        warm_actors.mark_busy(self.fit)

    def is_over(self) -> bool:
        """Whether Ray says that it is no more."""
        import ray

        return bool(ray.wait([self.fit], timeout=0)[0])

    def read_error(self) -> BaseException | None:
        """What ended it, once it is over, if it was not the end of its work."""
        import ray

        try:
            raised: BaseException | None = ray.get(self.fit)
        except Exception as error:
            return error
        return raised

    def controller_died(self) -> bool:
        """Of a worker group that is over."""
        import ray.exceptions

        error, raised_there = self.read_error(), ray.exceptions.RayTaskError
        return isinstance(error, ray.exceptions.RayError) and not isinstance(error, raised_there)

    def stand_by(self, exits: Mapping[int, RankExit]) -> None:
        """It does, as all its ranks came to those `exits`."""
        self.standing_by, self.rendezvous = True, exits[0].rendezvous
        self.nodes = {rank: end.node for rank, end in exits.items()}

    def can_run(self, workers: int, nodes: Set[str]) -> bool:
        """Whether it waits for an assignment, has so many `workers`, and all of them on `nodes`."""
        there = set(self.nodes.values()) <= nodes
        return self.standing_by and self.workers == workers and there and not self.is_over()

    def count_agents(self) -> Counter[str]:
        """How many of its worker agents are on each node, as far as they have said so."""
        return Counter(() if self.is_over() else self.nodes.values())

    def kill(self, processes: Iterable[tuple[str, Process]]) -> None:
        """Send SIGKILL to processes by node, as far as they still live."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        by_node: dict[str, set[Process]] = {}
        for node, process in processes:
            by_node.setdefault(node, set()).add(process)
        for node, left in by_node.items():
            if node == here:
                _kill(left)
            else:
                ray.remote(_kill).options(
                    num_cpus=0, scheduling_strategy=place_only_on(node)
                ).remote(left)

    def ended_for_memory(self, node: str, pid: int) -> bool:
        """Whether the worker agent of that `pid`, which died, was ended by Ray or the kernel of its
        `node` for want of memory."""
        import ray
        import ray.exceptions

        if ray_private.ended_for_memory(node, pid):
            return True
        server = self._warm_actors.fork_servers.by_node.get(node)
        with contextlib.suppress(ray.exceptions.RayError):
            if server is not None:
                return bool(ray.get(server.ran_out_of_memory.remote(), timeout=ANSWER))
        return False

    def leave(self) -> None:
        """Let the worker agents go that stand by; free what they hold."""
        self.standing_by = False
        self._coordinator.release_agents.remote(self.number)
        self.free()

    def free(self) -> None:
        """What it holds, once it is no more, or does not get there.

        The next worker group would wait for what a train controller that died leaves reserved.
        """
        import ray

        ray.wait([self.fit], timeout=END_TIMEOUT)
        if not self.is_over():  # it waits for worker agents that will never answer
            ray.kill(self._controller)
            self._warm_actors.mark_controller_lost()
        elif self.controller_died():
            self._warm_actors.mark_controller_lost()
        ray_private.remove_placement_groups_of(self._controller)


def _kill(processes: Iterable[Process]) -> None:
    for process in processes:
        process.kill()
