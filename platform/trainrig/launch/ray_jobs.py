"""Jobs on a Ray cluster, through the REST interface of its dashboard.

Ray's own client would do, but importing Ray takes seconds, and it waits for answers for ever. Each
request here has a time limit, and what is wrong with an address or a token is one line.
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
ANSWER_SECONDS = 30.0  # for an answer, all tries; a job is accepted once an agent has taken it
SILENT_SECONDS = 5.0  # without one, until it is said what is waited for
CONNECT_TRIES = 3  # a dashboard that is busy drops one now and then
# What Ray calls the states of a job.
PENDING = "PENDING"
RUNNING = "RUNNING"
STOPPED = "STOPPED"
SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
OVER = (STOPPED, SUCCEEDED, FAILED)
NO_TOKEN = "what is here as its token is no token: it has signs that none has"


log = logging.getLogger(__name__)


class Unreachable(ClusterError):
    """Nothing answers at the address, or not in time."""


class Denied(ClusterError):
    """The cluster wants another token, or any."""


class JobRefused(ClusterError):
    """The cluster answers, and will not do it."""


@dataclass(frozen=True)
class RayJob:
    """One job, as Ray knows it."""

    status: str
    message: str
    exit_code: int | None  # of its entrypoint; None: not over, or it never ran

    @property
    def over(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.status in OVER


@dataclass(frozen=True)
class ClusterNode:
    """One live node."""

    address: str  # its IP
    head: bool
    resources: Mapping[str, float]
    labels: Mapping[str, str]


def find_address(option: str | None) -> str:
    """The address of a cluster's jobs: as given, else by Ray's own variables, else this machine's.

    Raises ClusterError for one that is none.
    """
    named = [option, os.environ.get("RAY_API_SERVER_ADDRESS"), os.environ.get("RAY_ADDRESS")]
    first = next((name for name in named[:2] if name), None)
    if first is None:  # RAY_ADDRESS is as often the address of the cluster's insides
        first = next((name for name in named[2:] if name and name.startswith("http")), LOCAL)
    address = first if "://" in first else f"http://{first}"
    parts = urllib.parse.urlsplit(address)
    with contextlib.suppress(ValueError):  # of a port that is no number
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    raise ClusterError(
        f"{first}: no address of a cluster's jobs, which is that of its dashboard: "
        "http://HOST:8265, or https:// behind a proxy"
    )


def read_token() -> str | None:
    """What proves to the cluster who we are, from where Ray takes it; None: nothing is there."""
    if given := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return given
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path("~/.ray/auth_token").expanduser())
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


@dataclass(frozen=True)
class RayJobs:
    """The jobs of the cluster at `address`."""

    address: str
    timeout: float = ANSWER_SECONDS  # s for each answer

    def fetch_versions(self) -> tuple[str, str]:
        """Ray's and Python's on the cluster."""
        with self._require_ray_answer():
            about = self._ask("GET", "/api/v0/cluster_metadata")["data"]
            return str(about["rayVersion"]), str(about["pythonVersion"])

    def fetch_nodes(self) -> list[ClusterNode]:
        """All live nodes."""
        query = "limit=10000&detail=1&filter_keys=state&filter_predicates==&filter_values=ALIVE"
        with self._require_ray_answer():
            answer = self._ask("GET", f"/api/v0/nodes?{query}")
            return [
                ClusterNode(
                    str(each["node_ip"]),
                    bool(each["is_head_node"]),
                    dict(each.get("resources_total") or {}),
                    dict(each.get("labels") or {}),
                )
                for each in answer["data"]["result"]["result"]
                if each["state"] == "ALIVE"
            ]

    def fetch_job(self, submission_id: str) -> RayJob | None:
        """The job that was submitted under that id; None: the cluster knows none."""
        with self._require_ray_answer():
            found = self._ask("GET", f"/api/jobs/{submission_id}", missing=True)
            if found is None:
                return None
            return RayJob(
                found["status"], found.get("message") or "", found.get("driver_exit_code")
            )

    def fetch_output(self, submission_id: str) -> str:
        """What a job printed so far, and what Ray wrote between. As long as its node lives."""
        with self._require_ray_answer():
            return str(self._ask("GET", f"/api/jobs/{submission_id}/logs")["logs"])

    def submit(
        self,
        submission_id: str,
        entrypoint: str,
        runtime_env: Mapping[str, Any],
        metadata: Mapping[str, str],
    ) -> None:
        """Start a job on the head. One that is there already under that id is taken for it: an
        answer may have been lost on the way."""
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
        """End a job: SIGTERM, and SIGKILL 3 s later. Nothing happens to one that is over."""
        self._ask("POST", f"/api/jobs/{submission_id}/stop", b"", missing=True)

    def has_package(self, name: str) -> bool:
        """Whether an upload of that name is there; if so, it stays for ten minutes at least."""
        return self._ask("GET", f"/api/packages/gcs/{name}", missing=True) is not None

    def upload(self, name: str, data: bytes) -> str:
        """Put a package on the cluster, unless it is there; the URI that runs name it by."""
        if not self.has_package(name):
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
        """The answer, from JSON; `missing`: None for what is not there."""
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
                    f"{self.address}{path}: not there; is it Ray's dashboard?"
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
        # From a stream the body goes block by block, each with the time limit for itself: a large
        # one over a slow line is no cluster that hangs.
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
        """Say that the block waits for an answer, once it has for a while."""
        if seconds <= SILENT_SECONDS:
            yield
            return
        what = "%s: Ray's dashboard has not answered for %.0f s; waits for it up to %.0f s more"
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
            raise JobRefused(f"{self.address}{path}: answers {error.code}: {last}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            if isinstance(reason, TimeoutError):
                why = f"nothing in {self.timeout:g} s; its process may hang"
            raise Unreachable(
                f"{self.address}: no Ray dashboard answers ({why}); is the cluster up, and the "
                "address that of its jobs (--address http://HOST:8265)?"
            ) from None
        except ValueError:  # of a header that cannot be sent
            raise Denied(f"{self.address}: {NO_TOKEN}") from None

    @contextlib.contextmanager
    def _require_ray_answer(self) -> Iterator[None]:
        """The block takes an answer apart; one of another form is somebody else's."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError):
            raise JobRefused(
                f"{self.address}: gives no answer of Ray's; what serves there?"
            ) from None


class _NotThere(Exception):
    """HTTP's 404."""


class _SamePlace(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would carry the token elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """None: the redirect becomes an error."""
        return


def _build_opener(address: str) -> urllib.request.OpenerDirector:
    """No proxy reads the token: over plain HTTP none is asked, whatever the environment says."""
    plain = [urllib.request.ProxyHandler({})] if address.startswith("http://") else []
    return urllib.request.build_opener(_SamePlace, *plain)


def _explain_token(code: int) -> str:
    if code == 401:
        return (
            "asks for a token, and none is here; put the cluster's in ~/.ray/auth_token (or the "
            "file that RAY_AUTH_TOKEN_PATH names, or RAY_AUTH_TOKEN)"
        )
    return "refuses our token; that of RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"
