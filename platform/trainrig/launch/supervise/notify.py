"""Tells a command of the user's how a run ended."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from typing import Any

from trainrig.processes.process_group import kill_group

SAID = 300  # characters of what the command said, for the record


def notify(command: str, seconds: float, facts: Mapping[str, str]) -> dict[str, Any]:
    """Run `command`, not by a shell, with each fact as TRAINRIG_NAME; how it went.

    It has `seconds`, then it is killed with all that it started. Nothing is raised: a run ended as
    it did, whatever becomes of the news.
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
    """Environment variables hold all characters but one."""
    return text.replace("\0", "")
