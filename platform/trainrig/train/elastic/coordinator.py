"""The coordinator between the driver and the ranks of a run: an actor on the head node.

The driver leaves there what an attempt should do, worker agents what became of their ranks; calls
block only on request. It knows no Ray and imports no torch: it is up before the
first rank is. Small enough that losing it (it restarts) loses nothing: clients re-send their state.
"""

import asyncio

from trainrig.processes.heartbeats import Heartbeat
from trainrig.train.elastic.messages import Assignment, Command, RankExit, RankReports


class Coordinator:
    """Heartbeats, exits and commands by attempt, assignments by group. For one event loop."""

    def __init__(self) -> None:
        self._attempt = 0
        self._heartbeats: dict[int, Heartbeat] = {}
        self._exits: dict[int, RankExit] = {}
        self._command = Command.TRAIN
        self._assignment: Assignment | None = None
        self._released_group = 0  # the newest worker group that has nothing to do any more
        # One for each kind of waiting: thousands of agents must not wake for each other's news.
        self._exit_reported, self._command_given, self._assignment_given = (
            _Condition(),
            _Condition(),
            _Condition(),
        )

    async def record_heartbeat(self, attempt: int, heartbeat: Heartbeat) -> bool:
        """Leave `heartbeat`; whether the ranks of `attempt` should stop: so should an outlived
        one."""
        if attempt < self._attempt:
            return True
        self._advance_to(attempt)
        self._heartbeats[heartbeat.rank] = heartbeat
        return self._command != Command.TRAIN

    async def poll(self, attempt: int, command: Command, exits: int, wait: float) -> RankReports:
        """What is here of `attempt`, to whose ranks `command` is said from now on.

        As soon as there are more than so many `exits`, or after `wait` seconds.
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
            RankReports(self._heartbeats, self._exits)
            if attempt == self._attempt
            else RankReports({}, {})
        )

    async def wait_for_end(self, attempt: int) -> None:
        """Return once the ranks of `attempt` should be no more."""
        while attempt > self._attempt or (
            attempt == self._attempt and self._command != Command.END
        ):
            await self._command_given.wait()

    async def wait_for_assignment(
        self, group: int, attempt: int, rank_exit: RankExit
    ) -> Assignment | None:
        """Leave the `rank_exit` of a rank of `attempt`; what follows, once that is decided.

        None: nothing; `group` is dismissed.
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
        """To each worker agent of its worker group. May be said again."""
        self._assignment = assignment
        self._assignment_given.notify_all()

    async def release_agents(self, group: int) -> None:
        """Let its worker agents go, and those of all before it."""
        self._released_group = max(group, self._released_group)
        self._assignment_given.notify_all()

    def _advance_to(self, attempt: int) -> None:
        if attempt > self._attempt:
            self._attempt, self._heartbeats, self._exits = attempt, {}, {}
            self._command = Command.TRAIN
            self._command_given.notify_all()
            self._exit_reported.notify_all()


class _Condition:
    """Wakes all who wait for it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """The next time."""
        await self._event.wait()
