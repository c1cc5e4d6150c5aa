"""Runs that somebody attends on a cluster just now."""

from collections.abc import Sequence

from trainrig.launch.record import Home, RunRecord


def live_runs(home: Home, cluster: str, addresses: Sequence[str] = ()) -> list[RunRecord]:
    """Those whose newest attempt names `cluster`, or was sent to one of `addresses`."""
    found = []
    for record in home.list():
        status = record.status()
        if status.attempt is None or not status.alive:
            continue
        if status.attempt.cluster == cluster or status.attempt.address in addresses:
            found.append(record)
    return found
