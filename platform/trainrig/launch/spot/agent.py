"""Agent of a machine: waits for a preemption notice and has Ray drain the machine."""

import dataclasses
import logging
import time
from collections.abc import Callable

from trainrig.launch.spot.preemption_notices import Notice, NoticeSource, Unclear

log = logging.getLogger(__name__)
AFTER_TROUBLE = 1.0  # seconds, at least, after an error until the next poll or try
LEAST_NOTICE = 5.0  # seconds of notice to give Ray when the deadline is nearer than that

Drain = Callable[[Notice], str]
"""Tries once to have Ray drain this machine, and returns the error, or an empty text."""


class Agent:
    """Polls `source` until that is over. No error ends the agent: a machine has only one."""

    def __init__(
        self, source: NoticeSource, drain: Drain, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._source = source
        self._drain = drain
        self._wait = wait
        self._heard: Notice | None = None
        self._trouble = ""  # the last error logged, as a lasting error is logged once

    def run(self) -> None:
        """Poll until the source is over."""
        while not self._source.over():
            try:
                notice = self._source.look()
            except Unclear as problem:
                self._say_trouble(
                    f"it is unknown whether this machine will be taken back: {problem}"
                )
                self._wait(max(self._source.pause, AFTER_TROUBLE))
                continue
            self._say_trouble("")
            if notice != self._heard:
                self._heard = notice
                self._hear(notice)
            self._wait(self._source.pause)

    def _hear(self, notice: Notice | None) -> None:
        if notice is None:
            log.info("the notice was withdrawn, but Ray cannot use this machine again")
        elif notice.deadline is None:
            log.info(
                "%s: this machine may be taken back; Ray is notified once the time is known",
                notice.what,
            )
        else:
            log.warning(
                "%s: this machine ends in %.0f s", notice.what, notice.deadline - time.time()
            )
            self._have_drained(notice, notice.deadline)

    def _have_drained(self, notice: Notice, deadline: float) -> None:
        """Retry at least once until Ray agrees to drain or the deadline has passed."""
        while True:
            began = time.time()
            told = dataclasses.replace(notice, deadline=max(deadline, began + LEAST_NOTICE))
            problem = self._drain(told)
            if not problem:
                log.warning("Ray is draining this machine")
                return
            self._say_trouble(f"Ray is not draining this machine yet: {problem}")
            if time.time() >= deadline:
                log.error("giving up: the deadline of the notice has passed")
                return
            self._wait(AFTER_TROUBLE)

    def _say_trouble(self, what: str) -> None:
        if what and what != self._trouble:
            log.warning("%s", what)
        self._trouble = what
