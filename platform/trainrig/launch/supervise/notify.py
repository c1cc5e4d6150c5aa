"""Running of the user's command that reports how a run ended."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from typing import Any

from trainrig.processes.child_process import kill_group

SAID = 300  # characters of the command's output that are recorded


def notify(command: str, seconds: float, facts: Mapping[str, str]) -> dict[str, Any]:
    """Run `command` without a shell, with each fact as TRAINRIG_NAME, and return the result.

    After `seconds` the command and all processes that it started are killed. Nothing is raised: how
    a run ended does not depend on its notification. The result has `exit_code`, or `problem`, or
    both.
    """
    told = {f"TRAINRIG_{name.upper()}": _remove_nul(value) for name, value in facts.items()}
    try:
        process = subprocess.Popen(
            shlex.split(command),
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return {"problem": str(error)}
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill_group(process)
        return {"problem": f"took more than {seconds:g} s"}
    result: dict[str, Any] = {"exit_code": process.returncode}
    if process.returncode:
        result["problem"] = said.decode(errors="replace").strip()[-SAID:]
    return result


def _remove_nul(text: str) -> str:
    """Remove NUL, the one character that an environment variable cannot hold."""
    return text.replace("\0", "")
