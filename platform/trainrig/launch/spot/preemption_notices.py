"""Preemption notices of AWS, Google Cloud and Kubernetes, and detection of this machine's cloud.

No request to a metadata service uses a proxy, whatever the environment says: the answers are about
this machine.

AWS gives two minutes before a spot interruption, sometimes with a warning. The notices come from
version 2 of the instance metadata service (IMDS), which requires a token. A container reaches it
only if the instance's `HttpPutResponseHopLimit` is 2.

Google Cloud gives a spot machine 30 s. A machine that cannot be migrated live (any with a GPU) gets
an hour before maintenance of its host, others get a minute. Preemption is queried with
`wait_for_change`, so the answer comes within milliseconds of the event. Polling every 5 s would
waste a sixth of the 30 s.

Kubernetes sends SIGTERM to the pod, after its `preStop` hook. The agent is the process that passes
notices on to the run. SIGTERM reaches the agent and Ray at the same moment, and Ray then ends its
workers. So the agent should be the `preStop` hook of the container that runs Ray. Kubernetes waits
for the hook before it sends SIGTERM: `python -m trainrig.launch.spot --provider kubernetes --now`.
"""

import http.client
import json
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, Protocol
from urllib.parse import urlsplit

from trainrig.errors import ConfigError


@dataclass(frozen=True)
class Notice:
    """Notice that this machine may be taken back, or will be."""

    what: str  # event in the cloud's own words
    # End of the machine, as time.time(); None: it may end at an unknown time. The run leaves only a
    # machine that will certainly end, as moving for a false warning would cost a restart.
    deadline: float | None


class Unclear(Exception):
    """The cloud did not answer, or its answer is unknown. This never counts as a notice."""


class NoticeSource(Protocol):
    """Source of the notices of one cloud."""

    pause: float  # seconds between two polls

    def look(self) -> Notice | None:
        """Return the current notice, or None. Raises Unclear. Takes seconds at most."""

    def over(self) -> bool:
        """Return whether no more notices can come."""


TIMEOUT = 1.0  # seconds for each byte to arrive; the service answers in about a millisecond
LARGEST = 64 * 2**10  # bytes of an answer to read at most


