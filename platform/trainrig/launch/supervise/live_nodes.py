"""The live machines of a cluster, read from Ray's control store.

`ray.init` is not used: a job supervisor is not a driver, and must neither keep the cluster busy nor
fail with it.
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
    """Live nodes of the cluster at `address`, the host:port of its control store.

    None as `address` stands for this machine alone.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._client: Any = None
        self._asking: threading.Thread | None = None
        self._answer: Sequence[Kind] | None = None

    def look(self) -> Sequence[Kind] | None:
        """Return the kind of each live node, or None if there is no answer in ANSWER_SECONDS."""
        if self._address is None:
            return [HERE]
        if self._asking and self._asking.is_alive():
            return None
        # Ray needs 40 s to fail to connect to a store that is gone, whatever time limit it is
        # given.
        self._answer = None
        self._asking = threading.Thread(target=self._ask, name="live nodes", daemon=True)
        self._asking.start()
        self._asking.join(ANSWER_SECONDS)
        return None if self._asking.is_alive() else self._answer

    def _ask(self) -> None:
        try:
            self._answer = [_make_kind(node.labels) for node in self._list_nodes()]
        except Exception:  # Ray raises many types; a failed query means no answer
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
