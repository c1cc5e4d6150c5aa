"""Preemption notices of AWS: two minutes before a spot interruption, sometimes with a warning.

They come from version 2 of the instance metadata service (IMDS), which requires a token. A
container reaches it only if the instance's `HttpPutResponseHopLimit` is 2.
"""

import json
from datetime import datetime
from typing import Any

from trainrig.launch.spot.metadata import Endpoint
from trainrig.launch.spot.notices import Notice, Unclear

ENDPOINT = "http://169.254.169.254"
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"  # the variable that AWS libraries use
TOKEN = "/latest/api/token"
TOKEN_SECONDS = 21_600  # lifetime of a token in seconds; the maximum
INTERRUPTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class InstanceMetadata:
    """Notices from the IMDS of this instance."""

    pause = 5.0  # seconds between two polls, as AWS recommends

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._token = ""

    def look(self) -> Notice | None:
        """Return an interruption, else a recommendation to rebalance; see NoticeSource."""
        interruption = self._get(INTERRUPTION)
        if interruption is not None:
            return read_interruption(interruption)
        rebalance = self._get(REBALANCE)
        return None if rebalance is None else read_rebalance(rebalance)

    def over(self) -> bool:
        """Return False; see NoticeSource."""
        return False

    def _get(self, path: str) -> bytes | None:
        """Return the document at `path`, or None. An expired token is renewed once."""
        fresh = not self._token
        if fresh:
            self._renew()
        answer = self._endpoint.ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if answer.status == 401 and not fresh:
            self._renew()
            answer = self._endpoint.ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if answer.status == 401:
            self._token = ""
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise Unclear(f"{path}: status {answer.status}")
        return answer.body

    def _renew(self) -> None:
        self._token = ""
        lasts = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
        answer = self._endpoint.ask("PUT", TOKEN, lasts)
        token = answer.body.decode("ascii", "replace").strip()
        if answer.status != 200 or not token.isprintable() or not token.isascii() or not token:
            raise Unclear(f"{TOKEN}: no token (status {answer.status})")
        self._token = token


def read_interruption(body: bytes) -> Notice:
    """Parse the document at INTERRUPTION. Raises Unclear."""
    entries = _parse_entries(body)
    what = f"spot interruption: {_read_text(entries, 'action')}"
    return Notice(what, _time(_read_text(entries, "time")))


def read_rebalance(body: bytes) -> Notice:
    """Parse the document at REBALANCE. Raises Unclear."""
    noticed = _read_text(_parse_entries(body), "noticeTime")
    _time(noticed)
    return Notice(f"rebalance recommendation of {noticed}", None)


def _parse_entries(body: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(body)
    except ValueError:
        entries = None
    if not isinstance(entries, dict):
        raise Unclear(f"not a JSON object: {body[:60]!r}")
    return entries


def _read_text(entries: dict[str, Any], key: str) -> str:
    value = entries.get(key)
    if not isinstance(value, str) or not value.isprintable():
        raise Unclear(f"no `{key}` in {json.dumps(entries)[:120]}")
    return value


def _time(written: str) -> float:
    """Convert a time in ISO 8601 to seconds since 1970."""
    try:
        when = datetime.fromisoformat(written)
    except ValueError:
        raise Unclear(f"not a time: {written[:60]}") from None
    if when.tzinfo is None:
        raise Unclear(f"a time without a time zone: {written[:60]}")
    return when.timestamp()
