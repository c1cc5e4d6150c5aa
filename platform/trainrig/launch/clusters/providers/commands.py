"""Calls of the command lines kubectl and gcloud."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from trainrig.errors import ClusterError, ConfigError

ANSWER = 120.0  # seconds


def ask(command: Sequence[str], seconds: float = ANSWER) -> Any:
    """Return the parsed JSON output of `command`.

    Raises ClusterError if it fails, ConfigError if it is not installed.
    """
    written = tell(command, seconds)
    try:
        return json.loads(written)
    except ValueError:
        raise ClusterError(
            f"{_name_command(command)}: the output is not JSON: {written[:200]!r}"
        ) from None


def tell(command: Sequence[str], seconds: float = ANSWER) -> str:
    """Return the output of `command`.

    Raises ClusterError if it fails, ConfigError if it is not installed.
    """
    if not shutil.which(command[0]):
        raise ConfigError(
            f"{command[0]}: not installed on this machine; install it, and log in with it"
        )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{_name_command(command)}: no answer for {seconds:g} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ClusterError(f"{_name_command(command)}: {said[-1]}")
    return done.stdout


def _name_command(command: Sequence[str]) -> str:
    return " ".join(command[:3])
