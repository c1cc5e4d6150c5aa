"""Quarantine of nodes that caused too many failures of a run.

The module does not use Ray: nodes are known by their ids, and failures are read from the run's
events. So a second driver avoids the same nodes, as long as the cluster exists.
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
    """Return the number of attempts that each node made fail; nodes without failures are absent."""
    failed = (event for event in events if event["event"] == "attempt_failed")
    return Counter(event["node"] for event in failed if event.get("node"))


@dataclass(frozen=True)
class Choice:
    """Placement that is possible for the next attempt."""

    size: int | None  # number of workers; None: too few fit
    faulty: frozenset[str]  # nodes that made too many attempts fail
    avoided: frozenset[str]  # faulty nodes that the attempt would not use
    changes: bool  # True if more workers would fit once everything on the nodes has ended


class Quarantine:
    """Nodes that a run avoids.

    If enough workers do not fit without the faulty nodes, none is avoided: a run that fails now and
    then is better than one that waits.
    """

    def __init__(self, folder: RunFolder, most: int, bounds: WorkerBounds) -> None:
        """Set up the quarantine; `most` is the number of failures from which a node is avoided."""
        self._folder = folder
        self._most = most
        self._bounds = bounds
        self._faults = Counter[str]()
        self.avoided = frozenset[str]()  # node ids avoided by the newest attempt

    def count(self) -> None:
        """Read the failures so far from the run's events; call this before placing an attempt."""
        self._faults = count_faults(self._folder.read_events())

    def choose(self, nodes: Sequence[WorkerNode]) -> Choice:
        """Return where on `nodes` an attempt could run now."""
        faulty = frozenset(node.id for node in nodes if self._faults[node.id] >= self._most)
        sound = [node for node in nodes if node.id not in faulty]
        changes = may_be_freed(sound, self._bounds) or may_be_freed(nodes, self._bounds)
        size = find_best_size(sound, self._bounds)
        if size is None and faulty:
            size = find_best_size(nodes, self._bounds)
            return Choice(size, faulty, frozenset() if size else faulty, changes)
        return Choice(size, faulty, faulty, changes)

    def take(self, choice: Choice, step: int) -> None:
        """Apply `choice` to the next attempt, and record and log what it changes."""
        for node in sorted(choice.avoided - self.avoided):
            faults = self._faults[node]
            self._folder.record("node_quarantined", node=node, faults=faults, step=step)
            log.warning("node %s is no longer used: it made %d attempts fail", node[:8], faults)
        for node in sorted(choice.faulty - choice.avoided):
            faults = self._faults[node]
            self._folder.record("node_needed", node=node, faults=faults, step=step)
            log.warning(
                "node %s is still used although it made %d attempts fail: without it, the nodes "
                "cannot run "
                "workers = %s; add a node",
                *(node[:8], faults, self._bounds),
            )
        self.avoided = choice.avoided

    def drop_avoided(self, nodes: Iterable[WorkerNode]) -> list[WorkerNode]:
        """Return `nodes` without the nodes that the newest attempt avoids."""
        return [node for node in nodes if node.id not in self.avoided]
