"""How long a request to S3 is tried again, and who says so.

What botocore does itself is not enough: its tries are few, and its quota of them is one for the
whole process, so a dozen requests that meet a refusing bucket together are all given up within half
a second. Here each request has time of its own: it is sent again, with full jitter, for minutes.
What a run can do without asks `briefly`, and is done without for that once.
"""

import contextlib
import functools
import logging
import random
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Protocol

RETRY_SECONDS = 180.0  # that a request is sent again after S3 first refused it
UNREACHABLE_SECONDS = 60.0  # where no server answers at all: the address may be wrong
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
# Answers of S3, and of what speaks its language, to credentials whose time is over.
EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken"}

log = logging.getLogger(__name__)
_brief: ContextVar[bool] = ContextVar("brief", default=False)
_said = float("-inf")  # time.monotonic() when this process last said that it waits


@contextlib.contextmanager
def briefly() -> Iterator[None]:
    """Give requests of this block BRIEF_SECONDS: their answers are welcome, but not needed."""
    token = _brief.set(True)
    try:
        yield
    finally:
        _brief.reset(token)


class Renewable(Protocol):
    """Credentials that can be fetched again."""

    can_change: bool  # whether that may give others
    expires: bool  # whether they are of the kind that does

    def renew(self) -> None:
        """Fetch them again."""


def register(client: Any, credentials: Renewable | None) -> None:
    """Have `client`, a boto3 client for S3 without retries of its own, send requests again: with
    `credentials` that were fetched anew, if it is told that those have expired."""
    pause = functools.partial(_pause, credentials)
    client.meta.events.register("needs-retry.s3", pause)


def get_retry_seconds() -> float:
    """Seconds for which a request of the current block is tried again."""
    return BRIEF_SECONDS if _brief.get() else RETRY_SECONDS


def choose_pause(attempts: int) -> float:
    """Draw the seconds to wait after so many attempts, with full jitter."""
    return random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempts, 30)))


def _pause(
    credentials: Renewable | None,
    response: tuple[Any, dict[str, Any]] | None,
    attempts: int,
    caught_exception: Exception | None,
    request_dict: dict[str, Any],
    **_: object,
) -> float | None:
    """Seconds until the request is to be sent again; None: never."""
    problem = _explain_passing_error(response, caught_exception)
    expired = response is not None and _has_expired(response, request_dict, credentials)
    if expired:
        problem = "the AWS credentials have expired"
    if problem is None:
        return None
    now = time.monotonic()
    waited = now - request_dict["context"].setdefault("trainrig_refused_at", now)
    allowed = get_retry_seconds()
    if response is None:
        allowed = min(allowed, UNREACHABLE_SECONDS)
    if waited >= allowed:
        return None
    if waited >= SAID_AFTER:
        _say(request_dict["url"], problem, waited, allowed)
    if expired and credentials is not None:
        credentials.renew()  # the request is signed anew when it is sent again
    return choose_pause(attempts)


def _has_expired(
    response: tuple[Any, dict[str, Any]], request: dict[str, Any], credentials: Renewable | None
) -> bool:
    """Return whether S3 refuses the credentials as expired, and others may be had.

    The answer to a HEAD has no body that says so, only the status of such an answer.
    """
    if credentials is None or not credentials.can_change:
        return False
    code = str(response[1].get("Error", {}).get("Code", ""))
    bare = request.get("method") == "HEAD" and int(response[0].status_code) == 400
    return code in EXPIRED_CODES or (bare and credentials.expires)


def _explain_passing_error(
    response: tuple[Any, dict[str, Any]] | None, caught_exception: Exception | None
) -> str | None:
    """What went wrong, in words, if it may pass; None: it went well, or is refused for good."""
    from botocore.exceptions import ConnectionError, HTTPClientError, SSLError

    if response is None:
        passes = isinstance(caught_exception, ConnectionError | HTTPClientError)
        refused = isinstance(caught_exception, SSLError)  # a certificate: that does not pass
        return str(caught_exception) if passes and not refused else None
    status = int(response[0].status_code)
    code = str(response[1].get("Error", {}).get("Code", ""))
    return f"{status} {code}" if status in PASSING_STATUS or code in PASSING_CODES else None


def _say(url: str, problem: str, waited: float, allowed: float) -> None:
    global _said
    if time.monotonic() - _said < SAID_EVERY:
        return
    _said = time.monotonic()
    log.warning(
        "%s: refused for %.0f s (%s); trying again for up to %.0f s",
        url.partition("?")[0],
        waited,
        problem,
        allowed,
    )
