"""Labels added to a cluster file when it is brought up: owner and expiry of its nodes.

The expiry time is in the file's tags, so the cloud sets it on each machine, including those that
Ray's autoscaler starts days later. The name is a label of the nodes, which tells a submitted run on
which cluster it runs.
"""

import copy
import datetime
import re
from typing import Any

from trainrig.launch.clusters.providers.machine import EXPIRES_TAG

HOURS = re.compile(r"([1-9]\d{0,3})h")
LABEL = "trainrig-expires"  # the label on Google Cloud
NODE_LABEL = "trainrig.io/cluster"


def apply_stamp(config: dict[str, Any], cluster: str) -> dict[str, Any]:
    """Return a copy of a Ray cluster file with expiry times in UTC and the cluster's name."""
    now = datetime.datetime.now(datetime.UTC)
    config = copy.deepcopy(config)
    for kind in config.get("available_node_types", {}).values():
        kind["labels"] = (kind.get("labels") or {}) | {NODE_LABEL: cluster}
        node = kind.get("node_config") or {}
        for specification in node.get("TagSpecifications") or []:
            for tag in specification["Tags"]:
                if tag["Key"] == EXPIRES_TAG:
                    tag["Value"] = compute_expiry(tag["Value"], now)
        if LABEL in (node.get("labels") or {}):
            written = compute_expiry(node["labels"][LABEL], now)
            node["labels"][LABEL] = written.lower().replace(":", "-")
    return config


def compute_expiry(written: str, now: datetime.datetime) -> str:
    """Convert hours such as `24h` to a time in UTC; a time is returned unchanged."""
    hours = HOURS.fullmatch(written)
    if not hours:
        return written
    until = now + datetime.timedelta(hours=int(hours[1]))
    return until.strftime("%Y-%m-%dT%H:%M:%SZ")
