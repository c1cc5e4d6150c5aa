"""Notifications about a run, to a command or a URL.

The target is given on the command line only: a run file that could name a command would run it for
everyone who trains with that file.
"""

import contextvars
import json
import shlex
import subprocess
import urllib.request

SECONDS = 30.0  # limit of a command or a request

notify_to: contextvars.ContextVar[str | None] = contextvars.ContextVar("notify_to", default=None)


def send(target: str, folder: str, name: str, what: str) -> None:
    """Send a notification to `target`: a URL, as JSON, or a command, as its last argument.

    Raises OSError, ValueError or SubprocessError if that fails.
    """
    text = f"{folder}: {what}"
    if target.startswith(("http://", "https://")):
        body = json.dumps({"text": text, "run": folder, "alarm": name}).encode()
        request = urllib.request.Request(target, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS):
            return
    command = [*shlex.split(target), text]
    subprocess.run(command, check=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
