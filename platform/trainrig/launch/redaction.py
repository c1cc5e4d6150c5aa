"""Masking of secrets from environment variables in everything that this process writes.

A secret is the value of a variable whose name ends like one (HF_TOKEN, AWS_SECRET_ACCESS_KEY,
password, …). Each line of a value with several lines (such as a private key) is a secret. Values
shorter than 8 characters are not masked: a password of "1" or "none" would mask half of every log.
"""

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

NAMES = re.compile(
    r"(key|token|secret|password|passwd|credential|connection_?string)s?$", re.IGNORECASE
)
SHORTEST = 8  # characters; shorter values are too common in logs to mask
MASK = "[masked]"


def find_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return the secrets in `environment`, longest first, as one may begin with another."""
    values = [value for name, value in environment.items() if NAMES.search(name)]
    lines = {line.strip() for value in values for line in value.splitlines()}
    return sorted((line for line in lines if len(line) >= SHORTEST), key=lambda s: (-len(s), s))


def redact(value: Any) -> Any:
    """Return a JSON value with the secrets of this process masked in all of its strings."""
    secrets = find_secrets(os.environ)
    return _redact(value, re.compile("|".join(map(re.escape, secrets)))) if secrets else value


class RedactingFormatter(logging.Formatter):
    """Log formatter that masks secrets, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted record with the secrets of this process masked."""
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
    """Masks secrets in a stream of bytes, wherever the stream is split into pieces.

    Bytes that may be the beginning of a secret are held back until the next piece. The outputs of
    `feed` and a last `flush` together equal what masking the whole stream at once would give.
    """

    def __init__(self, secrets: list[str]) -> None:
        self._secrets = sorted(map(os.fsencode, secrets), key=len, reverse=True)
        self._longest = max(map(len, self._secrets), default=0)
        self._pattern = re.compile(b"|".join(map(re.escape, self._secrets)))
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the masked bytes that are certain once `piece` has arrived."""
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
        """Return the first position in `data`, from `at` on, where a secret may be cut off."""
        for begin in range(max(at, len(data) - self._longest + 1), len(data)):
            tail = data[begin:]
            if any(len(s) > len(tail) and s.startswith(tail) for s in self._secrets):
                return begin
        return len(data)

    def flush(self) -> bytes:
        """Return the bytes that were held back, at the end of the stream."""
        held = self._held
        self._held = b""
        return self._pattern.sub(MASK.encode(), held) if self._secrets else held
