"""One program, confined: it may read the interpreter and compute, within its time and memory.

It can open no file to write, make no socket, start no process, signal nobody, change no file's
attributes. It cannot see the contents of any file but the interpreter's. That a file exists, and
its size, stay visible: Landlock does not hide them. Where the kernel lacks a part of this, nothing
is run.
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
from typing import Literal

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


def run_confined(program: str, seconds: float, memory_mib: int) -> ProgramOutcome:
    """Run `program`, Python, for at most `seconds` in `memory_mib` MiB.

    Raises ConfigError where it cannot be confined.
    """
    secret, refusal = secrets.token_hex(16), secrets.token_hex(16)
    with (
        tempfile.TemporaryDirectory(prefix="trainrig-program-") as folder,
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as printed,
        tempfile.TemporaryFile() as said,
    ):
        given.write(f"{secret}\n{program}".encode("utf-8", "surrogatepass"))
        given.seek(0)
        spec = {
            "readable": [*_list_interpreter_folders(), folder],
            "executable": [_find_interpreter()],
            "interpreter": _find_interpreter(),
            "refusal": refusal,
            "memory": memory_mib * 2**20,
            "seconds": math.ceil(seconds) + 1,
            "environment": {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
        }
        with hold_group(
            [sys.executable, "-I", "-S", LAUNCHER, json.dumps(spec)],
            stdin=given,
            stdout=printed,
            stderr=said,
            cwd=folder,
            env={"LANG": "C.UTF-8"},
        ) as process:
            try:
                code = process.wait(seconds + START_SECONDS)
            except subprocess.TimeoutExpired:
                return ProgramOutcome("timed out")
        said.seek(0)
        words = said.read()[-SAID:].decode("utf-8", "replace")
        printed.seek(0)
        output = printed.read()
        if output == f"{refusal}\n".encode():
            raise ConfigError(f"programs cannot be confined here, so none is run: {words.strip()}")
        if output.endswith(f"\n{secret}\n\n".encode()):
            return ProgramOutcome("passed")
        # SIGXCPU, or SIGKILL at the hard limit.
        return ProgramOutcome("timed out" if code in (-24, -9) else "failed", words)


@functools.cache
def check_confinement() -> None:
    """Raise ConfigError unless a program here computes, and neither writes nor connects."""
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"programs cannot be confined on {sys.platform}, so none is run")
    if run_confined("assert 1 + 1 == 2", 5, 512).verdict != "passed":
        raise ConfigError("programs cannot be run confined on this machine, so none is run")
    target = Path(tempfile.gettempdir()) / f"trainrig-escape-{secrets.token_hex(8)}"
    try:
        for escape in (f"open({str(target)!r}, 'w')", "import socket; socket.socket()"):
            if run_confined(escape, 5, 512).verdict == "passed":
                raise ConfigError("a program got out of its confinement here, so none is run")
    finally:
        target.unlink(missing_ok=True)


def _find_interpreter() -> str:
    return os.path.realpath(sys.executable)


def _list_interpreter_folders() -> list[str]:
    """What an interpreter reads to start: its library, and the system's shared libraries."""
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    system = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache"]
    return [os.path.realpath(library), f"{sys.base_prefix}/lib", *system, "/dev/urandom"]
