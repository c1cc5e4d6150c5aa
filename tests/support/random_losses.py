"""Random traces of node losses, for rehearsals."""

import random
from collections.abc import Sequence

from trainrig_contrib.spot_rehearsal.loss_trace import BACK, LOST, Event


def generate_trace(
    seed: int,
    nodes: Sequence[str],
    seconds: float,
    stays: float,
    away: float,
    notices: Sequence[float],
) -> list[Event]:
    """Generate a random trace with exponentially distributed times of presence and absence.

    `stays` and `away` are their means in seconds. Each loss gets one of `notices`, in seconds.
    """
    dice = random.Random(seed)
    events = []
    for node in nodes:
        at = 0.0
        while True:
            notice = dice.choice(notices)
            at = _add_seconds(at, notice + dice.expovariate(1 / stays))
            if at > seconds:
                break
            events.append(Event(at, node, LOST, notice))
            at = _add_seconds(at, dice.expovariate(1 / away))
            if at > seconds:
                break
            events.append(Event(at, node, BACK))
    return sorted(events, key=lambda event: event.second)


def _add_seconds(at: float, seconds: float) -> float:
    """Add seconds, rounded to hundredths, and at least 0.02 more."""
    return round(at + seconds + 0.02, 2)
