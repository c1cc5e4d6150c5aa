"""Search for runs that are live on a cluster."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from trainrig.launch.record.run_record import Home, RunRecord

AT_ONCE = 16  # records read in parallel: each takes a few requests, and a home keeps all runs


def list_live_runs(home: Home, cluster: str, addresses: Sequence[str] = ()) -> list[RunRecord]:
    """Return the live runs whose newest attempt names `cluster` or one of `addresses`.

    If `cluster` is empty, only the addresses count.
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
