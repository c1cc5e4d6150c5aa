"""Comparison of library versions between submitter and cluster, as results may depend on them.

Differences are logged and recorded, and the run continues. `manifest` guards that a resumed run
gives equal bytes: it compares the versions that a run began with to those that continue it.
"""

import logging

from trainrig import manifest
from trainrig.launch.record.run_record import RunRecord

log = logging.getLogger(__name__)
SUBMITTED = "submitted"
OTHER_VERSIONS = "other_versions"


def compare_versions(record: RunRecord, attempt: int) -> str:
    """Return how the submitter's library versions differ from those here, or "" if equal."""
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
