"""The machines that a cluster has just now, asked of Ray's control store.

Not by `ray.init`: a job supervisor is no driver, and must neither hold the cluster nor fall with
it.
"""

import os
import threading
from collections.abc import Sequence
from typing import Any

from trainrig.launch.cost.metering import Kind
from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.ray_session import ENVIRONMENT

POOL = "trainrig.io/pool"
INSTANCE = "trainrig.io/instance"
MARKET = "trainrig.io/market"
ANSWER_SECONDS = 5.0
HERE = Kind("local", "", "")


class LiveNodes:
    """Of the cluster at `address` (host:port of its control store); None: this machine alone."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._client: Any = None
        self._asking: threading.Thread | None = None
        self._answer: Sequence[Kind] | None = None

    def look(self) -> Sequence[Kind] | None:
        """The kind of each live node; None if the cluster does not answer in ANSWER_SECONDS."""
        if self._address is None:
            return [HERE]
        if self._asking and self._asking.is_alive():
            return None
        # To connect to a store that is gone takes Ray 40 s, whatever time limit it is given.
        self._answer = None
        self._asking = threading.Thread(target=self._ask, name="live nodes", daemon=True)
        self._asking.start()
        self._asking.join(ANSWER_SECONDS)
        return None if self._asking.is_alive() else self._answer

    def _ask(self) -> None:
        try:
            self._answer = [_make_kind(node.labels) for node in self._list_nodes()]
        except Exception:  # whatever Ray raises: no answer is no news
            self._client = None

    def _list_nodes(self) -> Sequence[Any]:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        assert self._address is not None
        if self._client is None:
            self._client = ray_private.open_gcs_client(self._address)
        return ray_private.fetch_live_nodes(self._client, ANSWER_SECONDS)


def _make_kind(labels: Any) -> Kind:
    return Kind(*(str(labels.get(name, "")) for name in (POOL, INSTANCE, MARKET)))
