"""Records of runs in storage, which outlive the jobs that drive them and the clusters.

    HOME/runs/ID/run.json            the run: its verb and its output
                 run.toml            its run file as last submitted, every default in it
                 attempts/0001.json  each submission, taken by exclusive create
                 events.jsonl        what happened to it; its `ended` is the truth about an attempt
                 beat.json           the newest sign of life of who supervises it
                 log.txt             what its verb printed
                 stop                asks the attempts up to the one that it names to end

The id follows from verb and output alone, so a run file that is submitted again is a new attempt at
the same run. An attempt counts only while no newer one was taken: nobody needs to trust clocks for
that.

That a run is `lost` is said by the clock of who asks, against that of who supervises it: where they
are a minute apart, a run that is well may be called lost, or a lost one running. Who follows a run
(`watch`) therefore acts on it only once, by its own clock, no beat came for as long. Programs that
look once believe it: `submit` then takes the run over, which ends the older attempt whole; `stop`
does not wait for a checkpoint; `cluster down` does not see it.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainrig import storage
from trainrig.config import suggest_choice
from trainrig.errors import ConfigError
from trainrig.launch.redaction import redact
from trainrig.processes import append_log

HEARTBEAT_SECONDS = 5.0
LOST_SECONDS = 60.0  # without a beat: a dozen misses
PENDING_SECONDS = 900.0  # from submission to the first sign of life; Limits.pending
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SHOWN = 10  # of the ids that a beginning may mean
ENDED = "ended"
RESTART = "submitted_anew"  # what came after the attempt was asked for by the user
PINNED = "pinned"  # the attempt was submitted with the submitter's versions of all libraries
# Events that a job supervisor writes while its attempt lasts: others say nothing about its life.
SIGNS = ("other_versions", "started", "retried", "superseded")
# States. The first five may still change by themselves.
QUEUED = "queued"
WAITING = "waiting"
RUNNING = "running"
STOPPING = "stopping"
LOST = "lost"
DONE = "done"
STOPPED = "stopped"
PREEMPTED = "preempted"
FAILED = "failed"
REFUSED = "refused"
OUT_OF_BUDGET = "out of budget"
ALIVE = (QUEUED, WAITING, RUNNING, STOPPING)


def run_id(verb: str, output: str) -> str:
    """The id of the run of `verb` that writes `output`: the same wherever it is submitted from."""
    output = storage.make_absolute(output)
    key = hashlib.sha256(f"{verb}\n{output}".encode()).hexdigest()[:6]
    last = re.sub(r"[^A-Za-z0-9._-]+", "-", output.rstrip("/").rpartition("/")[2])[:40]
    return f"{verb}-{last}-{key}"


@dataclass(frozen=True)
class JobAttempt:
    """One submission of a run, numbered from 1."""

    number: int
    submission_id: str  # of the Ray job that supervises it
    address: str  # of the cluster's jobs, as it was reached
    cluster: str  # its name; empty: none that we know
    submitted_at: float  # time.time()
    limits: dict[str, Any] = field(default_factory=dict)  # a Limits, as plain JSON

    @property
    def pending(self) -> float:
        """Seconds that it may stay without a sign of life."""
        return float(self.limits.get("pending", PENDING_SECONDS))


@dataclass(frozen=True)
class RunStatus:
    """How a run is, as far as storage tells."""

    state: str
    attempt: JobAttempt | None  # the newest
    heartbeat: Mapping[str, Any]  # its newest; empty: none yet
    ended: Mapping[str, Any]  # its end; empty: none yet

    @property
    def alive(self) -> bool:
        """Whether somebody supervises it, or soon will."""
        return self.state in ALIVE


@dataclass(frozen=True)
class Home:
    """The folder or bucket that holds the records of runs."""

    path: str

    @classmethod
    def choose(cls, option: str | None = None) -> "Home":
        """The one that is given, else TRAINRIG_HOME, else the folder for states of this user."""
        path = option or os.environ.get("TRAINRIG_HOME")
        if not path:
            state = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
            path = storage.join(state, "trainrig")
        return cls(storage.make_absolute(path).rstrip("/"))

    def create(self, verb: str, output: str) -> "RunRecord":
        """The record of the run of `verb` that writes `output`; begun if it is not there."""
        output = storage.make_absolute(output)
        record = RunRecord(storage.join(self._runs, run_id(verb, output)))
        entry = {
            "id": record.id,
            "verb": verb,
            "output": output,
            "created": round(time.time(), 3),
            "nonce": secrets.token_hex(8),
        }
        storage.create(storage.join(record.path, "run.json"), _encode_json(entry))
        return record

    def open(self, name: str) -> "RunRecord":
        """The record of the run with the id `name`. Raises ConfigError if there is none."""
        record = RunRecord(storage.join(self._runs, name))
        if not ID.fullmatch(name) or not storage.exists(storage.join(record.path, "run.json")):
            known = [path.rpartition("/")[2] for path in storage.list_folders(self._runs)]
            raise ConfigError(f"{self.path}: no run '{name}'{suggest_choice(name, known)}")
        return record

    def find(self, name: str) -> "RunRecord":
        """The run that a person names: by its id, or by the beginning of one alone.

        Raises ConfigError if no id begins so, or several do.
        """
        known = [path.rpartition("/")[2] for path in storage.list_folders(self._runs)]
        meant = [each for each in known if name and each.startswith(name)]
        if name in known or len(meant) != 1:
            if len(meant) > 1 and name not in known:
                more = f" and {len(meant) - SHOWN} more" if len(meant) > SHOWN else ""
                raise ConfigError(
                    f"{self.path}: several runs begin with '{name}': "
                    f"{', '.join(sorted(meant)[:SHOWN])}{more}; write more of the id"
                )
            return self.open(name)
        return self.open(meant[0])

    def list(self) -> "list[RunRecord]":
        """All runs, by id. Raises ConfigError for a home that is a file."""
        if not self.path.startswith(storage.S3) and storage.exists(self.path):
            raise ConfigError(f"{self.path}: a file; --home names the folder of the runs' records")
        return [
            RunRecord(path)
            for path in storage.list_folders(self._runs)
            if storage.exists(storage.join(path, "run.json"))
        ]

    @property
    def _runs(self) -> str:
        return storage.join(self.path, "runs")


@dataclass(frozen=True)
class RunRecord:
    """The record of one run, in the folder `path`."""

    path: str

    @property
    def id(self) -> str:
        """The run's id."""
        return self.path.rpartition("/")[2]

    @property
    def home(self) -> str:
        """The folder or bucket that holds the records."""
        return self.path.rpartition("/runs/")[0]

    @property
    def run_file(self) -> str:
        """Where the run file lies, as last submitted."""
        return storage.join(self.path, "run.toml")

    @property
    def log(self) -> str:
        """Where the log lies; in a bucket a folder of segments."""
        return storage.join(self.path, "log.txt")

    def read_description(self) -> dict[str, Any]:
        """`id`, `verb`, `output` and `created` of the run."""
        return dict(json.loads(storage.read(storage.join(self.path, "run.json"))))

    def read_attempts(self) -> list[JobAttempt]:
        """The attempts so far, in order."""
        paths = storage.list_files(storage.join(self.path, "attempts"), ".json")
        return [_parse_attempt(storage.read(path)) for path in paths]

    def read_attempt(self, number: int) -> JobAttempt:
        """One of them. Raises FileNotFoundError."""
        return _parse_attempt(storage.read(self._build_attempt_path(number)))

    def find_newest_attempt(self) -> int:
        """The number of the newest attempt; 0: there is none. One request."""
        paths = storage.list_files(storage.join(self.path, "attempts"), ".json")
        return max(
            (int(path.rpartition("/")[2].removesuffix(".json")) for path in paths), default=0
        )

    def take_attempt(
        self, submission_id: str, address: str, cluster: str, limits: Mapping[str, Any]
    ) -> JobAttempt:
        """The next attempt, ours alone; from here on earlier ones count no more.

        "{attempt}" in the submission id stands for its number.
        """
        while True:
            number = self.find_newest_attempt() + 1
            name = submission_id.replace("{attempt}", str(number))
            attempt = JobAttempt(
                number, name, address, cluster, round(time.time(), 3), dict(limits)
            )
            entry = asdict(attempt) | {"nonce": secrets.token_hex(8)}
            if storage.create(self._build_attempt_path(number), _encode_json(entry)):
                return attempt

    def begin_anew(self) -> None:
        """Say that the next attempt is asked for by the user: no deadline is carried over to it."""
        if newest := self.find_newest_attempt():
            self.record(RESTART, newest)

    def find_request_time(self, attempt: JobAttempt) -> float:
        """When the user asked for what `attempt` does, as time.time().

        Of an attempt that was submitted again without them, when the first one was submitted.
        """
        first = attempt
        while first.number > 1 and not self._was_left(first.number - 1):
            first = self.read_attempt(first.number - 1)
        return first.submitted_at

    def _was_left(self, number: int) -> bool:
        """Whether what came after the attempt was asked for by the user."""
        return any(event["event"] in (ENDED, RESTART) for event in self.read_events(number))

    def _build_attempt_path(self, number: int) -> str:
        return storage.join(self.path, "attempts", f"{number:04d}.json")

    def record(self, event: str, attempt: int, **details: Any) -> None:
        """Append one event with the time. What this process holds as a secret is masked."""
        line = {"event": event, "time": round(time.time(), 3), "attempt": attempt}
        append_log.append_line(self._events, _encode_event(line | redact(details)))

    def read_events(self, attempt: int | None = None) -> Iterator[dict[str, Any]]:
        """All events so far, or those of one attempt, in the order written."""
        for line in append_log.read_lines(self._events):
            with contextlib.suppress(ValueError):  # torn by a death or a full disk
                event = json.loads(line)
                if attempt is None or event["attempt"] == attempt:
                    yield event

    @property
    def _events(self) -> str:
        return storage.join(self.path, "events.jsonl")

    def write_heartbeat(self, attempt: int, state: str, **figures: Any) -> None:
        """Say that `attempt` is supervised by this process, and how it is."""
        line = {
            "time": round(time.time(), 3),
            "attempt": attempt,
            "state": state,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            **figures,
        }
        storage.write(storage.join(self.path, "beat.json"), _encode_json(line))

    def read_last_heartbeat(self) -> dict[str, Any]:
        """The newest sign of life, of whichever attempt; empty: none yet."""
        try:
            return dict(json.loads(storage.read(storage.join(self.path, "beat.json"))))
        except (FileNotFoundError, ValueError):
            return {}

    def read_status(self) -> RunStatus:
        """How the newest attempt is."""
        number = self.find_newest_attempt()
        if not number:
            return RunStatus(QUEUED, None, {}, {})
        newest = self.read_attempt(number)
        events = list(self.read_events(newest.number))
        ended = next((event for event in reversed(events) if event["event"] == ENDED), None)
        heartbeat = self.read_last_heartbeat()
        if heartbeat.get("attempt") != newest.number:
            heartbeat = {}
        state = str(ended["state"]) if ended else self._state_before_end(newest, events, heartbeat)
        return RunStatus(state, newest, heartbeat, ended or {})

    def read_state(self) -> str:
        """How the newest attempt is, in a word."""
        return self.read_status().state

    def _state_before_end(
        self, attempt: JobAttempt, events: Sequence[Mapping[str, Any]], heartbeat: Mapping[str, Any]
    ) -> str:
        now = time.time()
        signs = [event["time"] for event in events if event["event"] in SIGNS]
        if not heartbeat and not any(event["event"] == "started" for event in events):
            return QUEUED if now - attempt.submitted_at < attempt.pending else LOST
        if now - max([heartbeat.get("time", 0.0), *signs]) > LOST_SECONDS:
            return LOST
        return (
            STOPPING
            if self.stop_requested(attempt.number)
            else str(heartbeat.get("state", RUNNING))
        )

    def request_stop(self) -> None:
        """Ask the newest attempt, and those before it, to checkpoint and end."""
        newest = self.find_newest_attempt()
        entry = {"attempt": newest, "time": round(time.time(), 3), "host": socket.gethostname()}
        storage.write(self._stop, _encode_json(entry))
        self.record("stop_requested", newest)

    def stop_requested(self, attempt: int) -> bool:
        """Whether `attempt` was asked to end; a later one was not by the same file."""
        asked = self._find_stop_request()
        return asked is not None and attempt <= asked

    def clear_stop(self, attempt: int) -> None:
        """Remove the request once `attempt` has ended, unless it names a later one."""
        asked = self._find_stop_request()
        if asked is not None and (asked <= attempt or asked == math.inf):
            storage.delete(self._stop)

    def _find_stop_request(self) -> float | None:
        """The newest attempt that is asked to; infinity: all, None: none."""
        try:
            return int(json.loads(storage.read(self._stop))["attempt"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return math.inf  # somebody made the file by hand

    @property
    def _stop(self) -> str:
        return storage.join(self.path, "stop")

    def open_log(self, attempt: int, again: int = 0) -> append_log.Appender:
        """For appending to the log; whole lines, as a segment in a bucket may end after each.

        `again`: how often it was opened by this attempt before.
        """
        return append_log.open_appender(self.log, f"attempt-{attempt:04d}.{again:03d}")

    def open_tail(self) -> append_log.Tail:
        """The lines of the log, look by look, blank ones left out."""
        return append_log.Tail(self.log)


def _encode_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _parse_attempt(data: bytes) -> JobAttempt:
    entry = json.loads(data)
    return JobAttempt(**{name: entry[name] for name in JobAttempt.__dataclass_fields__})


def _encode_event(event: Mapping[str, Any]) -> bytes:
    """`event` as a line that is short enough to be appended whole; long texts in it are cut."""
    for limit in (2000, 500, 100):  # characters, each of up to 4 bytes
        cut = {name: _clip_text(value, limit) for name, value in event.items()}
        line = json.dumps(cut, ensure_ascii=False).encode(errors="replace") + b"\n"
        if len(line) <= append_log.LINE_LIMIT:
            return line
    raise AssertionError(f"an event with too many details: {', '.join(event)}")


def _clip_text(value: Any, limit: int) -> Any:
    return f"{value[: limit - 1]}…" if isinstance(value, str) and len(value) > limit else value
