"""torch's flight recorder: the last collectives of this process, and how far each has come.

What every rank was waiting for when a run hung tells which of them did not come. torch keeps a ring
of them in memory, for gloo and for NCCL; nothing is written until it is asked for.
"""

import json
import os
from typing import Any

# The last collectives that are kept; torch reads it when the first group is formed. The second is
# its name in torch before 2.9.
RECORDED = "2000"
NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
# By which torch gives them, as JSON: NCCL's, where torch was built with it, then all others'.
DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


def turn_on() -> None:
    """Have this process record its collectives, unless its environment says how many; before its
    process group is formed."""
    if not any(name in os.environ for name in NAMES):
        os.environ.update(dict.fromkeys(NAMES, RECORDED))


def dump(source: Any = None) -> bytes | None:
    """The last collectives, as JSON: the first of `source`'s recorders that has any. None: none
    has. May be called from any thread, while others wait for a collective."""
    import torch._C._distributed_c10d as c10d

    for name in DUMPS:
        recorder = getattr(source or c10d, name, None)
        found: bytes | None = recorder(includeCollectives=True) if recorder else None
        if found and b'"record_id"' in found:
            return found
    return None


def find_pending(dumped: bytes) -> str | None:
    """The name of the first collective of a dump in which its process waits for others; None: it
    waits in none, so that others wait for it.

    NCCL's are put into a stream long before the device comes to them: one that has not started
    waits for this device's own work. Of gloo's, none is said to have started.
    """
    for entry in json.loads(dumped)["entries"]:
        name: str = entry["profiling_name"]
        entered = entry["state"] == "started" or name.startswith("gloo:")
        if entered and not entry["retired"]:
            return name
    return None
