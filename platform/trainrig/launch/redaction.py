"""Removes secrets of this process's environment from what it writes.

A secret is the value of a variable whose name ends like one (HF_TOKEN, AWS_SECRET_ACCESS_KEY,
password, …). One of several lines (a private key, say) is a secret line by line. Short values are
left alone: "1" or "none" in the place of a password would take half of every log away.
"""

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

NAMES = re.compile(r"(key|token|secret|password|passwd|credential)s?$", re.IGNORECASE)
SHORTEST = 8  # characters: what is shorter protects nothing
MASK = "[masked]"


def find_secrets(environment: Mapping[str, str]) -> list[str]:
    """The secrets in `environment`, longest first: one may begin with another."""
    values = [value for name, value in environment.items() if NAMES.search(name)]
    lines = {line.strip() for value in values for line in value.splitlines()}
    return sorted((line for line in lines if len(line) >= SHORTEST), key=lambda s: (-len(s), s))


def redact(value: Any) -> Any:
    """`value`, plain JSON, with the secrets of this process masked in all of its strings."""
    secrets = find_secrets(os.environ)
    return _redact(value, re.compile("|".join(map(re.escape, secrets)))) if secrets else value


class RedactingFormatter(logging.Formatter):
    """For what this process says itself, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter; without the secrets of this process."""
        return str(redact(super().format(record)))


def _redact(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(MASK, value)
    if isinstance(value, Mapping):
        return {key: _redact(inner, pattern) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(inner, pattern) for inner in value]
    return value


class Redactor:
    """Masks `secrets` in a stream that comes in pieces, wherever these are cut.

    What may be the beginning of a secret is held back until more has come. All that is fed, and
    then `flush`, add up to what masking the whole at once would have given.
    """

    def __init__(self, secrets: list[str]) -> None:
        self._secrets = sorted(map(os.fsencode, secrets), key=len, reverse=True)
        self._longest = max(map(len, self._secrets), default=0)
        self._pattern = re.compile(b"|".join(map(re.escape, self._secrets)))
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be said of the stream once `piece` has come."""
        if not self._secrets:
            return piece
        data = self._held + piece
        at = 0
        said = []
        while True:
            undecided = self._find_undecided(data, at)
            found = self._pattern.search(data, at)
            if found is None or found.start() >= undecided:
                break
            said += [data[at : found.start()], MASK.encode()]
            at = found.end()
        self._held = data[undecided:]
        return b"".join([*said, data[at:undecided]])

    def _find_undecided(self, data: bytes, at: int) -> int:
        """From where on `data`, looked at from `at`, may be the beginning of a secret."""
        for begin in range(max(at, len(data) - self._longest + 1), len(data)):
            tail = data[begin:]
            if any(len(s) > len(tail) and s.startswith(tail) for s in self._secrets):
                return begin
        return len(data)

    def flush(self) -> bytes:
        """What was held back at the end of the stream."""
        held = self._held
        self._held = b""
        return self._pattern.sub(MASK.encode(), held) if self._secrets else held
