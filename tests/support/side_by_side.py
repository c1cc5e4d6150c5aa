"""Timing of two implementations in alternation, so that a machine's load affects both alike."""

import json
import statistics
import time
from collections.abc import Callable


def compare(
    name: str, ours: Callable[[], object], peer: Callable[[], object], rounds: int
) -> float:
    """Print the CPU seconds of `ours` and `peer` and return the median ratio, ours over peer.

    These are CPU seconds of this process, as other processes may use the cores. Both run once
    unmeasured first.
    """
    ours(), peer()
    times = [(measure_cpu_seconds(ours), measure_cpu_seconds(peer)) for _ in range(rounds)]
    ratios = sorted(a / b for a, b in times)
    result = {
        "benchmark": name,
        "ours_cpu_seconds": round(statistics.median(a for a, _ in times), 4),
        "peer_cpu_seconds": round(statistics.median(b for _, b in times), 4),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_from_to": [round(ratios[0], 3), round(ratios[-1], 3)],
        "rounds": rounds,
    }
    print(json.dumps(result))
    return statistics.median(ratios)


def measure_cpu_seconds(action: Callable[[], object]) -> float:
    """Return the CPU seconds of this process that `action` takes."""
    began = time.process_time()
    action()
    return time.process_time() - began
