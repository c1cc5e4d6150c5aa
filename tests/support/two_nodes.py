"""A Ray cluster of two raylets on this machine, isolated from the tests.

Its interpreter is a separate environment with the dependencies, but without trainrig. Each node has
its own home and working directory, and requests need a token. So a job can import trainrig only
from an upload.
"""

import contextlib
import json
import os
import secrets
import subprocess
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support.processes import find_free_ports
from trainrig.ray_runtime.ray_session import ENVIRONMENT

OBJECT_STORE = 80 * 2**20  # bytes: Ray's minimum
# Variables that nodes must not inherit: addresses of the cluster, or the path of this checkout.
OURS = ("RAY_", "PYTHONPATH", "TRAINRIG_", "COVERAGE_", "PYTEST_")


@dataclass
class TwoNodes:
    """A head and, on request, a second node."""

    folder: Path
    python: Path  # the interpreter of both
    gcs_port: int
    dashboard_port: int
    environment: dict[str, str] = field(repr=False)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Return the address for jobs."""
        return f"http://127.0.0.1:{self.dashboard_port}"

    @property
    def token(self) -> Path:
        """Return the file of the cluster's token."""
        return self.folder / "token"

    def start_head(self, cpus: int, *options: str) -> None:
        """Start a head with this number of CPUs, and return once it accepts jobs."""
        ports = [f"--port={self.gcs_port}", f"--dashboard-port={self.dashboard_port}"]
        ports += ["--dashboard-host=127.0.0.1", "--include-dashboard=true"]
        self._start("head", "--head", f"--num-cpus={cpus}", *ports, *options)
        self.wait_for_answer("/api/v0/cluster_metadata")

    def add_node(self, name: str, cpus: int, *options: str) -> None:
        """Start another node, and return at once."""
        self._start(name, f"--address=127.0.0.1:{self.gcs_port}", f"--num-cpus={cpus}", *options)

    def kill(self, name: str) -> None:
        """Kill all processes of the node with SIGKILL."""
        process = self._processes.pop(name)
        family = [psutil.Process(process.pid)] if process.poll() is None else []
        family += [child for parent in family for child in parent.children(recursive=True)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()
        psutil.wait_procs(family, timeout=60)

    def shutdown(self) -> None:
        for name in list(self._processes)[::-1]:
            self.kill(name)

    def _start(self, name: str, *options: str) -> None:
        place = self.folder / name
        (place / "home").mkdir(parents=True, exist_ok=True)
        common = ["--node-ip-address=127.0.0.1", f"--object-store-memory={OBJECT_STORE}"]
        command = [self.python, "-m", "ray.scripts.scripts", "start", "--block", *common, *options]
        # The default port may belong to another cluster, and then no job starts.
        (agent,) = find_free_ports(1)
        command += [f"--dashboard-agent-listen-port={agent}"]
        command += [f"--temp-dir={self.folder / name[:1]}"]
        with (place / "out.txt").open("wb") as output:
            self._processes[name] = subprocess.Popen(
                command,
                cwd=place,
                env=self.environment | {"HOME": str(place / "home")},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for_nodes(self, count: int) -> None:
        """Wait until `count` nodes are alive."""
        while True:
            answer = self.wait_for_answer("/api/v0/nodes?limit=100")
            states = [node["state"] for node in answer["data"]["result"]["result"]]
            if states.count("ALIVE") == count:
                return
            time.sleep(0.1)

    def wait_for_answer(self, path: str) -> Any:
        """Return the dashboard's answer once there is one."""
        head = self._processes["head"]
        request = urllib.request.Request(self.address + path)
        request.add_header("Authorization", f"Bearer {self.token.read_text()}")
        while True:
            assert head.poll() is None, (self.folder / "head" / "out.txt").read_text()
            try:
                with urllib.request.urlopen(request, timeout=5) as answer:
                    return json.load(answer)
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                time.sleep(0.1)


@contextlib.contextmanager
def two_nodes(more: Mapping[str, str] | None = None) -> Iterator[TwoNodes]:
    """Yield a cluster that is not started; the block's end stops it.

    `more`: environment variables.
    """
    # The path is not below pytest's folder, because socket paths must be short.
    with tempfile.TemporaryDirectory(prefix="two-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        python = _environment_without_us(folder / "env")
        (folder / "token").write_text(secrets.token_hex(32))
        kept = {n: v for n, v in os.environ.items() if not n.startswith(OURS)}
        environment = (
            kept
            | ENVIRONMENT
            | {
                # Jobs' entrypoints find `python` there.
                "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
                "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
                "OMP_NUM_THREADS": "1",
                **(more or {}),
            }
        )
        gcs, dashboard = find_free_ports(2)
        cluster = TwoNodes(folder, python, gcs, dashboard, environment)
        try:
            yield cluster
        finally:
            cluster.shutdown()


def _environment_without_us(folder: Path) -> Path:
    """Return the interpreter of a virtual environment that has trainrig's dependencies.

    Python searches a path in a .pth file, but does not read the .pth files there, such as an
    editable install's.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    checked = subprocess.run(
        [python, "-c", "import trainrig.storage"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={name: v for name, v in os.environ.items() if not name.startswith(OURS)},
    )
    assert "ModuleNotFoundError" in checked.stderr, "trainrig is there without an upload"
    return python
