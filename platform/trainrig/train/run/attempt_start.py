"""Records the start of an attempt: the number of workers, their layout, and the reason."""

import logging

from trainrig.parallel.layout import DDP, FSDP, HSDP, describe_layout
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt

log = logging.getLogger(__name__)

OTHER_BITS = (
    "gradients are rounded differently from here on, but samples, their order and the "
    "schedule stay the same"
)


def record_start(
    folder: RunFolder,
    attempt: TrainingAttempt,
    layout: FSDP | HSDP | DDP,
    workers: int,
    why: str,
) -> None:
    """Record the start of `attempt`, and a change of its layout since the attempt before.

    `why`: the reason of the attempt, such as "start" or "fault".
    """
    events = folder.read_events()
    now = describe_layout(layout)
    started = [event for event in events if event["event"] == "attempt_started"]
    before = started[-1].get("layout", now) if started else now
    where = {"attempt": attempt.number, "step": attempt.resumed_step}
    if before != now:
        folder.record("layout_changed", **where, before=before, layout=now, bits=OTHER_BITS)
        log.warning(
            "from step %d on, the run uses %s (workers: %d) instead of %s: %s",
            *(attempt.resumed_step, now, workers, before, OTHER_BITS),
        )
    folder.record("attempt_started", **where, workers=workers, why=why, layout=now)
