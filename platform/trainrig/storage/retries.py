"""Retries of requests to object stores, for minutes and with full jitter.

botocore's own retries are not enough. They are few, and share one quota in a process: if a dozen
requests meet a throttling bucket together, all of them fail within half a second. Here every
request has a time limit to itself. A request whose result a run can do without is sent in a
`briefly` block, which retries for a short time only.
"""

import contextlib
import functools
import logging
import random
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Protocol

RETRY_SECONDS = 180.0  # a request is retried for this long after S3 first refused it
UNREACHABLE_SECONDS = 60.0  # limit where no server answers at all: the address may be wrong
BRIEF_SECONDS = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # s; the first doubles each time
SAID_AFTER, SAID_EVERY = 5.0, 60.0  # s
PASSING_STATUS = {429, 500, 502, 503, 504}
PASSING_CODES = {
    "BandwidthLimitExceeded",
    "InternalError",
    "PriorRequestNotComplete",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
}
# Error codes of S3 and compatible servers for expired credentials.
EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken"}

log = logging.getLogger(__name__)
_brief: ContextVar[bool] = ContextVar("brief", default=False)
_said = float("-inf")  # time.monotonic() of this process's last warning about a retry


@contextlib.contextmanager
def briefly() -> Iterator[None]:
    """Retry requests of the block for BRIEF_SECONDS only, because their results are not needed."""
    token = _brief.set(True)
    try:
        yield
    finally:
        _brief.reset(token)


class Renewable(Protocol):
    """Credentials that can be fetched again."""

    can_change: bool  # True if fetching again may return different credentials
    expires: bool  # True if the credentials are temporary

    def renew(self) -> None:
        """Fetch the credentials again."""


def register(client: Any, credentials: Renewable | None) -> None:
    """Make the S3 client `client`, whose own retries are off, retry requests by this module.

    If S3 reports expired credentials, `credentials` are renewed before the retry.
    """
    pause = functools.partial(_pause, credentials)
    client.meta.events.register("needs-retry.s3", pause)


def get_retry_seconds() -> float:
    """Return for how many seconds a request of the current block is retried."""
    return BRIEF_SECONDS if _brief.get() else RETRY_SECONDS


def choose_pause(attempts: int) -> float:
    """Draw the seconds to wait after `attempts` failed attempts, with full jitter."""
    return random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempts, 30)))


def decide_pause(
    address: str, problem: str, waited: float, attempts: int, answered: bool
) -> float | None:
    """Return the seconds to wait before a request is retried, or None if its time is over.

    Logs a warning once the request has failed for some time. `waited`: seconds since the first of
    `attempts` failed. `answered`: whether a server answered at all.
    """
    allowed = get_retry_seconds()
    if not answered:
        allowed = min(allowed, UNREACHABLE_SECONDS)
    if waited >= allowed:
        return None
    if waited >= SAID_AFTER:
        _say(address, problem, waited, allowed)
    return choose_pause(attempts)


def _pause(
    credentials: Renewable | None,
    response: tuple[Any, dict[str, Any]] | None,
    attempts: int,
    caught_exception: Exception | None,
    request_dict: dict[str, Any],
    **_: object,
) -> float | None:
    """Return the seconds to wait before the request is retried, or None if it is not retried."""
    problem = _explain_passing_error(response, caught_exception)
    expired = response is not None and _is_expired(response, request_dict, credentials)
    if expired:
        problem = "the AWS credentials have expired"
    if problem is None:
        return None
    now = time.monotonic()
    waited = now - request_dict["context"].setdefault("trainrig_refused_at", now)
    address = request_dict["url"].partition("?")[0]
    pause = decide_pause(address, problem, waited, attempts, answered=response is not None)
    if pause is not None and expired and credentials is not None:
        credentials.renew()  # botocore signs the request again when it resends the request
    return pause


def _is_expired(
    response: tuple[Any, dict[str, Any]], request: dict[str, Any], credentials: Renewable | None
) -> bool:
    """Return whether S3 refuses the credentials as expired, and fetching again may help.

    The response to a HEAD request has no body with an error code, only the status 400.
    """
    if credentials is None or not credentials.can_change:
        return False
    code = str(response[1].get("Error", {}).get("Code", ""))
    bare = request.get("method") == "HEAD" and int(response[0].status_code) == 400
    return code in EXPIRED_CODES or (bare and credentials.expires)


def _explain_passing_error(
    response: tuple[Any, dict[str, Any]] | None, caught_exception: Exception | None
) -> str | None:
    """Describe a transient error; return None after a success or a permanent error."""
    from botocore.exceptions import ConnectionError, HTTPClientError, SSLError

    if response is None:
        passes = isinstance(caught_exception, ConnectionError | HTTPClientError)
        refused = isinstance(caught_exception, SSLError)  # a bad certificate is permanent
        return str(caught_exception) if passes and not refused else None
    status = int(response[0].status_code)
    code = str(response[1].get("Error", {}).get("Code", ""))
    return f"{status} {code}" if status in PASSING_STATUS or code in PASSING_CODES else None


def _say(address: str, problem: str, waited: float, allowed: float) -> None:
    global _said
    if time.monotonic() - _said < SAID_EVERY:
        return
    _said = time.monotonic()
    log.warning(
        "%s: requests have failed for %.0f s (%s); trying again for up to %.0f s",
        address,
        waited,
        problem,
        allowed,
    )
