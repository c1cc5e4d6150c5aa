"""Alarms of a run: its metrics are followed, and users are notified.

An alarm is raised once, and again only after its cause has been absent: in `events.jsonl`, in the
log, and to the target of `--notify`, a command or a URL. The target is given on the command line
only: a run file that could name a command would run it for everyone who trains with that file.
"""

import contextvars
import json
import logging
import shlex
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trainrig import storage
from trainrig.errors import ClusterError
from trainrig.processes.append_log import Tail
from trainrig.train.run.alarm_rules import Alarm, AlarmRules
from trainrig.train.run.metrics import METRICS
from trainrig.train.run.planned_loss import read_prediction
from trainrig.train.run.policy_alarms import PolicyRules, read_policy_facts
from trainrig.train.run.run_folder import EVENTS, RunFolder

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


class AlarmWatch:
    """Follows the run in `folder` and raises its alarms."""

    def __init__(self, folder: str, steps: int, begin_with: Sequence[Alarm] = ()) -> None:
        self._folder = RunFolder(folder)
        self._notify = notify_to.get()
        self._rules = AlarmRules(steps, read_prediction(folder))
        self._policy = PolicyRules(read_policy_facts(folder))
        self._tails = [Tail(storage.join(folder, name)) for name in (EVENTS, METRICS)]
        alarms = [event for event in self._folder.read_events() if event["event"] == "alarm"]
        self._reported = {alarm["name"] for alarm in alarms}  # raised before; still assumed to hold
        self._begin_with = [alarm for alarm in begin_with if alarm.name not in self._reported]

    def look(self) -> list[Alarm]:
        """Check the lines written since the last check; raise and return the new alarms."""
        for tail in self._tails:
            for raw in tail.read_new_lines():
                try:
                    line = json.loads(raw)
                except ValueError:  # a torn line; other readers warn of it
                    continue
                self._rules.hear(line)
                self._policy.hear(line)
        holding = self._rules.list_holding(self._measure_free_bytes())
        holding += self._policy.list_holding()
        new = [*self._begin_with, *(alarm for alarm in holding if alarm.name not in self._reported)]
        self._reported = {alarm.name for alarm in (*holding, *self._begin_with)}
        self._begin_with = []
        for alarm in new:
            self._tell(alarm)
        return new

    def _measure_free_bytes(self) -> int | None:
        path = self._folder.path
        return None if storage.is_remote(path) else shutil.disk_usage(path).free

    def _tell(self, alarm: Alarm) -> None:
        details = {"name": alarm.name, "what": alarm.what, "action": alarm.action}
        self._folder.record("alarm", **details)
        log.warning("ALARM %s", alarm)
        if self._notify:
            try:
                send_notification(self._notify, self._folder.path, alarm.name, str(alarm))
            except (OSError, ValueError, subprocess.SubprocessError) as problem:
                log.warning("--notify %s: %s", self._notify, problem)


@contextmanager
def watch_alarms(folder: str, steps: int, begin_with: Sequence[Alarm] = ()) -> Iterator[None]:
    """Raise the alarms of the run in `folder` while the block, which drives it, runs."""
    watch = AlarmWatch(folder, steps, begin_with)
    over = threading.Event()

    def follow() -> None:
        last = False
        while not last:
            last = over.wait(LOOK_SECONDS)
            try:
                with storage.briefly():
                    watch.look()
            except (OSError, ClusterError) as problem:  # the next check follows soon
                log.debug("%s: the alarms could not be checked: %s", folder, problem)

    thread = threading.Thread(target=follow, name="alarms", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


NOTIFY_SECONDS = 30.0  # limit of a command or a request

notify_to: contextvars.ContextVar[str | None] = contextvars.ContextVar("notify_to", default=None)


def send_notification(target: str, folder: str, name: str, what: str) -> None:
    """Send a notification to `target`: a URL, as JSON, or a command, as its last argument.

    Raises OSError, ValueError or SubprocessError if that fails.
    """
    text = f"{folder}: {what}"
    if target.startswith(("http://", "https://")):
        body = json.dumps({"text": text, "run": folder, "alarm": name}).encode()
        request = urllib.request.Request(target, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=NOTIFY_SECONDS):
            return
    command = [*shlex.split(target), text]
    subprocess.run(command, check=True, timeout=NOTIFY_SECONDS, stdin=subprocess.DEVNULL)
