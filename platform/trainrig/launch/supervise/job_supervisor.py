"""Supervisor of one attempt at a run.

The supervisor runs the verb as a child process and retries it when that may help. It has the child
save and end when the user asks for that, or when the run reaches its limit of cost or time. It
meters the cost, copies the log, and records how the attempt ended. It does not rely on the state
that Ray reports for the job.

A newer attempt supersedes this one: the supervisor notices, ends its child, and records no end. The
newer attempt waits until then, or until no process of this one can be alive.
"""

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import uniform
from typing import Any

from trainrig import hardware
from trainrig.errors import TrainrigError, Unfinished
from trainrig.job import OUTCOME
from trainrig.launch.redaction import redact
from trainrig.launch.supervise import attempt_ends, metered_cost, run_record
from trainrig.launch.supervise.attempt_start import settle_previous_supervisors
from trainrig.launch.supervise.metered_cost import Kind, LiveNodes, Meter, Spent
from trainrig.launch.supervise.run_progress import RunProgress
from trainrig.launch.supervise.supervisor_output import LogCopy, notify
from trainrig.processes.child_process import Child
from trainrig.processes.lease import LeaseOwner
from trainrig.processes.retry_policy import GiveUp
from trainrig.ray_runtime.ray_session import CLUSTER

log = logging.getLogger(__name__)
WATCH_SECONDS = 60.0  # seconds to wait for the last check of the watch thread
# seconds to retry recording the end, without which the run would look lost
LAST_WORD_SECONDS = 600.0


@dataclass(frozen=True)
class Pace:
    """Seconds between the periodic checks of a job supervisor."""

    # between heartbeats, with the cost and a check for newer attempts
    heartbeat: float = run_record.HEARTBEAT_SECONDS
    look: float = 1.0  # between checks for the file `stop`; each may be a request to a bucket
    poll: float = 0.1  # between checks of the child process


class Superseded(Exception):
    """A newer attempt has taken over."""


class AlreadyDone(Exception):
    """The attempt was asked to end before its first try."""


