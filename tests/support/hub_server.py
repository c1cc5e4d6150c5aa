"""A small Hugging Face Hub on loopback: repositories of models that `hf` can push and pull."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40  # the only revision of each repository


class Hub:
    """Repositories by name, each with its files by path, and large objects by SHA-256."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.objects: dict[str, bytes] = {}
        self.tokens: set[str] = set()  # tokens that were sent
        self.url = ""

    def commit(self, name: str, lines: bytes) -> None:
        """Add the files of the newline-delimited JSON `lines` to the repository `name`."""
        for line in lines.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                self.repositories[name][value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                self.repositories[name][value["path"]] = self.objects[value["oid"]]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self._read_body()
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.hub.repositories.setdefault(name, {})
            self._answer({"url": f"{self.hub.url}/{name}", "id": name})
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self._answer({"files": modes})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**asked, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{asked['oid']}"}}}
                for asked in json.loads(body)["objects"]
            ]
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            name = path.removeprefix("/api/models/").partition("/commit/")[0]
            self.hub.commit(name, body)
            url = f"{self.hub.url}/{name}/commit/{COMMIT}"
            self._answer({"commitUrl": url, "commitOid": COMMIT})
        else:
            self._refuse()

    def do_PUT(self) -> None:
        body = self._read_body()
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.objects[oid] = body
        self._answer({})

    def do_GET(self) -> None:
        self._read_body()
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            name, listed, _ = path.removeprefix("/api/models/").partition("/tree/")
            name = name.partition("/revision/")[0]
            files = self.hub.repositories.get(name)
            if files is None:
                self._refuse()
            elif listed:
                entries = [
                    {"type": "file", "path": file, "size": len(data), "oid": COMMIT}
                    for file, data in files.items()
                ]
                self._answer(entries)
            else:
                siblings = [{"rfilename": file} for file in files]
                self._answer({"id": name, "sha": COMMIT, "siblings": siblings})
            return
        name, _, rest = path.removeprefix("/").partition("/resolve/")
        data = self.hub.repositories.get(name, {}).get(rest.partition("/")[2])
        if data is None:
            self._refuse()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def _read_body(self) -> bytes:
        self.hub.tokens.add(self.headers.get("Authorization", ""))
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Serve an empty Hub on loopback in the block."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
