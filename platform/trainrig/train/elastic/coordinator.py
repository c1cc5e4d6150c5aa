"""The coordinator between driver and ranks, an actor on the head node, and the messages through it.

The driver stores there what an attempt should do; worker agents store how their ranks ended.
Calls block only on request. The coordinator is disposable: if it is lost, Ray restarts it, and
clients re-send their state. The module imports neither Ray nor torch, so the actor is up before
the first rank, and the processes of the driver and of the worker agents do not load torch for
its messages.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from trainrig.processes.heartbeats import Heartbeat
from trainrig.processes.process_identity import Process
from trainrig.ray_runtime.node_placement import order_by_node

if TYPE_CHECKING:
    from trainrig.train.run.run_folder import TrainingAttempt
    from trainrig.train.training_job import TrainingJob


@dataclass(frozen=True)
class RankTask:
    """Task that every rank of an attempt receives."""

    job: "TrainingJob"
    attempt: "TrainingAttempt"
    resume_from: str | None


@dataclass(frozen=True)
class RankInfo:
    """Identity and location of a rank, and its worker agent."""

    rank: int
    world: int
    device: int | None  # index of its GPU among those visible to it; None if it has none
    rendezvous: str  # URL of the rendezvous endpoint
    node: str  # node id in Ray
    agent: Process  # the process of its worker agent


@dataclass(frozen=True)
class RankError:
    """Exception that ended a rank."""

    error: bytes  # the pickled exception; the worker agent need not be able to import its class
    line: str  # type and message


@dataclass(frozen=True)
class RankDone:
    """Message that a rank has finished its work."""


class Command(IntEnum):
    """Command of the driver to the ranks of an attempt."""

    TRAIN = 0
    STOP = 1  # save and stop, at a step that all ranks agree on
    END = 2  # exit at once: the attempt has failed


@dataclass(frozen=True)
class Assignment:
    """Next task for the rank of each worker agent of a worker group."""

    group: int  # number of the attempt that the worker agents were started for
    attempt: int
    work: bytes  # a pickled RankTask
    rendezvous: str  # URL of the rendezvous endpoint


@dataclass(frozen=True)
class RankExit:
    """Report that a rank ended before its work was done; its agent waits for an assignment."""

    rank: int
    node: str  # node id in Ray
    reason: str | RankError  # how its process died, or the exception that it raised
    # rendezvous URL for the next attempt, from the agent of rank 0; "" from the others
    rendezvous: str


@dataclass(frozen=True)
class RankReports:
    """Newest heartbeat and exit of each rank, as stored at the coordinator."""

    heartbeats: Mapping[int, Heartbeat]
    exits: Mapping[int, RankExit]
    # rank of each Ray worker, in Ray's order, of the worker group with this number
    ranks: Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class WorkerGroupSpec:
    """Parameters of a worker group for Ray Train."""

    name: str
    workers: int
    gpus: bool
    environment: Mapping[str, str]
    scratch: str = ""  # folder on the driver's node for records of Ray Train; empty: any
    avoid: frozenset[str] = frozenset()  # node ids on which no worker may run
    # Sizes of groups of ranks to place on one node; each size is a multiple of the one before.
    nested: tuple[int, ...] = ()


class Coordinator:
    """Store of heartbeats, exits and commands by attempt, and of assignments by worker group.

    All methods must run in one event loop.
    """

    def __init__(self) -> None:
        self._attempt = 0
        self._heartbeats: dict[int, Heartbeat] = {}
        self._exits: dict[int, RankExit] = {}
        self._command = Command.TRAIN
        self._assignment: Assignment | None = None
        self._released_group = 0  # the newest worker group that gets no further assignment
        self._ranks: dict[
            int, Sequence[int]
        ] = {}  # ranks of the newest worker group, by its number
        # One condition per kind of event: thousands of agents must not wake up for unrelated
        # events.
        self._exit_reported = _Condition()
        self._command_given = _Condition()
        self._assignment_given = _Condition()

    async def assign_ranks(
        self, group: int, nodes: Sequence[str], nested: Sequence[int]
    ) -> Sequence[int]:
        """Return the rank of each worker of `group`, and store the ranks for the driver.

        Ray numbers workers in an order of its own. Ranks that communicate most lie on one node; see
        `order_by_node`.

        Args:
            group: number of the attempt that the worker agents were started for.
            nodes: node id of each worker, in Ray's order.
            nested: sizes of the groups of ranks that communicate, innermost first.
        """
        ranks = [0] * len(nodes)
        for rank, worker in enumerate(order_by_node(nodes, nested)):
            ranks[worker] = rank
        self._ranks = {group: ranks}
        return ranks

    async def record_heartbeat(self, attempt: int, heartbeat: Heartbeat) -> bool:
        """Store `heartbeat`, and return whether the ranks of `attempt` should stop.

        Returns True for an attempt that a newer one has replaced.
        """
        if attempt < self._attempt:
            return True
        self._advance_to(attempt)
        self._heartbeats[heartbeat.rank] = heartbeat
        return self._command != Command.TRAIN

    async def poll(self, attempt: int, command: Command, exits: int, wait: float) -> RankReports:
        """Give `command` to the ranks of `attempt`, and return their heartbeats and exits.

        Returns as soon as more than `exits` ranks have exited, or after `wait` seconds. The reports
        are empty if a newer attempt has begun.
        """
        self._advance_to(attempt)
        if attempt == self._attempt and command != self._command:
            self._command = command
            self._command_given.notify_all()
        try:
            async with asyncio.timeout(wait):
                while attempt == self._attempt and len(self._exits) <= exits:
                    await self._exit_reported.wait()
        except TimeoutError:
            pass
        return (
            RankReports(self._heartbeats, self._exits, self._ranks)
            if attempt == self._attempt
            else RankReports({}, {}, {})
        )

    async def wait_for_end(self, attempt: int) -> None:
        """Wait until the ranks of `attempt` must exit."""
        while attempt > self._attempt or (
            attempt == self._attempt and self._command != Command.END
        ):
            await self._command_given.wait()

    async def wait_for_assignment(
        self, group: int, attempt: int, rank_exit: RankExit
    ) -> Assignment | None:
        """Store the `rank_exit` of a rank of `attempt`, and wait for the next assignment.

        Returns None once `group` is released and its agents must exit.
        """
        self._advance_to(attempt)
        if attempt == self._attempt:
            self._exits[rank_exit.rank] = rank_exit
            self._exit_reported.notify_all()
        while self._released_group < group:
            if (
                self._assignment
                and self._assignment.group == group
                and self._assignment.attempt > attempt
            ):
                return self._assignment
            await self._assignment_given.wait()
        return None

    async def assign(self, assignment: Assignment) -> None:
        """Publish `assignment` to the worker agents of its group. Calling it again is harmless."""
        self._assignment = assignment
        self._assignment_given.notify_all()

    async def release_agents(self, group: int) -> None:
        """Release the worker agents of `group` and of all earlier groups."""
        self._released_group = max(group, self._released_group)
        self._assignment_given.notify_all()

    def _advance_to(self, attempt: int) -> None:
        if attempt > self._attempt:
            self._attempt = attempt
            self._heartbeats = {}
            self._exits = {}
            self._command = Command.TRAIN
            self._command_given.notify_all()
            self._exit_reported.notify_all()


class _Condition:
    """Condition variable for one event loop: `notify_all` wakes all that wait."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the next `notify_all`."""
        await self._event.wait()
