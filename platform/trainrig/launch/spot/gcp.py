"""Preemption and maintenance notices of Google Cloud.

A spot machine gets 30 s of notice. A machine that cannot be migrated live (any with a GPU) gets an
hour before maintenance of its host, others get a minute.

Preemption is queried with `wait_for_change`, so the answer comes within milliseconds of the event.
Polling every 5 s would waste a sixth of the 30 s.
"""

import time

from trainrig.launch.spot.metadata import TIMEOUT, Endpoint
from trainrig.launch.spot.notices import Notice, Unclear

ENDPOINT = "http://metadata.google.internal"
ENDPOINT_VARIABLE = "GCE_METADATA_HOST"  # the variable that Google's libraries use
OURS = {"Metadata-Flavor": "Google"}
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
WAIT = 5  # seconds that the service holds a preemption query, between two maintenance queries
PREEMPTION_GRACE = 30.0  # seconds from the notice to the end, at best
# Seconds from the notice to the end for a machine without a GPU. One with a GPU gets 3,600, but the
# metadata at this path does not show which kind this machine is.
MAINTENANCE_GRACE = 60.0


class ComputeMetadata:
    """Notices from the metadata server of this machine."""

    pause = 0.0  # seconds between polls; the query itself waits

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._etag = ""
        self._seen: dict[str, float] = {}  # deadlines by notice, as notices carry no time

    def look(self) -> Notice | None:
        """Return a preemption, or maintenance of the host; see NoticeSource."""
        if self._is_preempted():
            return self._build_notice("preemption", PREEMPTION_GRACE)
        event = self._get(MAINTENANCE)
        if event in ("NONE", ""):
            return None
        if event == "TERMINATE_ON_HOST_MAINTENANCE":
            return self._build_notice(event, MAINTENANCE_GRACE)
        return Notice(event, None)  # the machine is migrated live

    def over(self) -> bool:
        """Return False; see NoticeSource."""
        return False

    def _is_preempted(self) -> bool:
        # Without the tag of the last answer, the service answers at once.
        wait = f"?wait_for_change=true&timeout_sec={WAIT}&last_etag={self._etag}"
        found = self._get(PREEMPTED + (wait if self._etag else ""), TIMEOUT + WAIT)
        if found not in ("TRUE", "FALSE"):
            self._etag = ""
            raise Unclear(f"{PREEMPTED}: {found[:60]!r}, which is neither TRUE nor FALSE")
        return found == "TRUE"

    def _get(self, path: str, timeout: float = TIMEOUT) -> str:
        answer = self._endpoint.ask("GET", path, OURS, timeout)
        genuine = answer.headers.get("metadata-flavor") == "Google"
        if answer.status != 200 or not genuine:
            self._etag = ""
            whose = "" if genuine else ", and not from Google's metadata server"
            raise Unclear(f"{path.partition('?')[0]}: status {answer.status}{whose}")
        if path.startswith(PREEMPTED):
            tag = answer.headers.get("etag", "")
            self._etag = tag if tag.isalnum() else ""
        return answer.body.decode("utf-8", "replace").strip()

    def _build_notice(self, what: str, grace: float) -> Notice:
        return Notice(what, self._seen.setdefault(what, time.time() + grace))