class JobSupervisor:
    """Supervisor of `attempt` at the run of `record`, whose verb `command` runs."""

    def __init__(
        self,
        record: run_record.RunRecord,
        attempt: run_record.JobAttempt,
        limits: attempt_ends.Limits,
        command: Sequence[str],
        pace: Pace = Pace(),
    ) -> None:
        about = record.read_description()
        self._record = record
        self._attempt = attempt
        self._limits = limits
        self._command = command
        self._pace = pace
        self._progress = RunProgress(about["verb"], about["output"])
        self._output = about["output"]
        self._prices = hardware.load(limits.hardware)
        self._nodes = LiveNodes(os.environ.get("RAY_ADDRESS"))
        self._meter = Meter(self._nodes.look)
        self._owner = LeaseOwner.here().model_dump()
        self._before = Spent()  # spent by earlier attempts
        self._supervised_before = 0.0  # seconds that earlier attempts were supervised
        self._state = run_record.WAITING
        self._since = attempt.submitted_at  # the time that the deadline counts from
        # why the attempt has to end: cause and message
        self._asked: tuple[attempt_ends.Cause, str] | None = None
        self._told: float | None = None  # when the child was asked to end
        self._forced = False
        self._newer = 0  # number of the attempt that supersedes this one; 0: none
        self._heard = time.monotonic()  # time of the last heartbeat
        self._said: set[str] = set()
        self._over = threading.Event()
        # A thread apart from the one that ends the child: storage may block a check for minutes.
        self._watch = threading.Thread(target=self._watch_until_over, name="watch", daemon=True)

    def ask(self, cause: attempt_ends.Cause, why: str) -> None:
        """Ask the attempt to save and end. The first request gives the cause."""
        self._asked = self._asked or (cause, why)

    def supervise(self) -> int:
        """Run the attempt to its end and return the exit code of its verb."""
        number = self._attempt.number
        if any(event["event"] == run_record.ENDED for event in self._record.read_events(number)):
            log.warning("%s: attempt %d was given up before it began", self._record.id, number)
            return 1
        try:
            self._settle_previous()
            self._log = LogCopy(self._record, number)
            self._watch.start()
            end, tries = self._run_tries()
            self._log.close()
            self._try_quietly(self._check_fence)
        except Superseded:
            self._end_watch()
            self._read_meter()
            log.warning("%s: superseded by attempt %d", self._record.id, self._newer)
            self._insist("superseded", by=self._newer, **self._collect_figures())
            return 1
        except AlreadyDone:
            end = self._end_unstarted()
            tries = 0
        except Exception as error:
            self._finish(attempt_ends.RunEnd(1, "unknown", f"its supervisor failed: {error!r}"), 0)
            raise
        self._finish(end, tries)
        return end.exit_code if end.exit_code >= 0 else 128 - end.exit_code

    def _settle_previous(self) -> None:
        """Wait until no other supervisor drives the run. Raises Superseded or AlreadyDone."""
        if self._limits.deadline:
            self._since = self._record.find_request_time(self._attempt)
        earlier = settle_previous_supervisors(self._record, self._attempt.number, self._check_need)
        self._before = earlier.spent
        self._supervised_before = earlier.supervised
        self._check_budget({})
        # The heartbeat comes first: of two attempts that begin at once, one then sees the other.
        self._write_heartbeat()
        self._check_fence()

    def _check_need(self) -> None:
        self._check_fence()
        self._look()
        if self._asked:
            raise AlreadyDone

    def _end_unstarted(self) -> attempt_ends.RunEnd:
        assert self._asked is not None
        return attempt_ends.RunEnd(Unfinished.exit_code, *self._asked)

    def _run_tries(self) -> tuple[attempt_ends.RunEnd, int]:
        """Run tries until one ends the attempt; return its end and the number of tries."""
        retries = attempt_ends.Retries(self._limits)
        tries = 0
        while True:
            self._try_quietly(self._look)
            if self._asked:
                return self._end_unstarted(), tries
            tries += 1
            end = self._run_try(tries)
            if self._newer:
                raise Superseded
            if self._asked or end.cause == "done":
                return end, tries
            progress = self._try_quietly(self._progress.measure_progress) or 0
            verdict = retries.decide_retry(end, progress)
            if isinstance(verdict, GiveUp):
                why = f" ({verdict.reason})" if verdict.reason else ""
                return attempt_ends.RunEnd(end.exit_code, end.cause, f"{end.message}{why}"), tries
            self._back_off(end, progress, verdict * uniform(0.5, 1.0))

    def _run_try(self, number: int) -> attempt_ends.RunEnd:
        with tempfile.TemporaryDirectory(prefix="trainrig-") as folder:
            outcome = str(Path(folder) / "outcome.json")
            environment = {**os.environ, OUTCOME: outcome, "PYTHONUNBUFFERED": "1"}
            if self._nodes.cluster:  # no try joins another cluster that has taken the address
                environment[CLUSTER] = self._nodes.cluster
            child = Child(self._command, environment, self._log.hear)
            self._state = run_record.RUNNING
            try:
                self._insist("started", **{"try": number, "pid": child.pid})
                while (code := child.poll_group()) is None:
                    self._press(child)
                    time.sleep(self._pace.poll)
            finally:
                child.kill()
            self._log.end_lines()
            asked = self._asked[0] if self._asked else None
            end = attempt_ends.find_end(
                code, attempt_ends.read_outcome(outcome), asked, self._log.find_last_words()
            )
        return attempt_ends.RunEnd(end.exit_code, end.cause, self._explain_end(end))

    def _explain_end(self, end: attempt_ends.RunEnd) -> str:
        if not self._asked or end.cause == "done":
            return end.message
        if self._forced:
            return (
                f"{self._asked[1]}; it did not end within {self._limits.grace:g} s and was killed"
            )
        return f"{self._asked[1]}: {end.message}" if end.message else self._asked[1]

    def _press(self, child: Child) -> None:
        """Ask the child to end, if the attempt has to; kill it once the grace time is over."""
        if not self._asked and not self._newer:
            return
        now = time.monotonic()
        if self._told is None:
            self._told = now
            self._state = run_record.STOPPING
            if self._newer and self._was_away():
                child.kill()  # the newer attempt may already take this one for dead
            child.ask()
        elif now - self._told > self._limits.grace:
            self._forced = True
            child.kill()

    def _back_off(self, end: attempt_ends.RunEnd, progress: int, seconds: float) -> None:
        log.warning("%s: %s; retrying in %.0f s", end.cause, end.message, seconds)
        self._insist(
            "retried",
            cause=end.cause,
            message=end.message,
            exit_code=end.exit_code,
            progress=progress,
            seconds=round(seconds, 1),
        )
        self._state = run_record.WAITING
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._asked:
            if self._newer:
                raise Superseded
            time.sleep(self._pace.poll)

    def _watch_until_over(self) -> None:
        next_heartbeat = time.monotonic()
        while not self._over.wait(self._pace.look):
            self._try_quietly(self._look)
            if time.monotonic() >= next_heartbeat:
                next_heartbeat = time.monotonic() + self._pace.heartbeat
                self._try_quietly(self._read_meter)
                self._try_quietly(self._write_heartbeat)

    def _end_watch(self) -> None:
        self._over.set()
        if self._watch.is_alive():
            self._watch.join(WATCH_SECONDS)

    def _look(self) -> None:
        """Ask the attempt to end if its deadline has passed or a stop was requested."""
        limits = self._limits
        number = self._attempt.number
        if limits.deadline and time.time() > self._since + limits.deadline:
            self.ask("deadline", f"not finished within {limits.deadline:g} s of its submission")
        if not self._asked and self._record.stop_requested(number):
            self.ask("stopped", "asked to stop")

    def _write_heartbeat(self) -> None:
        began = time.monotonic()  # a process frozen in this function was silent since its beginning
        self._newer = self._find_newer_attempt()
        if self._newer and self._was_away():
            return
        self._try_quietly(self._progress.look)
        figures = self._collect_figures() | self._progress.build_figures()
        self._record.write_heartbeat(
            self._attempt.number, self._state, owner=self._owner, **figures
        )
        self._heard = began

    def _was_away(self) -> bool:
        """Return whether others may soon take this attempt for lost.

        Half of LOST_SECONDS leaves a margin for clocks that differ.
        """
        return time.monotonic() - self._heard > run_record.LOST_SECONDS / 2

    def _read_meter(self) -> None:
        """Meter the time since the last reading, and ask for the end if the budget is used up.

        Not called before the child has started: importing the client that queries the cluster takes
        a second.
        """
        self._meter.read()
        nodes = self._meter.nodes
        if nodes is None:
            self._say_once("no answer from the cluster yet, so its cost is unknown")
            return
        if missing := metered_cost.list_unpriced(nodes, self._prices):
            bound = "; max_cost counts only nodes with a price" if self._limits.max_cost else ""
            self._say_once(f"no price for {', '.join(missing)}{bound}")
        self._check_budget(nodes)

    def _check_budget(self, nodes: Mapping[Kind, int]) -> None:
        """Ask for the end if the budget is used up.

        The cost of `nodes` during the grace time is reserved, so that the limit still holds at the
        end.
        """
        now = self._sum_spent().count_against_limit()
        grace = {kind: count * self._limits.grace for kind, count in nodes.items()}
        left = metered_cost.compute_cost(grace, self._prices).count_against_limit()
        if self._limits.max_cost and now + left >= self._limits.max_cost:
            kept = f" and {left:.2f} USD reserved for its end" if left else ""
            why = f"{now:.2f} USD spent{kept}: max_cost is {self._limits.max_cost:g}"
            self.ask("out of budget", why)

    def _sum_spent(self) -> Spent:
        return self._before + self._own()

    def _own(self) -> Spent:
        return metered_cost.compute_cost(self._meter.seconds, self._prices)

    def _collect_figures(self) -> dict[str, Any]:
        """Return what this attempt took so far, for heartbeats and events."""
        return {
            **self._own().to_json(),
            "node_seconds": metered_cost.to_json(self._meter.seconds),
            "attended": round(self._meter.wall, 1),
            "cluster": self._nodes.cluster,
            "total_usd": self._sum_spent().to_json()["usd"],  # with all earlier attempts
        }

    def _find_newer_attempt(self) -> int:
        newest = self._record.find_newest_attempt()
        return newest if newest > self._attempt.number else 0

    def _check_fence(self) -> None:
        self._newer = self._find_newer_attempt()
        if self._newer:
            raise Superseded

    def _finish(self, end: attempt_ends.RunEnd, tries: int) -> None:
        self._end_watch()
        self._read_meter()
        self._insist(
            run_record.ENDED, **self._end_facts(end), tries=tries, **self._collect_figures()
        )
        self._try_quietly(lambda: self._record.clear_stop(self._attempt.number))
        log.info("%s: %s%s", self._record.id, end.state, f": {end.message}" if end.message else "")
        if self._limits.notify:
            facts = {
                "run": self._record.id,
                "state": end.state,
                "cause": end.cause,
                "message": redact(end.message),
            }
            how = notify(self._limits.notify, self._limits.notify_seconds, facts)
            self._try_quietly(lambda: self._record.record("notified", self._attempt.number, **how))

    def _end_facts(self, end: attempt_ends.RunEnd) -> dict[str, Any]:
        saved = self._try_quietly(self._progress.find_saved)
        spent = self._sum_spent()
        tokens = saved.tokens if saved else None
        supervised = self._supervised_before + self._meter.wall
        events = self._try_quietly(lambda: list(self._record.read_events())) or []
        split = self._progress.trains and self._try_quietly(
            lambda: metered_cost.split_cost(spent.usd, supervised, events, self._output)
        )
        return {
            "state": end.state,
            "cause": end.cause,
            "exit_code": end.exit_code,
            "message": end.message,
            "forced": self._forced,
            "step": saved.step if saved else None,
            "tokens": tokens,
            "tokens_per_usd": metered_cost.compute_tokens_per_usd(tokens, spent),
            "bill": split or None,
        }

    def _insist(self, event: str, **details: Any) -> None:
        """Record an event that must not be missing, with retries while storage fails."""
        until = time.monotonic() + LAST_WORD_SECONDS
        while True:
            try:
                return self._record.record(event, self._attempt.number, **details)
            except (OSError, TrainrigError) as problem:
                if time.monotonic() > until:
                    log.error(
                        "%s: `%s` could not be recorded: %s", self._record.path, event, problem
                    )
                    return None
                time.sleep(min(self._pace.heartbeat, 5.0))

    def _try_quietly(self, look: Callable[[], Any]) -> Any:
        """Return the result of `look`, or None if it fails, as no failed check may end the run."""
        try:
            return look()
        except (Superseded, AlreadyDone):
            raise
        except (OSError, TrainrigError) as problem:
            self._say_once(f"storage: {problem}")
        except Exception as bug:
            self._say_once(f"a check failed: {bug!r}", traceback=True)
        return None

    def _say_once(self, what: str, traceback: bool = False) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning("%s", what, exc_info=traceback)
