"""Google: a spot machine is told half a minute before it goes, one that cannot be moved while it
runs (any with a GPU) an hour before its host is maintained, and others a minute before.

Whether the machine was preempted is asked with `wait_for_change`, so that the answer comes within
milliseconds of the event: of 30 s, a look every 5 s would waste a sixth.
"""

import time

from trainrig.launch.spot.metadata import TIMEOUT, Endpoint
from trainrig.launch.spot.notices import Notice, Unclear

ENDPOINT = "http://metadata.google.internal"
ENDPOINT_VARIABLE = "GCE_METADATA_HOST"  # as Google's own libraries call it
OURS = {"Metadata-Flavor": "Google"}
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
WAIT = 5  # s that the service holds a question about preemption, between two about maintenance
PREEMPTION_GRACE = 30.0  # s from the notice to the end, at best
# s from the notice to the end, for a machine without a GPU; one with gets 3,600, but which of them
# this is the service does not say at the same place.
MAINTENANCE_GRACE = 60.0


class ComputeMetadata:
    """Notices from the metadata server of this machine."""

    pause = 0.0  # s; the question itself waits

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._etag = ""
        self._seen: dict[str, float] = {}  # deadlines, by notice: none says when it was given

    def look(self) -> Notice | None:
        """See Source. A preemption, or maintenance that ends or moves the machine."""
        if self._is_preempted():
            return self._build_notice("preemption", PREEMPTION_GRACE)
        event = self._get(MAINTENANCE)
        if event in ("NONE", ""):
            return None
        if event == "TERMINATE_ON_HOST_MAINTENANCE":
            return self._build_notice(event, MAINTENANCE_GRACE)
        return Notice(event, None)  # it is moved while it runs

    def over(self) -> bool:
        """See Source."""
        return False

    def _is_preempted(self) -> bool:
        # Without the last answer's tag it says at once how things stand.
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
