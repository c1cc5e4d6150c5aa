"""Client of the Ray job API: the REST interface of a cluster's dashboard.

Ray ships a client of its own, but importing Ray takes seconds, and that client waits for answers
without a limit. Each request here has a time limit, and a wrong address or token gives a one-line
error.
"""

import contextlib
import http.client
import io
import json
import logging
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig.errors import ClusterError

LOCAL = "http://127.0.0.1:8265"  # where `ray start --head` puts its dashboard
# total seconds for one answer, retries included; an agent of the cluster must accept a job
ANSWER_SECONDS = 30.0
SILENT_SECONDS = 5.0  # seconds without an answer before a warning is logged
CONNECT_TRIES = 3  # a busy dashboard drops a connection now and then
# Ray's names of the states of a job.
PENDING = "PENDING"
RUNNING = "RUNNING"
STOPPED = "STOPPED"
SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
OVER = (STOPPED, SUCCEEDED, FAILED)
NO_TOKEN = "the token found here has characters that no token has; check it"


log = logging.getLogger(__name__)


class Unreachable(ClusterError):
    """Nothing answers at the address, or not in time."""


class Denied(ClusterError):
    """The cluster requires a token, or rejects the token that was sent."""


class JobRefused(ClusterError):
    """The cluster answered, and refused the request."""


@dataclass(frozen=True)
class RayJob:
    """State of one job, as Ray reports it."""

    status: str
    message: str
    # exit code of the entrypoint; None: the job runs, or the entrypoint never started
    exit_code: int | None

    @property
    def over(self) -> bool:
        """Return whether the job has ended."""
        return self.status in OVER


@dataclass(frozen=True)
class ClusterNode:
    """One live node of a Ray cluster."""

    address: str  # IP address
    head: bool
    resources: Mapping[str, float]
    labels: Mapping[str, str]


def find_address(option: str | None) -> str:
    """Return the URL of the cluster's dashboard, without a trailing slash.

    The first one set is taken: `option`, RAY_API_SERVER_ADDRESS, RAY_ADDRESS if it is an HTTP URL,
    and the dashboard of this machine. Raises ClusterError for an invalid URL.
    """
    named = [option, os.environ.get("RAY_API_SERVER_ADDRESS"), os.environ.get("RAY_ADDRESS")]
    first = next((name for name in named[:2] if name), None)
    if first is None:  # RAY_ADDRESS often names the control store instead of the dashboard
        first = next((name for name in named[2:] if name and name.startswith("http")), LOCAL)
    address = first if "://" in first else f"http://{first}"
    parts = urllib.parse.urlsplit(address)
    with contextlib.suppress(ValueError):  # raised for a port that is not a number
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    raise ClusterError(
        f"{first}: not the address of a cluster's dashboard: http://HOST:8265, or "
        "https:// behind a proxy"
    )


def read_token() -> str | None:
    """Return the authentication token, from the places where Ray looks for one; None: not set."""
    if given := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return given
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path("~/.ray/auth_token").expanduser())
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


