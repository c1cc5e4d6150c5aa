"""Telling somebody who does not look: a command to run, or a URL to send to.

It is named on the command line alone. A run file that could name a command would run it for whoever
trains by that file.
"""

import contextvars
import json
import shlex
import subprocess
import urllib.request

SECONDS = 30.0  # that a command or a URL may take

notify_to: contextvars.ContextVar[str | None] = contextvars.ContextVar("notify_to", default=None)


def send(target: str, folder: str, name: str, what: str) -> None:
    """Tell `target`: a URL that is sent JSON, or a command that is given the text as its last
    argument. Raises OSError, ValueError or SubprocessError."""
    text = f"{folder}: {what}"
    if target.startswith(("http://", "https://")):
        body = json.dumps({"text": text, "run": folder, "alarm": name}).encode()
        request = urllib.request.Request(target, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS):
            return
    command = [*shlex.split(target), text]
    subprocess.run(command, check=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
