"""`trainrig watch`: the report of a run, alive in a browser on this machine.

It serves one page, drawn anew from the run folder whenever it is asked for, and nothing else. It is
bound to the loopback address, reads and never writes, and answers only to who knows the token in
its address: other users of this machine, and pages that a browser here has open, do not.
"""

import hmac
import html
import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from trainrig.errors import ConfigError, DataError
from trainrig.report import POLICY
from trainrig.runs.overlay import build_overlay_page, read_runs
from trainrig.train.run.run_page import build_run_page, read_report_data

ADDRESS = "127.0.0.1"
REFRESH_SECONDS = 10
SILENT_SECONDS = 20.0  # after which a connection that says nothing is closed
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_WAITING = (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<title>Waiting for a run</title></head><body><p>{}</p></body></html>\n"
)


def build_live_page(*folders: str, seconds: int = REFRESH_SECONDS) -> str:
    """The report of the run in `folders`, or of several laid over each other, as it is now, which
    asks for itself again."""
    try:
        if len(folders) == 1:
            page = build_run_page(read_report_data(folders[0]))
        else:
            page = build_overlay_page(read_runs(folders))
    except DataError as problem:  # not one update yet
        page = _WAITING.format(html.escape(str(problem)))
    refresh = f'<meta http-equiv="refresh" content="{seconds}">'
    return page.replace("</title>", f"</title>\n{refresh}", 1)


class PageServer(ThreadingHTTPServer):
    """Serves `page()` at one address, which holds a token."""

    daemon_threads = True
    request_queue_size = 128  # of connections: by default five that say nothing keep others out

    def __init__(self, page: Callable[[], str], port: int = 0) -> None:
        """`port` 0: one that is free. Raises ConfigError if `port` is taken."""
        self.page = page
        self.token = secrets.token_urlsafe(16)
        self.drawing = threading.Lock()  # matplotlib draws one figure at a time
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as problem:
            raise ConfigError(
                f"--port {port}: {problem.strerror or problem}; name another, or none"
            ) from None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.token}/"

    def is_ours(self, host: str | None, path: str) -> bool:
        """Whether a request for `path` at `host` names this server and its token. The host counts,
        as a stranger's page may have its own name resolve to this machine."""
        port = self.server_address[1]
        named = host in (f"{ADDRESS}:{port}", f"localhost:{port}")
        given = urlsplit(path).path.strip("/")
        return named and hmac.compare_digest(given.encode(), self.token.encode())


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; anything else is not implemented."""

    server: PageServer
    server_version = "trainrig"
    sys_version = ""
    timeout = SILENT_SECONDS

    def do_GET(self) -> None:
        """The page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Its headers."""
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        if not self.server.is_ours(self.headers.get("Host"), self.path):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with self.server.drawing:
            body = self.server.page().encode()
        self.send_response(HTTPStatus.OK)
        for name, value in (HEADERS | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Say nothing: the address holds the token."""
