"""A cloud machine's metadata service, on loopback, with faults on request."""

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

TOKEN = "/latest/api/token"
GOOGLE = "/computeMetadata/"


@dataclass
class MetadataService:
    """Texts by path; a number in place of a text is a status without a body."""

    url: str = ""
    there: dict[str, str | int] = field(default_factory=dict)
    slow: float = 0.0  # s before each answer
    refuses: int | None = None  # a status for everything, tokens included
    tokens: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, path: str, what: str | int) -> None:
        """Serve `what` at `path` from now on."""
        with self.changed:
            self.there[path] = what
            self.changed.notify_all()

    def forget_tokens(self) -> None:
        """Invalidate all tokens, as if they had expired."""
        self.tokens.clear()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: MetadataService

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):  # the client did not wait
            super().handle_one_request()

    def do_PUT(self) -> None:
        """Answer a request for a token that names its lifetime."""
        service = self._begin()
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if service.refuses:
            return self._answer(service.refuses)
        if self.path != TOKEN or not seconds.isdecimal() or not 1 <= int(seconds) <= 21_600:
            return self._answer(400)
        token = secrets.token_urlsafe(40)
        service.tokens.add(token)
        return self._answer(200, token)

    def do_GET(self) -> None:
        service = self._begin()
        if service.refuses:
            return self._answer(service.refuses)
        if self.path.startswith(GOOGLE):
            return self._google(service)
        if self.headers.get("X-aws-ec2-metadata-token") not in service.tokens:
            return self._answer(401)
        return self._give(service.there.get(self.path, 404))

    def _google(self, service: MetadataService) -> None:
        if self.headers.get("Metadata-Flavor") != "Google":
            return self._answer(403)
        parts = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        with service.changed:
            if asked.get("wait_for_change") == "true":
                seconds = float(asked.get("timeout_sec", "60"))
                same = asked.get("last_etag")
                service.changed.wait_for(
                    lambda: make_tag(service.there[parts.path]) != same, timeout=seconds
                )
            what = service.there.get(parts.path, 404)
        return self._give(what, {"Metadata-Flavor": "Google", "ETag": make_tag(what)})

    def _begin(self) -> MetadataService:
        self.service.asked.append(f"{self.command} {self.path}")
        time.sleep(self.service.slow)
        return self.service

    def _give(self, what: str | int, headers: dict[str, str] | None = None) -> None:
        if isinstance(what, int):
            self._answer(what, "", headers)
        else:
            self._answer(200, what, headers)

    def _answer(self, status: int, text: str = "", headers: dict[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def make_tag(what: str | int) -> str:
    """Return an entity tag, different for each text."""
    return str(what).encode().hex()[:16]


@pytest.fixture
def metadata_service() -> Iterator[MetadataService]:
    """Yield a service that answers at its `url` until the test is over."""
    service = MetadataService()
    handler = type("ItsHandler", (Handler,), {"service": service})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield service
    server.shutdown()
    server.server_close()
