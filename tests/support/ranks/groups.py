"""Groups of processes that run the tasks of `rank.py`."""

import contextlib
import os
import pickle
import select
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from trainrig.processes.fork_server import ForkedProcess, ForkServer, ServerAddress

ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Ranks:
    """Processes that form a group for each task; `rank.py` defines the tasks."""

    def __init__(self, stores: Path) -> None:
        self._stores = stores
        self._processes: list[subprocess.Popen[bytes]] = []
        self._tasks = 0

    def __call__(self, world: int, action: str, **arguments: Any) -> list[Any]:
        """Run `action` on `world` ranks, and return each rank's answer.

        If a process has died, all are ended, so that the next task gets new ones.
        """
        try:
            processes = self.start(world, action, **arguments)
            answers = [pickle.load(process.stdout) for process in processes]
        except (EOFError, ConnectionError):
            self.end()
            raise
        for fine, answer in answers:
            assert fine, answer
        return [answer for _, answer in answers]

    def start(self, world: int, action: str, **arguments: Any) -> list[subprocess.Popen[bytes]]:
        """Start `action` on `world` ranks, and return their processes in the order of ranks.

        A process that has ended is started again.
        """
        for number, process in enumerate(self._processes):
            if process.returncode is not None:
                process.stdin.close()
                process.stdout.close()
                self._processes[number] = self._spawn()
        while len(self._processes) < world:
            self._processes.append(self._spawn())
        self._tasks += 1
        store = self._stores / f"task-{self._tasks}"
        for rank, process in enumerate(self._processes[:world]):
            pickle.dump((action, arguments, (rank, world, f"file://{store}")), process.stdin)
            process.stdin.flush()
        return self._processes[:world]

    def end(self) -> None:
        """Kill all remaining processes."""
        for process in self._processes:
            process.kill()
            process.wait()
            with contextlib.suppress(ConnectionError):  # of a task that was not sent
                process.stdin.close()
            process.stdout.close()
        self._processes = []

    def _spawn(self) -> Any:
        return subprocess.Popen(
            [sys.executable, "-m", "support.ranks.rank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD,
        )


class ForkedRank(ForkedProcess):
    """Rank that is forked with everything imported, with the interface of a `Popen`."""

    def __init__(self, address: ServerAddress) -> None:
        super().__init__(address, "support.ranks.rank:serve", None)
        self.stdin = os.fdopen(os.dup(self._channel.fileno()), "wb")
        self.stdout = os.fdopen(os.dup(self._channel.fileno()), "rb")
        self._channel.close()
        self.returncode: int | None = None

    def kill(self) -> None:
        """Kill the process."""
        if self.returncode is None:
            self.ask_to_end()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return the exit code as a `Popen` does, or None while the process lives."""
        if self.returncode is None and select.select([self._control], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        if self.returncode is None:
            self.returncode = int(self._lines.readline())
            self.close()
        return self.returncode


class ForkedRanks(Ranks):
    """Ranks that may die, as they start quickly.

    They share the seed by which Python hashes text, as ranks of one node do; `Ranks` do not.
    """

    def __init__(self, stores: Path, server: ForkServer) -> None:
        super().__init__(stores)
        self._server = server

    def _spawn(self) -> Any:
        return ForkedRank(self._server.get_address())


def start_fork_server() -> ForkServer:
    """Start a single-threaded server that has imported `rank.py` and what a first step imports."""
    with mock.patch.dict(os.environ, ONE_THREAD):
        return ForkServer("support.ranks.rank", "torch._inductor")
