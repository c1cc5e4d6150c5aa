"""Running of a program and its tests in two confined processes, with limits of time and memory.

Both processes can read the interpreter's files and compute. They cannot open a file for writing,
create a socket, start a process, send signals, change a file's attributes or another process's
limits, or read files other than the interpreter's. Landlock does not hide that a file exists, and
its size. If the kernel lacks a part of this, nothing is run.

The process that runs the tests (`judge`) decides the verdict; it calls the program over a pipe and
gets values back. The program's process cannot reach anything that decides the verdict.
"""

import functools
import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainrig.errors import ConfigError
from trainrig.processes.child_process import hold_group

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
START_SECONDS = 5.0  # extra time for two interpreters to start on a busy machine
SAID = 400  # last characters of a program's error output that are kept


@dataclass(frozen=True)
class ProgramOutcome:
    """The outcome of a program under its tests."""

    verdict: Literal["passed", "failed", "timed out"]
    said: str = ""  # end of the error output


def run_confined(program: str, tests: str, seconds: float, memory_mib: int) -> ProgramOutcome:
    """Run the Python `program` under `tests`, and return the outcome.

    The run may take `seconds`, besides the time to start, and each of the two processes has
    `memory_mib` MiB of address space. Raises ConfigError if they cannot be confined.
    """
    with (
        tempfile.TemporaryDirectory(prefix="trainrig-program-") as folder,
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as printed,
        tempfile.TemporaryFile() as said,
    ):
        given.write(json.dumps([program, tests]).encode())
        given.seek(0)
        code, told = _launch(folder, given, printed, said, seconds, memory_mib)
        said.seek(0)
        words = said.read()[-SAID:].decode("utf-8", "replace")
    if told is None:
        # The process of the tests got SIGXCPU (-24), or SIGKILL (-9) at the hard limit.
        return ProgramOutcome("timed out" if code in (None, -24, -9) else "failed", words)
    if told["verdict"] == "refused":
        raise ConfigError(
            "the evaluation runs no programs, because this machine cannot confine them: "
            f"{told['said']}"
        )
    if told["shared"]:
        _warn_of_shared_namespaces(told["shared"])
    if told["verdict"] == "passed":
        return ProgramOutcome("passed")
    return ProgramOutcome(told["verdict"], (words + told["said"])[-SAID:])


def _launch(
    folder: str, given: Any, printed: Any, said: Any, seconds: float, memory_mib: int
) -> tuple[int | None, dict[str, Any] | None]:
    """Run the launcher, and return its exit code and its verdict.

    The exit code is None if it was killed after the time limit, the verdict if it gave none.
    """
    verdict_read, verdict_write = os.pipe()
    spec = {
        "readable": [*_list_interpreter_folders(), folder],
        "memory": memory_mib * 2**20,
        "seconds": math.ceil(seconds) + 1,
        "verdict": verdict_write,
        "said": SAID,
    }
    code = None
    with os.fdopen(verdict_read, "rb") as verdict:
        try:
            with hold_group(
                [sys.executable, "-P", "-s", "-S", LAUNCHER, json.dumps(spec)],
                stdin=given,
                stdout=printed,
                stderr=said,
                cwd=folder,
                env={"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
                pass_fds=(verdict_write,),
            ) as process:
                code = process.wait(seconds + START_SECONDS)
        except subprocess.TimeoutExpired:
            return None, None
        finally:
            os.close(verdict_write)
        told = verdict.read()
    return code, json.loads(told) if told else None


@functools.cache
def _warn_of_shared_namespaces(reason: str) -> None:
    print(
        "trainrig: programs run without separate namespaces, which this kernel refuses "
        f"({reason}); only Landlock and seccomp confine them",
        file=sys.stderr,
    )


@functools.cache
def check_confinement() -> None:
    """Raise ConfigError unless a confined program can compute, but not write or open a socket."""
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            f"the evaluation runs no programs, because {sys.platform} cannot confine them; use "
            "Linux on x86_64"
        )
    add = "def add(a, b):\n    return a + b"
    if run_confined(add, "assert add(1, 2) == 3", 5, 512).verdict != "passed":
        raise ConfigError(
            "the evaluation runs no programs, because a confined test program fails on this machine"
        )
    target = Path(tempfile.gettempdir()) / f"trainrig-escape-{secrets.token_hex(8)}"
    try:
        for escape in (f"open({str(target)!r}, 'w')", "import socket; socket.socket()"):
            if run_confined(escape, "", 5, 512).verdict == "passed":
                raise ConfigError(
                    "the evaluation runs no programs, because a test program escaped its "
                    "confinement on this machine"
                )
    finally:
        target.unlink(missing_ok=True)


def _list_interpreter_folders() -> list[str]:
    """List the paths that an interpreter reads: its library, and the system's shared libraries."""
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    system = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache"]
    return [os.path.realpath(library), f"{sys.base_prefix}/lib", *system, "/dev/urandom"]
