"""Servers on loopback for the stores of objects that are not S3, and locations in them."""

import base64
import hashlib
import hmac
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from support.processes import find_free_ports

# Google's XML interface is S3's, except for the names of some headers.
GOOGLE_TO_S3 = {
    "x-goog-if-generation-match": ("If-None-Match", "*"),
    "x-goog-copy-source": ("x-amz-copy-source", None),
}
# moto finds the service of a request in its signature, which it does not check.
UNCHECKED = "AWS4-HMAC-SHA256 Credential=a/20250101/us-east-1/s3/aws4_request, Signature=b"
AZURITE = os.environ.get("AZURITE") or shutil.which("azurite-blob")
ACCOUNT = "devstoreaccount1"  # the account of all emulators, and its published key
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def serve_google(s3_server: str) -> Iterator[str]:
    """Yield the address of a server with Google's interface in front of the server of S3."""
    target = urlsplit(s3_server).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {"authorization": UNCHECKED}
            for name, value in self.headers.items():
                if name == "authorization":
                    continue
                to, fixed = GOOGLE_TO_S3.get(name.lower(), (name, None))
                headers[to] = fixed or value
            connection = http.client.HTTPConnection(target)
            path, mark, query = self.path.partition("?")
            plain = path.replace("%2F", "/").replace("%2E", ".").replace("%2D", "-")
            connection.request(self.command, plain + mark + query, body, headers)
            response = connection.getresponse()
            data = response.read()
            self.send_response_only(response.status)
            for name, value in response.getheaders():
                if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                    self.send_header(name, value)
            length = response.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

        def log_message(self, *arguments: object) -> None:
            """Drop log lines."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def serve_azure() -> Iterator[str]:
    """Yield the address of Azurite, Microsoft's emulator, which AZURITE or the PATH must name."""
    assert AZURITE is not None
    (port,) = find_free_ports(1)
    address = f"http://127.0.0.1:{port}"
    options = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with tempfile.TemporaryDirectory() as folder:
        command = [AZURITE, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as server:
            try:
                _wait_for(port)
                yield address
            finally:
                server.terminate()


def _wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def create_container(address: str, name: str) -> None:
    """Create a container in Azurite at `address`, which obstore cannot do."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    listed = "\n".join(f"{key}:{value}" for key, value in headers.items())
    signed = "PUT" + "\n" * 12 + f"{listed}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers["Content-Length"] = "0"
    url = f"{address}/{ACCOUNT}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()
