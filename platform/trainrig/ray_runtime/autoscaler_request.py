"""A run's request to Ray's autoscaler: renewed while it runs, cancelled at its end.

Ray keeps a request until the next one, from whomever, takes its place: also that of a driver that
is long dead, whose nodes would then stay for ever. So requests go by the actor through which Ray's
own libraries send theirs: it adds up those of all who ask, and forgets whoever falls silent.
"""

import time
import uuid
from typing import Any

from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.ray_pools import Need

RENEW_SECONDS = 15.0  # s between two requests
EXPIRE_SECONDS = 60.0  # s after the last; the actor looks every 20 s


class AutoscalerRequest:
    """One run's. Nothing is asked for before the first `request`."""

    def __init__(self) -> None:
        self._name = f"trainrig-{uuid.uuid4().hex}"
        self._requested_at = float("-inf")
        self._actor_handle: Any = None

    def request(self, workers: int, need: Need) -> None:
        """Ask for nodes for `workers` in all that take `need` each; often enough to be heard."""
        now = time.monotonic()
        if now - self._requested_at < RENEW_SECONDS:
            return
        self._requested_at = now
        self._get_actor().request_resources.remote(
            requester_id=self._name, resources=[dict(need)] * workers, expire_after_s=EXPIRE_SECONDS
        )

    def cancel(self) -> None:
        """Ask for nothing any more."""
        if self._actor_handle is not None:
            self._actor_handle.cancel_request.remote(self._name)

    def _get_actor(self) -> Any:
        if self._actor_handle is None:
            self._actor_handle = ray_private.get_autoscaling_coordinator()
        return self._actor_handle
