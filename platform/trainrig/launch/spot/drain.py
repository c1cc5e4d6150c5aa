"""Draining of this machine by Ray: no new work is placed on it, and training moves away.

Each try runs in a process of its own. Ray's client ends its process when the head is unreachable
for long, and uses memory that a waiting agent does not need.
"""

import argparse
import functools
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from trainrig.errors import ClusterError, ConfigError, TrainrigError
from trainrig.launch.spot.preemption_notices import Notice
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.ray_session import ENVIRONMENT

ANSWER = 5.0  # seconds for the head to answer
TRY = 15.0  # seconds for one try in all; importing Ray takes about two


@dataclass(frozen=True)
class RayNode:
    """The Ray node of this machine."""

    address: str  # HOST:PORT of the cluster's head
    node: str = ""  # node id; empty: the node with an address of this machine

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or "/" in host:
            raise ConfigError(f"{self.address}: not an address of Ray's head; write HOST:PORT")

    def drain(self, notice: Notice) -> str:
        """Try once to drain the node until the notice's deadline; return the error, or ""."""
        command = [sys.executable, "-m", "trainrig.launch.spot.drain", self.address]
        command += [f"--node={self.node}", f"--why={notice.what}", f"--deadline={notice.deadline}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TRY, start_new_session=True
            )
        except subprocess.TimeoutExpired:
            return f"{self.address}: no answer within {TRY:g} s"
        last = done.stderr.strip().splitlines()[-1:]
        return "" if done.returncode == 0 else "".join(last) or f"exit {done.returncode}"


def drain(address: str, node: str, deadline: float, why: str) -> None:
    """Drain `node` of the Ray cluster with head `address` until `deadline` (as time.time()).

    May be called again: the newest deadline holds. Raises ClusterError if the head does not answer,
    or has no such node.
    """
    head = _open_client(address)
    from ray.exceptions import RayError

    node = _pick_node(list_live_nodes(address), node, address)
    try:
        problem = head.drain(node, why, deadline, ANSWER)
    except RayError as error:
        raise ClusterError(f"{address}: {error}") from None
    if problem:
        raise ClusterError(f"{address}: node {node} is not drained: {problem}")


def list_live_nodes(address: str) -> dict[str, str]:
    """Return the address of each live node by id, for the Ray cluster with head `address`.

    Raises ClusterError if the head does not answer.
    """
    head = _open_client(address)
    from ray.exceptions import RayError

    try:
        live = head.list_live_nodes(ANSWER)
    except RayError as error:
        raise ClusterError(f"{address}: {error}") from None
    return {node.id: node.address for node in live}


@functools.cache
def _open_client(address: str) -> ray_private.HeadClient:
    """Open a client of the head's control store. Raises ClusterError."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _probe(address)
    from ray.exceptions import RayError

    try:
        return ray_private.HeadClient(address)
    except RayError as error:
        raise ClusterError(f"{address}: {error}") from None


def _probe(address: str) -> None:
    """Raise ClusterError at once if nothing answers, as Ray's client would retry for 40 s."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except (OSError, ValueError) as problem:
        raise ClusterError(f"{address}: no Ray head answers there ({problem})") from None


def _pick_node(live: Mapping[str, str], wanted: str, address: str) -> str:
    """Return the node to drain; checked here, as Ray agrees to drain nodes that do not exist."""
    if wanted:
        found = [node for node in live if node == wanted]
    else:
        found = [node for node, host in live.items() if is_own_address(host)]
    if len(found) == 1:
        return found[0]
    which = f"node {wanted}" if wanted else "node of this machine"
    raise ClusterError(
        f"{address}: no {which} among its {len(live)} live nodes"
        if not found
        else f"{address}: {len(found)} of its nodes are on this machine; choose one with --node"
    )


def is_own_address(address: str) -> bool:
    """Return whether `address` belongs to this machine: a socket can only listen on its own."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Have Ray drain a node of this machine, once.")
    parser.add_argument("address")
    parser.add_argument("--node", required=True)
    parser.add_argument("--deadline", type=float, required=True)
    parser.add_argument("--why", required=True)
    given = parser.parse_args()
    try:
        drain(given.address, given.node, given.deadline, given.why)
    except TrainrigError as error:
        sys.exit(str(error))
