"""A stand-in for the job API of Ray's dashboard, as far as `trainrig submit` uses it, without Ray.

Entrypoints really run, as processes of this machine. A job can be held back or forgotten. Ray
itself is tested in test_submit.py.
"""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

TOKEN = "t" * 64
QUESTION = "trainrig-pools"  # name of the jobs that ask which pools the autoscaler may start
STOP_SECONDS = 3.0  # between SIGTERM and SIGKILL, as in Ray


@dataclass
class JobsServer:
    """The jobs of a cluster of one node, this machine."""

    folder: Path
    ray: str = metadata.version("ray")
    python: str = platform.python_version()
    nodes: list[dict[str, Any]] = field(default_factory=list)
    hold: int = 0  # jobs that will stay pending
    pools: list[dict[str, Any]] | None = None  # pools that the autoscaler may start
    address: str = ""
    uploads: int = 0
    questions: int = 0
    jobs: dict[str, subprocess.Popen[bytes] | None] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    heard: list[bytes] = field(default_factory=list)  # bodies of all requests

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        self.heard.append(body)
        match path.partition("?")[0].strip("/").split("/"):
            case ["api", "v0", "cluster_metadata"]:
                return 200, {"data": {"rayVersion": self.ray, "pythonVersion": self.python}}
            case ["api", "v0", "nodes"]:
                return 200, {"data": {"result": {"result": self.nodes}}}
            case ["api", "packages", "gcs", name]:
                self.uploads += method == "PUT"
                return self._package(method, name, body)
            case ["api", "jobs"] if method == "POST":
                return self._submit(json.loads(body))
            case ["api", "jobs", name, "stop"] if name in self.jobs:
                return 200, {"stopped": self._stop(name)}
            case ["api", "jobs", name] if name.startswith(QUESTION):
                return 200, {"status": "SUCCEEDED"}
            case ["api", "jobs", name, "logs"] if name.startswith(QUESTION):
                return 200, {"logs": f"of Ray's\n{QUESTION}: {json.dumps(self.pools)}\n"}
            case ["api", "jobs", name] if name in self.jobs:
                return 200, self._job(name)
        return 404, "404: Not Found"

    def _package(self, method: str, name: str, body: bytes) -> tuple[int, Any]:
        path = self.folder / name
        if method == "PUT":
            path.write_bytes(body)
            with zipfile.ZipFile(path) as archive:
                archive.extractall(self.folder / name.removesuffix(".zip"))
        return (200, "") if path.exists() else (404, "no such package")

    def _submit(self, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["submission_id"]
        if name.startswith(QUESTION):
            self.questions += 1
            return 200, {"submission_id": name}
        if name in self.jobs:
            return 500, f"Job with submission_id {name} already exists."
        if self.hold > 0:
            self.hold -= 1
            self.jobs[name] = None
            return 200, {"submission_id": name}
        (uri,) = body["runtime_env"]["py_modules"]
        modules = self.folder / uri.removeprefix("gcs://").removesuffix(".zip")
        self.jobs[name] = subprocess.Popen(
            body["entrypoint"],
            shell=True,
            cwd=self.folder,
            env=os.environ
            | {
                "PYTHONPATH": str(modules),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return 200, {"submission_id": name}

    def _job(self, name: str) -> dict[str, Any]:
        process = self.jobs[name]
        if name in self.stopped:
            over = process is None or process.poll() is not None
            return {"status": "STOPPED" if over else "RUNNING", "message": ""}
        if process is None:
            return {"status": "PENDING", "message": "Job has not started yet: no room on the head."}
        code = process.poll()
        if code is None:
            return {"status": "RUNNING", "message": ""}
        status = "SUCCEEDED" if code == 0 else "FAILED"
        return {"status": status, "message": f"exit code {code}", "driver_exit_code": code}

    def _stop(self, name: str) -> bool:
        self.stopped.add(name)
        process = self.jobs[name]
        if process is None or process.poll() is not None:
            return False
        threading.Thread(target=end, args=(process,), daemon=True).start()
        return True

    def kill(self, name: str) -> None:
        """Send SIGKILL to the job's processes, as when its machine is lost."""
        process = self.jobs[name]
        assert process is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def node(cpus: float, gpus: float = 0, address: str = "127.0.0.1") -> dict[str, Any]:
    return {
        "node_ip": address,
        "is_head_node": True,
        "state": "ALIVE",
        "resources_total": {"CPU": cpus} | ({"GPU": gpus} if gpus else {}),
        "labels": {},
    }


@contextlib.contextmanager
def serving() -> Iterator[JobsServer]:
    """Serve on this machine, and end the jobs with the server."""
    with tempfile.TemporaryDirectory(prefix="jobs-") as folder:
        found = JobsServer(Path(folder), nodes=[node(4)])

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                given = self.headers.get("Authorization")
                if given != f"Bearer {TOKEN}":
                    code, answer = (403, "Forbidden") if given else (401, "Unauthorized")
                else:
                    code, answer = found.answer(self.command, self.path, body)
                data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_PUT = do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        found.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            for process in found.jobs.values():
                if process is not None and process.poll() is None:
                    end(process)
