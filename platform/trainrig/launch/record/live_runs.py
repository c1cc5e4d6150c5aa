"""Runs that somebody supervises on a cluster just now."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from trainrig.launch.record.run_record import Home, RunRecord

AT_ONCE = 16  # records: each is a few requests to a bucket, and homes keep those of all runs


def list_live_runs(home: Home, cluster: str, addresses: Sequence[str] = ()) -> list[RunRecord]:
    """Those whose newest attempt names `cluster`, or was sent to one of `addresses`.

    An empty `cluster` has no name: only addresses count.
    """

    def is_live_there(record: RunRecord) -> bool:
        newest = record.find_newest_attempt()
        if not newest:
            return False
        attempt = record.read_attempt(newest)
        named = bool(cluster) and attempt.cluster == cluster
        return (named or attempt.address in addresses) and record.read_status().alive

    records = home.list()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        live = list(threads.map(is_live_there, records))
    return [record for record, alive in zip(records, live, strict=True) if alive]
