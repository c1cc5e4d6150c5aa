"""One program and its tests, each in a confined process, within their time and memory.

Either may read the interpreter and compute. It can open no file to write, make no socket, start no
process, signal nobody, change no file's attributes or another process's limits. It cannot see the
contents of any file but the interpreter's. That a file exists, and its size, stay visible: Landlock
does not hide them. Where the kernel lacks a part of this, nothing is run.

The verdict is decided by the process that runs the tests (`judge`), which calls the program over a
pipe and gets values back. Nothing that the program's process can reach decides it.
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
from trainrig.processes.process_group import hold_group

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
START_SECONDS = 5.0  # for two interpreters to start, on a busy machine
SAID = 400  # characters of what a program said that are kept


@dataclass(frozen=True)
class ProgramOutcome:
    """How a program ended."""

    verdict: Literal["passed", "failed", "timed out"]
    said: str = ""  # the end of its error output


def run_confined(program: str, tests: str, seconds: float, memory_mib: int) -> ProgramOutcome:
    """Run `program`, Python, under `tests`, for at most `seconds` in `memory_mib` MiB for each.

    Raises ConfigError where they cannot be confined.
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
        # SIGXCPU, or SIGKILL at the hard limit, of the tests.
        return ProgramOutcome("timed out" if code in (None, -24, -9) else "failed", words)
    if told["verdict"] == "refused":
        raise ConfigError(f"programs cannot be confined here, so none is run: {told['said']}")
    if told["shared"]:
        _tell_shared(told["shared"])
    if told["verdict"] == "passed":
        return ProgramOutcome("passed")
    return ProgramOutcome(told["verdict"], (words + told["said"])[-SAID:])


def _launch(
    folder: str, given: Any, printed: Any, said: Any, seconds: float, memory_mib: int
) -> tuple[int | None, dict[str, Any] | None]:
    """How the launcher ended and its verdict; None where it was killed, or gave no verdict."""
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
def _tell_shared(reason: str) -> None:
    print(
        f"trainrig: programs run without namespaces of their own, which this kernel refuses "
        f"({reason}); Landlock and seccomp confine them alone",
        file=sys.stderr,
    )


@functools.cache
def check_confinement() -> None:
    """Raise ConfigError unless a program here computes, and neither writes nor connects."""
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"programs cannot be confined on {sys.platform}, so none is run")
    add = "def add(a, b):\n    return a + b"
    if run_confined(add, "assert add(1, 2) == 3", 5, 512).verdict != "passed":
        raise ConfigError("programs cannot be run confined on this machine, so none is run")
    target = Path(tempfile.gettempdir()) / f"trainrig-escape-{secrets.token_hex(8)}"
    try:
        for escape in (f"open({str(target)!r}, 'w')", "import socket; socket.socket()"):
            if run_confined(escape, "", 5, 512).verdict == "passed":
                raise ConfigError("a program got out of its confinement here, so none is run")
    finally:
        target.unlink(missing_ok=True)


def _list_interpreter_folders() -> list[str]:
    """What an interpreter reads to import: its library, and the system's shared libraries."""
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    system = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache"]
    return [os.path.realpath(library), f"{sys.base_prefix}/lib", *system, "/dev/urandom"]
