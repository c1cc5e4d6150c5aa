"""Rehearsal of a run under a trace of node losses, on this machine.

    python -m trainrig_contrib.spot_rehearsal.rehearse storm.csv -- trainrig pretrain RUN.toml

A cluster is started, with a Ray node for each node of the trace, and some that are never lost. The
command runs on it while nodes are drained, killed and started again as in the trace, and its exit
code becomes the exit code of the rehearsal. The run's own record shows how much time it lost. Its
loss curve shows whether the result is the same as without losses.

The nodes listen on the address that Ray finds for this machine, as with `ray start`, and need the
token.
"""

import argparse
import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainrig.errors import ClusterError, ConfigError, TrainrigError
from trainrig.launch.spot.drain import RayNode, list_live_nodes
from trainrig.launch.spot.preemption_notices import Notice
from trainrig.processes.child_process import kill_group
from trainrig.ray_runtime.ray_session import ENVIRONMENT
from trainrig_contrib.spot_rehearsal.loss_trace import LOST, Event, list_nodes, read

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


log = logging.getLogger(__name__)


@dataclass
class Replay:
    """Replay of `events` in a thread, on a `cluster` with all nodes up."""

    cluster: LocalCluster
    events: Sequence[Event]
    played: list[Event] = field(default_factory=list)
    drained: int = 0  # losses that came with a notice
    _over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start the replay; second 0 is now."""
        self._thread = threading.Thread(target=self._play, name="replay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the replay and skip the rest of the trace."""
        self._over.set()
        self._thread.join()

    def is_playing(self) -> bool:
        """Return whether the replay still runs."""
        return self._thread.is_alive()

    def _play(self) -> None:
        began = time.monotonic()
        for second, event, notice in _order_events(self.events):
            if self._over.wait(max(0.0, second - (time.monotonic() - began))):
                return
            if notice:
                self._drain(event)
            elif event.event == LOST:
                log.info("second %.0f: node %s is lost", second, event.node)
                self.cluster.kill(event.node)
                self.played.append(event)
            else:
                log.info("second %.0f: node %s is back", second, event.node)
                self.cluster.add(event.node)
                self.played.append(event)

    def _drain(self, event: Event) -> None:
        log.info("node %s will be lost in %.0f s", event.node, event.notice)
        node = RayNode(self.cluster.address, self.cluster.ids[event.node])
        problem = node.drain(Notice("spot interruption of the trace", time.time() + event.notice))
        if problem:  # such as a node that has only just been started
            log.warning("node %s gets no notice: %s", event.node, problem)
        else:
            self.drained += 1


def _order_events(events: Sequence[Event]) -> list[tuple[float, Event, bool]]:
    """Return (second, event, whether this is its notice) of all actions, in order of time."""
    notices = [(event.second - event.notice, event, True) for event in events if event.notice]
    return sorted(
        [*notices, *((event.second, event, False) for event in events)], key=lambda e: e[0]
    )


@contextlib.contextmanager
def cluster_for(events: Sequence[Event], steady: int, cpus: int) -> Iterator[LocalCluster]:
    """Yield a cluster with the nodes of a trace and `steady` others. Raises ClusterError."""
    # Killed processes may still write to the folder while it is deleted.
    place = tempfile.TemporaryDirectory(prefix="rehearse-", dir="/tmp", ignore_cleanup_errors=True)
    with place as folder:
        cluster = LocalCluster(folder, cpus)
        try:
            cluster.start()
            for node in [
                *(f"steady {number + 1}" for number in range(steady)),
                *list_nodes(events),
            ]:
                cluster.add(node)
                cluster.wait([node])  # one by one, as Ray gives a node 30 s to start
            yield cluster
        finally:
            cluster.close()


def build_environment(cluster: LocalCluster) -> Mapping[str, str]:
    """Return the environment of a command that runs on `cluster`."""
    return {**os.environ, "RAY_ADDRESS": cluster.address}


def main() -> None:
    """Run the rehearsal that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m trainrig_contrib.spot_rehearsal.rehearse")
    parser.add_argument("trace", help="CSV: second,node,event,notice")
    parser.add_argument(
        "--steady", type=int, default=1, help="number of nodes that are never lost  [default: 1]"
    )
    parser.add_argument(
        "--cpus", type=int, default=1, help="CPUs of each node, as Ray counts them  [default: 1]"
    )
    parser.add_argument("command", nargs="+", help="command to run on the cluster, after --")
    given = parser.parse_args()
    logging.basicConfig(format="rehearse: %(message)s", level=logging.INFO)
    try:
        events = read(given.trace)
        if not shutil.which(given.command[0]):
            raise ConfigError(f"{given.command[0]}: command not found; give it after --")
        # A clean exit ends Ray, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        with cluster_for(events, given.steady, given.cpus) as cluster:
            replay = Replay(cluster, events)
            with subprocess.Popen(given.command, env=build_environment(cluster)) as command:
                replay.start()
                try:
                    code = command.wait()
                except BaseException:  # Ctrl-C also reaches the command; SIGTERM does not
                    command.terminate()
                    raise
            replay.stop()
    except TrainrigError as error:
        print(f"rehearse: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    lost = sum(event.event == LOST for event in replay.played)
    log.info("losses: %d, of which with notice: %d; exit code %d", lost, replay.drained, code)
    sys.exit(code)


if __name__ == "__main__":
    main()
