"""A proxy before the S3 server of a test, which spoils chosen requests."""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from trainrig.storage import retries, s3_objects


@dataclass
class Proxy:
    """Proxy before the S3 server that spoils the first `times` requests that `spoil` selects."""

    target: str
    spoil: Callable[[str, str], bool] = lambda method, path: True
    how: str = "slow_down"
    times: int = 0
    delay: float = 0.0  # seconds before each answer, as of a bucket that is far away
    seen: list[str] = field(default_factory=list)
    at_once: int = 0  # requests that are being answered
    most_at_once: int = 0  # the most of them, since the last call of `count`
    reached: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    handler: type | None = None  # this proxy's own handler

    def takes(self, method: str, path: str) -> bool:
        """Return whether to spoil this request."""
        with self.lock:
            self.seen.append(f"{method} {path}")
            if self.times and self.spoil(method, path):
                self.times -= 1
                return True
            return False

    @contextmanager
    def being_answered(self) -> Iterator[None]:
        """Count a request among those that are answered at the same time."""
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            yield
        finally:
            with self.lock:
                self.at_once -= 1

    def count(self) -> dict[str, int]:
        """Return the number of requests since the last call, by kind; `LIST` is a listing."""
        with self.lock:
            kinds = Counter(_name_kind(line) for line in self.seen)
            self.seen.clear()
            self.most_at_once = 0
        return dict(sorted(kinds.items()))


def _name_kind(line: str) -> str:
    """Return the kind of the request `line`, which is a method and a path."""
    method, _, path = line.partition(" ")
    if "list-type=2" in path:
        return "LIST"
    return "DELETE many" if method == "POST" and path.endswith("?delete") else method


REFUSALS = {
    "slow_down": (503, "SlowDown"),
    "conflict": (409, "ConditionalRequestConflict"),
    "forbidden": (403, "AccessDenied"),
    "not_implemented": (501, "NotImplemented"),
}


class SpoilingHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):  # the client may be killed at any time
            super().handle_one_request()

    def do_GET(self) -> None:
        how = self.proxy.how if self.proxy.takes(self.command, self.path) else ""
        length = int(self.headers.get("Content-Length", 0))
        if how == "cut_request":
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if how in REFUSALS:
            status, code = REFUSALS[how]
            text = f"<Error><Code>{code}</Code><Message>not now</Message></Error>".encode()
            self.answer(status, {"Content-Type": "application/xml"}, text)
        elif how == "hold":
            self.proxy.reached.set()
            self.close_connection = self.rfile.read(1) == b""  # until the client has gone
        else:
            with self.proxy.being_answered():
                status, headers, answer = self.forward(body)
                time.sleep(self.proxy.delay)
            if how == "cut":
                self.answer(status, headers, answer, sent=len(answer) // 2)
            elif how == "lose_answer":
                self.close_connection = True
            else:
                self.answer(status, headers, answer)

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(urlsplit(self.proxy.target).netloc)
        connection.request(self.command, self.path, body, dict(self.headers))
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()

    def answer(
        self, status: int, headers: dict[str, str], body: bytes, sent: int | None = None
    ) -> None:
        self.send_response_only(status)
        length = headers.get("Content-Length", str(len(body)))  # a HEAD has a length without a body
        for name, value in (headers | {"Content-Length": length}).items():
            if name not in {"Connection", "Transfer-Encoding"}:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:sent] if self.command != "HEAD" else b"")
        self.close_connection = sent is not None

    def log_message(self, *arguments: object) -> None:
        """Drop log lines."""


@pytest.fixture
def proxy(s3: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Route every request of this test through a proxy, with short pauses between attempts."""
    proxy = Proxy(s3_server)
    handler = type("Handler", (SpoilingHandler,), {"proxy": proxy})
    proxy.handler = handler
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.0)
    for patience in ("RETRY_SECONDS", "UNREACHABLE_SECONDS"):
        monkeypatch.setattr(retries, patience, 2.0)
    s3_objects.get_client.cache_clear()
    yield proxy
    s3_objects.get_client.cache_clear()
    server.shutdown()
    server.server_close()
    thread.join()
