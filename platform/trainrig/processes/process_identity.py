"""Which process of which machine something belongs to, and whether that still lives.

A number of a process comes again; together with when the process began, and when its machine was
switched on, it does not.
"""

import os
import socket
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Process(BaseModel):
    """A process, as others can tell it from all others."""

    model_config = ConfigDict(frozen=True)

    host: str
    boot: str  # a number of the machine's own since it was switched on; empty where there is none
    pid: int
    process_began: str  # in ticks since then

    @classmethod
    def here(cls) -> "Process":
        """This one."""
        pid = os.getpid()
        return cls(
            host=socket.gethostname(),
            boot=read_boot_id(),
            pid=pid,
            process_began=read_start_time(pid) or "",
        )

    def gone(self) -> bool:
        """Whether it is known to be dead."""
        here = (self.host, self.boot) == (socket.gethostname(), read_boot_id())
        return here and bool(self.boot) and read_start_time(self.pid) != self.process_began


def read_boot_id() -> str:
    """What tells this machine, since it was switched on, from all others; Linux alone says it."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def read_start_time(pid: int) -> str | None:
    """When process `pid` of this machine began, in ticks since boot; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # from the third on: proc(5)
    return None if fields[0] == "Z" else fields[19]
