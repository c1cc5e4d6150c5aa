"""Server of a run's live report to a browser on this machine.

It serves one page, drawn from the run folder at each request, and nothing else. It listens on the
loopback address and only reads. It answers only requests with the token in its URL, so other users
of this machine, and other pages open in a browser here, get no answer.
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
from trainrig.report.page_rendering import POLICY
from trainrig.runs.overlay import build_overlay_page, read_runs
from trainrig.train.run_report.run_page import build_run_page, read_report_data

ADDRESS = "127.0.0.1"
REFRESH_SECONDS = 10
SILENT_SECONDS = 20.0  # seconds until a silent connection is closed
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
    """Return the current report of one run, or of several overlaid, which reloads itself."""
    try:
        if len(folders) == 1:
            page = build_run_page(read_report_data(folders[0]))
        else:
            page = build_overlay_page(read_runs(folders))
    except DataError as problem:  # the run has no update yet
        page = _WAITING.format(html.escape(str(problem)))
    refresh = f'<meta http-equiv="refresh" content="{seconds}">'
    return page.replace("</title>", f"</title>\n{refresh}", 1)


class PageServer(ThreadingHTTPServer):
    """Server of `page()` at one URL, which contains a token."""

    daemon_threads = True
    # connections; with the default of five, a few silent ones would block all others
    request_queue_size = 128

    def __init__(self, page: Callable[[], str], port: int = 0) -> None:
        """Listen on `port`; 0 chooses a free one. Raises ConfigError if `port` is taken."""
        self.page = page
        self.token = secrets.token_urlsafe(16)
        self.drawing = threading.Lock()  # matplotlib draws one figure at a time
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as problem:
            raise ConfigError(
                f"--port {port}: {problem.strerror or problem}; give another port, or leave "
                "--port out"
            ) from None

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.token}/"

    def is_ours(self, host: str | None, path: str) -> bool:
        """Return whether a request names this server as its host, and its token.

        The host is checked as well, as another site's name may resolve to this machine.
        """
        port = self.server_address[1]
        named = host in (f"{ADDRESS}:{port}", f"localhost:{port}")
        given = urlsplit(path).path.strip("/")
        return named and hmac.compare_digest(given.encode(), self.token.encode())


class _Handler(BaseHTTPRequestHandler):
    """Handler of GET and HEAD; other methods are not implemented."""

    server: PageServer
    server_version = "trainrig"
    sys_version = ""
    timeout = SILENT_SECONDS

    def do_GET(self) -> None:
        """Send the page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Send the headers of the page."""
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
        """Log nothing, as the URL contains the token."""
