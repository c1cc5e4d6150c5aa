"""Provider for Ray's processes on this machine, for a cluster that is one laptop.

Each process that `trainrig cluster up` starts, and each of its descendants, has a mark in its
environment: the variable MARK with the cluster's name. Processes are found and ended by that mark,
so that no other Ray on this machine is touched. Each process counts as a machine of the cluster.
"""

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainrig.hardware import INSTANCE_LABEL, MARKET_LABEL, POOL_LABEL
from trainrig.launch.clusters.machine_providers import CloudMachine
from trainrig.processes.process_identity import read_user

MARK = "TRAINRIG_LOCAL_CLUSTER"
# Variables with the labels of a node that the autoscaler started, and of the head.
LABELS = "RAY_OVERRIDE_LABELS"
HEAD_LABELS = "TRAINRIG_LOCAL_HEAD_LABELS"
PROC = Path("/proc")


class Processes:
    """Processes of this machine that carry a mark."""

    def __init__(self) -> None:
        self._asked: set[str] = set()  # ids of processes that were asked to end

    def machines(self, cluster: str | None) -> Sequence[CloudMachine]:
        """List the processes of `cluster`, or of all clusters; see Provider."""
        return [
            machine for machine in _find_marked() if cluster is None or machine.cluster == cluster
        ]

    def end(self, machines: Sequence[CloudMachine]) -> None:
        """End processes; see Provider. The first signal is SIGTERM, the second SIGKILL."""
        for machine in machines:
            number = signal.SIGKILL if machine.id in self._asked else signal.SIGTERM
            self._asked.add(machine.id)
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(int(machine.id))
                try:  # while the handle is open, no other process can get this id
                    if _read_mark(int(machine.id)) == machine.cluster:
                        signal.pidfd_send_signal(handle, number)
                finally:
                    os.close(handle)


def _find_marked() -> Iterator[CloudMachine]:
    for path in PROC.glob("[0-9]*"):
        pid = int(path.name)
        environment = _read_environment(pid)
        if _read_mark(pid) is None or pid == os.getpid():
            continue
        command = _read(path / "cmdline").split("\0")
        node = command[0].endswith("/raylet")
        labels = _parse_labels(environment) if node else {}
        yield CloudMachine(
            str(pid),
            "node" if node else "process",
            environment[MARK],
            "running",
            "this machine",
            labels.get(POOL_LABEL, ""),
            labels.get(INSTANCE_LABEL, ""),
            labels.get(MARKET_LABEL, ""),
        )


def _read_mark(pid: int) -> str | None:
    """Return the mark of process `pid`; None if it has none, or belongs to another user.

    Any user can set any mark, and root reads every process's environment: without the check of the
    user, root could end a process of another user.
    """
    mark = _read_environment(pid).get(MARK)
    return mark if read_user(pid) == os.getuid() else None


def _read_environment(pid: int) -> dict[str, str]:
    """Read the environment of a process.

    Empty if the process is another user's, has ended, or is a zombie.
    """
    words = _read(PROC / str(pid) / "environ").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _parse_labels(environment: Mapping[str, str]) -> dict[str, str]:
    try:
        return dict(json.loads(environment.get(LABELS) or environment[HEAD_LABELS]))
    except (KeyError, ValueError):
        return {}
