"""Several Ray nodes on this machine, each of which acts as a separate machine.

They listen on the address that Ray finds for this machine, as with `ray start`, and need the token.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainrig.errors import ClusterError
from trainrig.launch.spot.drain import list_live_nodes
from trainrig.processes.child_process import kill_group
from trainrig.ray_runtime.ray_session import ENVIRONMENT

HEAD = "the head"
OBJECT_STORE = 80 * 2**20  # bytes, Ray's minimum: none of our data is in it
START = 120.0  # seconds for the head or the nodes to be up; each takes about five
NODE_ID = 28  # bytes


@dataclass
class LocalCluster:
    """A Ray head without CPUs for work, and named nodes.

    Each node is a `ray start` process. Killing its process group simulates switching off a machine.
    """

    folder: str  # folder of Ray's sockets and logs; short, as a socket's path has at most 107 bytes
    cpus: int  # number of CPUs of each node, as Ray counts them
    address: str = ""
    ids: dict[str, str] = field(default_factory=dict)  # Ray's node ids by name
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self) -> None:
        """Start the head. Raises ClusterError."""
        port = _free_port()
        self.address = f"{_find_own_address()}:{port}"
        head = ["--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false"]
        self._start(HEAD, [*head, f"--temp-dir={self.folder}"])
        self.wait([HEAD])

    def wait(self, nodes: Iterable[str]) -> None:
        """Wait until Ray knows all of `nodes`. Raises ClusterError."""
        until = time.monotonic() + START
        while missing := [node for node in nodes if self.ids[node] not in self._list_live_nodes()]:
            ended = [node for node in missing if self._processes[node].poll() is not None]
            if ended or time.monotonic() > until:
                node = [*ended, *missing][0]
                log = Path(self.folder, f"{node}.log").read_text().strip().splitlines()[-1:]
                raise ClusterError(f"{node} did not start: {''.join(log) or 'no output'}")
            time.sleep(0.2)

    def _list_live_nodes(self) -> Mapping[str, str]:
        try:
            return list_live_nodes(self.address)
        except ClusterError:  # the head is not up yet
            return {}

    def add(self, node: str) -> None:
        """Start a node without waiting for it."""
        self._start(node, [f"--address={self.address}", f"--num-cpus={self.cpus}"])

    def kill(self, node: str) -> None:
        """Kill a node at once."""
        kill_group(self._processes.pop(node))

    def close(self) -> None:
        """Kill all remaining nodes, the head last."""
        for node in reversed(list(self._processes)):
            self.kill(node)

    def _start(self, node: str, options: Sequence[str]) -> None:
        self.ids[node] = secrets.token_hex(NODE_ID)
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        fixed = [f"--object-store-memory={OBJECT_STORE}"]
        own = {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": self.ids[node]}
        with Path(self.folder, f"{node}.log").open("ab") as output:
            self._processes[node] = subprocess.Popen(
                [*ray, *fixed, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**ENVIRONMENT, **os.environ, **own},
                start_new_session=True,
            )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        port: int = listener.getsockname()[1]
        return port


def _find_own_address() -> str:
    """Return the address that Ray uses for this machine: the source of its outgoing packets."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect(("8.8.8.8", 80))  # sends nothing
        except OSError:
            return "127.0.0.1"
        address: str = route.getsockname()[0]
        return address
