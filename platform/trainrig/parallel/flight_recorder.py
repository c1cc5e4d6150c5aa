"""torch's flight recorder: the latest collectives of this process and the state of each.

When a run hangs, the collectives that the ranks wait in show which ranks are missing. torch keeps a
ring buffer of them in memory, for gloo and for NCCL. Nothing is written until `dump` is called.
"""

import json
import os
from typing import Any

# Number of collectives to keep; torch reads the variable when the first process group is formed.
# The second name is the one that torch used before 2.9.
RECORDED = "2000"
NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
# torch's functions that return the records as JSON: the one for NCCL, if torch was built with it,
# then the one for all other backends.
DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


def turn_on() -> None:
    """Turn on the flight recorder of this process, unless its environment sets the buffer size.

    Call this before the process group is formed.
    """
    if not any(name in os.environ for name in NAMES):
        os.environ.update(dict.fromkeys(NAMES, RECORDED))


def dump(source: Any = None) -> bytes | None:
    """Return the latest collectives as JSON, or None if no recorder has any.

    The recorders of `source` (torch by default) are tried in order. Safe to call from any thread
    while other threads wait in a collective.
    """
    import torch._C._distributed_c10d as c10d

    for name in DUMPS:
        recorder = getattr(source or c10d, name, None)
        found: bytes | None = recorder(includeCollectives=True) if recorder else None
        if found and b'"record_id"' in found:
            return found
    return None


def find_pending(dumped: bytes) -> str | None:
    """Return the name of the first collective in a dump in which the process waits for other ranks.

    None means that the process waits in no collective, so other ranks wait for it. NCCL collectives
    are queued on a stream long before the device reaches them: one that has not started waits for
    this device's own work. gloo records never report a start.
    """
    for entry in json.loads(dumped)["entries"]:
        name: str = entry["profiling_name"]
        entered = entry["state"] == "started" or name.startswith("gloo:")
        if entered and not entry["retired"]:
            return name
    return None