@dataclass(frozen=True)
class Answer:
    """Answer of the service."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True)
class Endpoint:
    """Address of a metadata service."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        """Parse a URL such as `http://169.254.169.254`. Raises ConfigError."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port or 80
        except ValueError:
            port = 0
        if parts.scheme != "http" or not parts.hostname or not port or parts.path.strip("/"):
            raise ConfigError(
                f"{url}: not the address of a metadata service; write http://HOST or "
                "http://HOST:PORT"
            )
        return cls(parts.hostname, port)

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], timeout: float = TIMEOUT
    ) -> Answer:
        """Send one request and return the answer. Raises Unclear if none comes in time."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read(LARGEST))
        except (OSError, http.client.HTTPException) as problem:
            what = str(problem) or type(problem).__name__
            raise Unclear(f"{self.host}:{self.port} does not answer: {what}") from None
        finally:
            connection.close()


AWS_ENDPOINT = "http://169.254.169.254"
AWS_ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"  # the variable that AWS libraries use
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
    return Notice(what, _parse_iso_time(_read_text(entries, "time")))


def read_rebalance(body: bytes) -> Notice:
    """Parse the document at REBALANCE. Raises Unclear."""
    noticed = _read_text(_parse_entries(body), "noticeTime")
    _parse_iso_time(noticed)
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


def _parse_iso_time(written: str) -> float:
    """Convert a time in ISO 8601 to seconds since 1970."""
    try:
        when = datetime.fromisoformat(written)
    except ValueError:
        raise Unclear(f"not a time: {written[:60]}") from None
    if when.tzinfo is None:
        raise Unclear(f"a time without a time zone: {written[:60]}")
    return when.timestamp()


GOOGLE_ENDPOINT = "http://metadata.google.internal"
GOOGLE_ENDPOINT_VARIABLE = "GCE_METADATA_HOST"  # the variable that Google's libraries use
GOOGLE_HEADERS = {"Metadata-Flavor": "Google"}
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
WAIT = 5  # seconds that the service holds a preemption query, between two maintenance queries
PREEMPTION_GRACE = 30.0  # seconds from the notice to the end, at best
# Seconds from the notice to the end for a machine without a GPU. One with a GPU gets 3,600, but the
# metadata at this path does not show which kind this machine is.
MAINTENANCE_GRACE = 60.0


class ComputeMetadata:
    """Notices from the metadata server of this machine."""

    pause = 0.0  # seconds between polls; the query itself waits

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._etag = ""
        self._seen: dict[str, float] = {}  # deadlines by notice, as notices carry no time

    def look(self) -> Notice | None:
        """Return a preemption, or maintenance of the host; see NoticeSource."""
        if self._is_preempted():
            return self._build_notice("preemption", PREEMPTION_GRACE)
        event = self._get(MAINTENANCE)
        if event in ("NONE", ""):
            return None
        if event == "TERMINATE_ON_HOST_MAINTENANCE":
            return self._build_notice(event, MAINTENANCE_GRACE)
        return Notice(event, None)  # the machine is migrated live

    def over(self) -> bool:
        """Return False; see NoticeSource."""
        return False

    def _is_preempted(self) -> bool:
        # Without the tag of the last answer, the service answers at once.
        wait = f"?wait_for_change=true&timeout_sec={WAIT}&last_etag={self._etag}"
        found = self._get(PREEMPTED + (wait if self._etag else ""), TIMEOUT + WAIT)
        if found not in ("TRUE", "FALSE"):
            self._etag = ""
            raise Unclear(f"{PREEMPTED}: {found[:60]!r}, which is neither TRUE nor FALSE")
        return found == "TRUE"

    def _get(self, path: str, timeout: float = TIMEOUT) -> str:
        answer = self._endpoint.ask("GET", path, GOOGLE_HEADERS, timeout)
        genuine = answer.headers.get("metadata-flavor") == "Google"
        if answer.status != 200 or not genuine:
            self._etag = ""
            whose = "" if genuine else ", and not from Google's metadata server"
            raise Unclear(f"{path.partition('?')[0]}: status {answer.status}{whose}")
        if path.startswith(PREEMPTED):
            tag = answer.headers.get("etag", "")
            self._etag = tag if tag.isalnum() else ""
        return answer.body.decode("utf-8", "replace").strip()

    def _build_notice(self, what: str, grace: float) -> Notice:
        return Notice(what, self._seen.setdefault(what, time.time() + grace))


# Seconds from the notice to SIGKILL, `preStop` included: the default of
# `terminationGracePeriodSeconds`.
POD_GRACE = 30.0
LEFT_FOR_RAY = 3.0  # seconds of the grace in which Ray ends its own processes


class PodEnd:
    """Notice of the end of this pod, from SIGTERM."""

    pause = 0.2  # seconds between two polls, which only read a variable

    def __init__(self, grace: float, now: bool) -> None:
        """Install a handler of SIGTERM.

        `grace` is the time from the signal to the end in seconds. `now` acts as if the signal had
        come already.
        """
        self._grace = grace
        self._end_time: float | None = time.time() + grace if now else None
        signal.signal(signal.SIGTERM, self._end)

    def look(self) -> Notice | None:
        """Return the notice once SIGTERM has come; see NoticeSource."""
        return None if self._end_time is None else Notice("the pod ends", self._end_time)

    def over(self) -> bool:
        """Return whether the agent should end; see NoticeSource.

        A `preStop` hook that returns earlier makes Kubernetes send SIGTERM to Ray earlier.
        """
        return self._end_time is not None and time.time() > self._end_time - LEFT_FOR_RAY

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self._end_time is None:
            self._end_time = time.time() + self._grace


PROVIDERS = ("aws", "gcp", "kubernetes")
VENDOR = Path("/sys/class/dmi/id/sys_vendor")  # manufacturer of the machine, from its firmware
VENDORS = {"Amazon EC2": "aws", "Google": "gcp"}


def detect(environment: Mapping[str, str], vendor: Path = VENDOR) -> str:
    """Return the provider of this machine, without network requests. Raises ConfigError."""
    if "KUBERNETES_SERVICE_HOST" in environment:  # set by Kubernetes in every container
        return "kubernetes"
    made_by = vendor.read_text().strip() if vendor.exists() else "unknown maker"
    if made_by in VENDORS:
        return VENDORS[made_by]
    raise ConfigError(
        f"made by {made_by}: not a machine of a known cloud; give its provider by "
        f"--provider {'|'.join(PROVIDERS)}"
    )


def make_source(
    provider: str, environment: Mapping[str, str], endpoint: str, grace: float, now: bool
) -> NoticeSource:
    """Build the source of notices of `provider`. Raises ConfigError.

    `endpoint` is the URL of another metadata service, or empty. For `grace` and `now` see PodEnd.
    """
    if provider == "kubernetes":
        return PodEnd(grace, now)
    if provider == "aws":
        own = environment.get(AWS_ENDPOINT_VARIABLE, AWS_ENDPOINT)
        return InstanceMetadata(Endpoint.parse(endpoint or own))
    own = environment.get(GOOGLE_ENDPOINT_VARIABLE, GOOGLE_ENDPOINT)
    return ComputeMetadata(Endpoint.parse(endpoint or own))
