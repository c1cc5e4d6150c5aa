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
    print_result(
        benchmark=name,
        ours_cpu_seconds=round(statistics.median(a for a, _ in times), 4),
        peer_cpu_seconds=round(statistics.median(b for _, b in times), 4),
        ratio=round(statistics.median(ratios), 3),
        ratio_from_to=[round(ratios[0], 3), round(ratios[-1], 3)],
        rounds=rounds,
    )
    return statistics.median(ratios)


def measure_pace(work: Callable[[], object], amount: float, rounds: int = 5) -> dict[str, float]:
    """Return `amount` per CPU second: the median of `rounds`, the minimum and the maximum."""
    work()
    paces = []
    for _ in range(rounds):
        paces.append(amount / measure_cpu_seconds(work))
    return {
        "median": round(statistics.median(paces), 1),
        "from": round(min(paces), 1),
        "to": round(max(paces), 1),
    }


def print_result(**figures: object) -> None:
    """Print the figures of a benchmark as one line of JSON."""
    print(json.dumps(figures))


def measure_cpu_seconds(action: Callable[[], object]) -> float:
    """Return the CPU seconds of this process that `action` takes."""
    began = time.process_time()
    action()
    return time.process_time() - began
