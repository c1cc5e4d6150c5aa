"""A run under a trace of losses, on this machine:

    python -m trainrig.launch.spot.rehearse storm.csv -- trainrig pretrain RUN.toml

A cluster is started for it, with a Ray node for each that the trace speaks of, and some that are
never lost. The command runs on it while nodes are drained, killed and started again as the trace
says, and its exit code is this one's. What the run lost by that is in its own record; that it came
to the same, its losses show.
"""

import argparse
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trainrig.errors import ConfigError, TrainrigError
from trainrig.launch.spot.drain import RayNode
from trainrig.launch.spot.local_cluster import LocalCluster
from trainrig.launch.spot.notices import Notice
from trainrig.launch.spot.trace import LOST, Event, list_nodes, read

log = logging.getLogger(__name__)


@dataclass
class Replay:
    """Plays `events` on `cluster`, all of whose nodes are up, in a thread of its own."""

    cluster: LocalCluster
    events: Sequence[Event]
    played: list[Event] = field(default_factory=list)
    drained: int = 0  # nodes that Ray was told of in time
    _over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin; second 0 is now."""
        self._thread = threading.Thread(target=self._play, name="replay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave the rest of the trace alone."""
        self._over.set()
        self._thread.join()

    def goes_on(self) -> bool:
        """Whether there is more to come."""
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
        log.info("node %s is lost in %.0f s", event.node, event.notice)
        node = RayNode(self.cluster.address, self.cluster.ids[event.node])
        problem = node.drain(Notice("spot interruption of the trace", time.time() + event.notice))
        if problem:  # a node that had only just been started
            log.warning("node %s gets no notice: %s", event.node, problem)
        else:
            self.drained += 1


def _order_events(events: Sequence[Event]) -> list[tuple[float, Event, bool]]:
    """(second, event, whether it is the notice of it) of all that is to be done."""
    notices = [(each.second - each.notice, each, True) for each in events if each.notice]
    return sorted([*notices, *((each.second, each, False) for each in events)], key=lambda e: e[0])


@contextlib.contextmanager
def cluster_for(events: Sequence[Event], steady: int, cpus: int) -> Iterator[LocalCluster]:
    """A cluster with all nodes of a trace, and so many `steady` ones. Raises ClusterError."""
    # Processes that were just killed may still be in it when it goes.
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
                cluster.wait([node])  # Ray gives a node 30 s to start: they come one by one
            yield cluster
        finally:
            cluster.close()


def build_environment(cluster: LocalCluster) -> Mapping[str, str]:
    """What a command needs to run on `cluster`."""
    return {**os.environ, "RAY_ADDRESS": cluster.address}


def main() -> None:
    """Rehearse as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m trainrig.launch.spot.rehearse")
    parser.add_argument("trace", help="CSV: second,node,event,notice")
    parser.add_argument("--steady", type=int, default=1, help="nodes that are never lost; 1")
    parser.add_argument("--cpus", type=int, default=1, help="of each node, as Ray counts; 1")
    parser.add_argument("command", nargs="+", help="after --: what runs on the cluster")
    given = parser.parse_args()
    logging.basicConfig(format="rehearse: %(message)s", level=logging.INFO)
    try:
        events = read(given.trace)
        if not shutil.which(given.command[0]):
            raise ConfigError(f"{given.command[0]}: no such command; give it after --")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leave no Ray
        with cluster_for(events, given.steady, given.cpus) as cluster:
            replay = Replay(cluster, events)
            with subprocess.Popen(given.command, env=build_environment(cluster)) as command:
                replay.start()
                try:
                    code = command.wait()
                except BaseException:  # Ctrl-C reaches it too; SIGTERM does not
                    command.terminate()
                    raise
            replay.stop()
    except TrainrigError as error:
        print(f"rehearse: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    lost = sum(event.event == LOST for event in replay.played)
    log.info("%d losses, %d of them with notice; exit code %d", lost, replay.drained, code)
    sys.exit(code)


if __name__ == "__main__":
    main()