@dataclass(frozen=True)
class RayJobs:
    """The job API of the cluster whose dashboard is at `address`."""

    address: str
    timeout: float = ANSWER_SECONDS  # seconds for each answer

    def fetch_versions(self) -> tuple[str, str]:
        """Return the versions of Ray and of Python on the cluster."""
        with self._require_ray_answer():
            about = self._ask("GET", "/api/v0/cluster_metadata")["data"]
            return str(about["rayVersion"]), str(about["pythonVersion"])

    def fetch_nodes(self) -> list[ClusterNode]:
        """Return all live nodes."""
        query = "limit=10000&detail=1&filter_keys=state&filter_predicates==&filter_values=ALIVE"
        with self._require_ray_answer():
            answer = self._ask("GET", f"/api/v0/nodes?{query}")
            return [
                ClusterNode(
                    str(node["node_ip"]),
                    bool(node["is_head_node"]),
                    dict(node.get("resources_total") or {}),
                    dict(node.get("labels") or {}),
                )
                for node in answer["data"]["result"]["result"]
                if node["state"] == "ALIVE"
            ]

    def fetch_job(self, submission_id: str) -> RayJob | None:
        """Return the job with this submission id, or None if the cluster has no such job."""
        with self._require_ray_answer():
            found = self._ask("GET", f"/api/jobs/{submission_id}", missing=True)
            if found is None:
                return None
            return RayJob(
                found["status"], found.get("message") or "", found.get("driver_exit_code")
            )

    def fetch_output(self, submission_id: str) -> str:
        """Return the output of a job so far, with Ray's own lines, while its node lives."""
        with self._require_ray_answer():
            return str(self._ask("GET", f"/api/jobs/{submission_id}/logs")["logs"])

    def submit(
        self,
        submission_id: str,
        entrypoint: str,
        runtime_env: Mapping[str, Any],
        metadata: Mapping[str, str],
    ) -> None:
        """Start a job on the head node.

        A job that exists already under this id is taken to be the same one: the answer to an
        earlier request may have been lost.
        """
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "runtime_env": dict(runtime_env),
            "metadata": dict(metadata),
        }
        try:
            self._ask("POST", "/api/jobs/", json.dumps(body).encode(), "application/json")
        except (JobRefused, Unreachable):
            if self.fetch_job(submission_id) is None:
                raise

    def stop(self, submission_id: str) -> None:
        """End a job: SIGTERM, then SIGKILL 3 s later. A job that has ended is left alone."""
        self._ask("POST", f"/api/jobs/{submission_id}/stop", b"", missing=True)

    def is_package_stored(self, name: str) -> bool:
        """Return whether the cluster has this package.

        If so, Ray keeps it for at least ten minutes.
        """
        return self._ask("GET", f"/api/packages/gcs/{name}", missing=True) is not None

    def upload(self, name: str, data: bytes) -> str:
        """Upload a package, unless it is there, and return its URI for runtime environments."""
        if not self.is_package_stored(name):
            self._ask("PUT", f"/api/packages/gcs/{name}", data, "application/octet-stream")
        return f"gcs://{name}"

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str | None = None,
        missing: bool = False,
    ) -> Any:
        """Send a request and return the decoded JSON answer; with `missing`, None for HTTP 404."""
        until = time.monotonic() + self.timeout
        for attempt in range(1, CONNECT_TRIES + 1):
            left = max(0.1, until - time.monotonic())
            request = self._request(method, path, body, content_type)
            try:
                with (
                    self._translate_errors(path),
                    self._announce_waiting(left),
                    _build_opener(self.address).open(request, timeout=left) as answer,
                ):
                    data = answer.read()
                with self._require_ray_answer():
                    return json.loads(data) if data.strip() else {}
            except _NotThere:
                if missing:
                    return None
                raise JobRefused(
                    f"{self.address}{path}: not found; is this Ray's dashboard?"
                ) from None
            except Unreachable:
                over = time.monotonic() >= until
                if method != "GET" or attempt == CONNECT_TRIES or over:
                    raise
                time.sleep(0.2 * attempt)
        raise AssertionError("the last attempt returns or raises")

    def _request(
        self, method: str, path: str, body: bytes | None, content_type: str | None
    ) -> urllib.request.Request:
        # From a stream the body is sent block by block, and the time limit holds for each block. So
        # a slow upload of a large body does not count as an unresponsive cluster.
        stream = None if body is None else io.BytesIO(body)
        request = urllib.request.Request(self.address + path, stream, method=method)
        if body is not None:
            request.add_header("Content-Length", str(len(body)))
        if content_type:
            request.add_header("Content-Type", content_type)
        if known := read_token():
            request.add_header("Authorization", f"Bearer {known}")
        return request

    @contextlib.contextmanager
    def _announce_waiting(self, seconds: float) -> Iterator[None]:
        """Log a warning if the block is still waiting for an answer after SILENT_SECONDS."""
        if seconds <= SILENT_SECONDS:
            yield
            return
        what = "%s: Ray's dashboard has not answered for %.0f s; waiting up to %.0f s more"
        left = seconds - SILENT_SECONDS
        timer = threading.Timer(
            SILENT_SECONDS, log.warning, (what, self.address, SILENT_SECONDS, left)
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace").strip()
            if error.code == 404:
                raise _NotThere from None
            if error.code in (401, 403):
                raise Denied(f"{self.address}: {_explain_token(error.code)}") from None
            last = said.splitlines()[-1] if said else error.reason
            raise JobRefused(f"{self.address}{path}: status {error.code}: {last}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            if isinstance(reason, TimeoutError):
                why = f"no answer in {self.timeout:g} s; its process may hang"
            raise Unreachable(
                f"{self.address}: no Ray dashboard answers ({why}); is the cluster up, "
                "and is this the address of its dashboard (--address http://HOST:8265)?"
            ) from None
        except ValueError:  # raised for a header with characters that HTTP does not allow
            raise Denied(f"{self.address}: {NO_TOKEN}") from None

    @contextlib.contextmanager
    def _require_ray_answer(self) -> Iterator[None]:
        """Raise JobRefused if the block cannot parse the answer: another program sent it."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError):
            raise JobRefused(
                f"{self.address}: the answer is not from Ray; which server listens there?"
            ) from None


class _NotThere(Exception):
    """The server answered with HTTP 404."""


class _SamePlace(urllib.request.HTTPRedirectHandler):
    """Redirect handler that follows none, so that the token is never sent to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None, which turns the redirect into an error."""
        return


def _build_opener(address: str) -> urllib.request.OpenerDirector:
    """Build an opener that uses no proxy over plain HTTP, where a proxy could read the token."""
    plain = [urllib.request.ProxyHandler({})] if address.startswith("http://") else []
    return urllib.request.build_opener(_SamePlace, *plain)


def _explain_token(code: int) -> str:
    if code == 401:
        return (
            "a token is required, but none was found; put the cluster's token in "
            "~/.ray/auth_token (or the file that RAY_AUTH_TOKEN_PATH names, or "
            "RAY_AUTH_TOKEN)"
        )
    return "the token is refused; check RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"
