"""Compares library versions of the submitter and the cluster, because results may differ by
them.

What differs is said in the log and put on record; the run goes on. Its own promises of equal bytes
are kept by `manifest`, which compares what a run was begun with to what goes on with it.
"""

import logging

from trainrig import manifest
from trainrig.launch.record.run_record import RunRecord

log = logging.getLogger(__name__)
SUBMITTED = "submitted"
OTHER_VERSIONS = "other_versions"


def compare_versions(record: RunRecord, attempt: int) -> str:
    """What differs between the environment that submitted `attempt` and this one; "": nothing."""
    submitted = next((e for e in record.read_events(attempt) if e["event"] == SUBMITTED), {})
    there = submitted.get("versions")
    if not isinstance(there, dict):
        return ""
    here = manifest.collect_environment()
    different = ", ".join(
        f"{name} {there.get(name, 'none')} there, {here.get(name, 'none')} here"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    )
    if different:
        log.warning("submitted from other versions: %s", different)
        record.record(OTHER_VERSIONS, attempt, differences=different)
    return different
