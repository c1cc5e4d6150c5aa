"""Nodes that a run is not put on again, since too many of its faults came from there.

It knows no Ray: a node is what the supervisor calls it, and what happened on it is read from the
events of the run. So a second driver avoids what the first did, while the cluster stands.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.train.elastic.restart_policy import WorkerNode, find_best_size, may_be_freed
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.worker_bounds import WorkerBounds

log = logging.getLogger(__name__)


def count_faults(events: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many attempts failed by each node, of those that failed by one."""
    failed = (event for event in events if event["event"] == "attempt_failed")
    return Counter(event["node"] for event in failed if event.get("node"))


@dataclass(frozen=True)
class Choice:
    """Where the next attempt could be."""

    size: int | None  # workers; None: there is no room for enough
    faulty: frozenset[str]  # nodes by which too many attempts failed
    avoided: frozenset[str]  # those of them on which it would not be
    changes: bool  # there would be more room if all that runs on the nodes ended


class Quarantine:
    """The nodes that one run avoids. While there is no room for enough workers without them, it
    avoids none: a run that goes on badly is better than one that stands."""

    def __init__(self, folder: RunFolder, most: int, bounds: WorkerBounds) -> None:
        """`most`: faults by a node, with which it is avoided."""
        self._folder, self._most, self._bounds = folder, most, bounds
        self._faults = Counter[str]()
        self.avoided = frozenset[str]()  # by the newest attempt

    def count(self) -> None:
        """Learn of what has failed since, before the next attempt is placed."""
        self._faults = count_faults(self._folder.read_events())

    def choose(self, nodes: Sequence[WorkerNode]) -> Choice:
        """Where on `nodes` an attempt could be now."""
        faulty = frozenset(node.id for node in nodes if self._faults[node.id] >= self._most)
        sound = [node for node in nodes if node.id not in faulty]
        changes = may_be_freed(sound, self._bounds) or may_be_freed(nodes, self._bounds)
        size = find_best_size(sound, self._bounds)
        if size is None and faulty:
            size = find_best_size(nodes, self._bounds)
            return Choice(size, faulty, frozenset() if size else faulty, changes)
        return Choice(size, faulty, faulty, changes)

    def take(self, choice: Choice, step: int) -> None:
        """Go by `choice` from here on, and put on record what it changes."""
        for node in sorted(choice.avoided - self.avoided):
            faults = self._faults[node]
            self._folder.record("node_quarantined", node=node, faults=faults, step=step)
            log.warning("node %s is used no more: %d attempts failed by it", node[:8], faults)
        for node in sorted(choice.faulty - choice.avoided):
            faults = self._faults[node]
            self._folder.record("node_needed", node=node, faults=faults, step=step)
            log.warning(
                "node %s is used although %d attempts failed by it: without it there is no room "
                "for workers = %s; add a node",
                *(node[:8], faults, self._bounds),
            )
        self.avoided = choice.avoided

    def drop_avoided(self, nodes: Iterable[WorkerNode]) -> list[WorkerNode]:
        """Those of `nodes` that the newest attempt does not avoid."""
        return [node for node in nodes if node.id not in self.avoided]
