"""Records of runs in storage, which outlive the jobs that drive them and the clusters.

    HOME/runs/ID/run.json            the run: its verb and its output
                 run.toml            the run file as last submitted, with all defaults
                 attempts/0001.json  each submission, created exclusively
                 events.jsonl        events; `ended` decides how an attempt ended
                 beat.json           the newest heartbeat of the supervisor
                 log.txt             the output of the verb
                 stop                asks all attempts up to the one that it names to end

The id follows from verb and output alone, so submitting a run file again makes a new attempt at the
same run. An attempt counts only while no newer one was taken, which needs no comparison of clocks.

Whether a run is `lost` compares the clock of the reader to that of the supervisor. If the clocks
differ by a minute, a live run may be called lost, or a lost one running. A process that follows a
run (`watch`) therefore acts on it only if no heartbeat came for as long by its own clock. Programs
that read once trust the state: `submit` then takes the run over, which makes the older attempt save
and end; `stop` does not wait for a checkpoint; `cluster down` does not see the run.
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
LOST_SECONDS = 60.0  # without a heartbeat: about twelve are missing
PENDING_SECONDS = 900.0  # seconds from submission to the first heartbeat; default of Limits.pending
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SHOWN = 10  # ids to list when a prefix is ambiguous
ENDED = "ended"
RESTART = "submitted_anew"  # the user asked for whatever follows this attempt
PINNED = "pinned"  # the attempt uses the library versions of the submitter
# Events that only a live supervisor writes, which therefore count as signs of life.
SIGNS = ("other_versions", "started", "retried", "superseded")
# States. A run in one of the first five may still change.
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
ALIVE = (QUEUED, WAITING, RUNNING, STOPPING)


def run_id(verb: str, output: str) -> str:
    """Return the id of the run of `verb` that writes `output`, the same on every machine."""
    output = storage.make_absolute(output)
    key = hashlib.sha256(f"{verb}\n{output}".encode()).hexdigest()[:6]
    last = re.sub(r"[^A-Za-z0-9._-]+", "-", output.rstrip("/").rpartition("/")[2])[:40]
    return f"{verb}-{last}-{key}"


@dataclass(frozen=True)
class JobAttempt:
    """One submission of a run, numbered from 1."""

    number: int
    submission_id: str  # id of the Ray job that supervises the attempt
    address: str  # URL of the dashboard to which it was submitted
    cluster: str  # name of the cluster; empty: unknown
    submitted_at: float  # time.time()
    limits: dict[str, Any] = field(default_factory=dict)  # the fields of Limits, as plain JSON

    @property
    def pending(self) -> float:
        """Seconds that the attempt may stay without a heartbeat."""
        return float(self.limits.get("pending", PENDING_SECONDS))


@dataclass(frozen=True)
class RunStatus:
    """State of a run, as far as storage shows it."""

    state: str
    attempt: JobAttempt | None  # the newest attempt
    heartbeat: Mapping[str, Any]  # the newest of that attempt; empty: none yet
    ended: Mapping[str, Any]  # the end of that attempt; empty: none yet

    @property
    def alive(self) -> bool:
        """True if the newest attempt is supervised, or is about to be."""
        return self.state in ALIVE


@dataclass(frozen=True)
class Home:
    """The folder or bucket that holds the records of runs."""

    path: str

    @classmethod
    def choose(cls, option: str | None = None) -> "Home":
        """Return the given home, else TRAINRIG_HOME, else the state folder of this user."""
        path = option or os.environ.get("TRAINRIG_HOME")
        if not path:
            state = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
            path = storage.join(state, "trainrig")
        return cls(storage.make_absolute(path).rstrip("/"))

    def create(self, verb: str, output: str) -> "RunRecord":
        """Return the record of the run of `verb` that writes `output`, created if missing."""
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
        """Return the record of the run with the id `name`. Raises ConfigError if there is none."""
        record = RunRecord(storage.join(self._runs, name))
        if not ID.fullmatch(name) or not storage.exists(storage.join(record.path, "run.json")):
            known = [path.rpartition("/")[2] for path in storage.list_folders(self._runs)]
            raise ConfigError(f"{self.path}: no run '{name}'{suggest_choice(name, known)}")
        return record

    def find(self, name: str) -> "RunRecord":
        """Return the run with this id, or with this unique prefix of an id.

        Raises ConfigError if no id, or more than one, begins with `name`.
        """
        known = [path.rpartition("/")[2] for path in storage.list_folders(self._runs)]
        meant = [known_id for known_id in known if name and known_id.startswith(name)]
        if name in known or len(meant) != 1:
            if len(meant) > 1 and name not in known:
                more = f" and {len(meant) - SHOWN} more" if len(meant) > SHOWN else ""
                raise ConfigError(
                    f"{self.path}: several runs begin with '{name}': "
                    f"{', '.join(sorted(meant)[:SHOWN])}{more}; give more characters of "
                    "the id"
                )
            return self.open(name)
        return self.open(meant[0])

    def list(self) -> "list[RunRecord]":
        """Return all runs, sorted by id. Raises ConfigError if the home is a file."""
        if not storage.is_remote(self.path) and storage.exists(self.path):
            raise ConfigError(
                f"{self.path}: this is a file; --home names the folder of the runs' records"
            )
        folders = storage.list_folders(self._runs)
        records = storage.measure_sizes(storage.join(path, "run.json") for path in folders)
        return [RunRecord(path.rpartition("/")[0]) for path in records]

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
        """Path of the run file, as last submitted."""
        return storage.join(self.path, "run.toml")

    @property
    def log(self) -> str:
        """Path of the log; in a bucket a folder of segments."""
        return storage.join(self.path, "log.txt")

    def read_description(self) -> dict[str, Any]:
        """Read `id`, `verb`, `output` and `created` of the run."""
        return dict(json.loads(storage.read(storage.join(self.path, "run.json"))))

    def read_attempts(self) -> list[JobAttempt]:
        """Read all attempts so far, in order."""
        paths = storage.list_files(storage.join(self.path, "attempts"), ".json")
        return [_parse_attempt(data) for data in storage.read_files(paths)]

    def read_attempt(self, number: int) -> JobAttempt:
        """Read one attempt. Raises FileNotFoundError."""
        return _parse_attempt(storage.read(self._build_attempt_path(number)))

    def find_newest_attempt(self) -> int:
        """Return the number of the newest attempt; 0 if there is none. Costs one request."""
        paths = storage.list_files(storage.join(self.path, "attempts"), ".json")
        return max(
            (int(path.rpartition("/")[2].removesuffix(".json")) for path in paths), default=0
        )

    def take_attempt(
        self, submission_id: str, address: str, cluster: str, limits: Mapping[str, Any]
    ) -> JobAttempt:
        """Take the next attempt exclusively; from then on earlier attempts no longer count.

        "{attempt}" in the submission id stands for the attempt's number.
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
        """Record that the user asked for the next attempt, which restarts its deadline."""
        if newest := self.find_newest_attempt():
            self.record(RESTART, newest)

    def find_request_time(self, attempt: JobAttempt) -> float:
        """Return when the user asked for `attempt`, as time.time().

        If the attempt was resubmitted automatically, this is the time of the first such attempt.
        """
        first = attempt
        if first.number > 1:
            attempts = {earlier.number: earlier for earlier in self.read_attempts()}
            # The user asked for each attempt that follows one with such an event.
            left = {e["attempt"] for e in self.read_events() if e["event"] in (ENDED, RESTART)}
            while first.number > 1 and first.number - 1 not in left:
                first = attempts[first.number - 1]
        return first.submitted_at

    def _build_attempt_path(self, number: int) -> str:
        return storage.join(self.path, "attempts", f"{number:04d}.json")

    def record(self, event: str, attempt: int, **details: Any) -> None:
        """Append one event with the time. Secrets of this process are masked."""
        line = {"event": event, "time": round(time.time(), 3), "attempt": attempt}
        append_log.append_line(self._events, _encode_event(line | redact(details)))

    def read_events(self, attempt: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield all events so far, or the events of one attempt, in the order written."""
        for line in append_log.read_lines(self._events):
            with contextlib.suppress(ValueError):  # a line cut off by a crash or a full disk
                event = json.loads(line)
                if attempt is None or event["attempt"] == attempt:
                    yield event

    @property
    def _events(self) -> str:
        return storage.join(self.path, "events.jsonl")

    def write_heartbeat(self, attempt: int, state: str, **figures: Any) -> None:
        """Write a heartbeat: this process supervises `attempt`, which is in `state`."""
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
        """Read the newest heartbeat of any attempt; empty if there is none."""
        try:
            return dict(json.loads(storage.read(storage.join(self.path, "beat.json"))))
        except (FileNotFoundError, ValueError):
            return {}

    def read_status(self) -> RunStatus:
        """Return the status of the newest attempt."""
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
        """Return the state of the newest attempt, in a word."""
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
        """Return whether `attempt` was asked to end; a request holds for no later attempt."""
        asked = self._find_stop_request()
        return asked is not None and attempt <= asked

    def clear_stop(self, attempt: int) -> None:
        """Remove the request to stop once `attempt` has ended, unless it names a later one."""
        asked = self._find_stop_request()
        if asked is not None and (asked <= attempt or asked == math.inf):
            storage.delete(self._stop)

    def _find_stop_request(self) -> float | None:
        """Return the newest attempt that is asked to end; infinity: all, None: none."""
        try:
            return int(json.loads(storage.read(self._stop))["attempt"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return math.inf  # a user created the file by hand

    @property
    def _stop(self) -> str:
        return storage.join(self.path, "stop")

    def open_log(self, attempt: int, again: int = 0) -> append_log.Appender:
        """Open the log for appending whole lines, as a segment in a bucket may end after each.

        `again` is the number of times that this attempt has opened the log before.
        """
        return append_log.open_appender(self.log, f"attempt-{attempt:04d}.{again:03d}")

    def open_tail(self) -> append_log.Tail:
        """Open a reader of new lines of the log, without blank ones."""
        return append_log.Tail(self.log)


def _encode_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _parse_attempt(data: bytes) -> JobAttempt:
    entry = json.loads(data)
    return JobAttempt(**{name: entry[name] for name in JobAttempt.__dataclass_fields__})


def _encode_event(event: Mapping[str, Any]) -> bytes:
    """Encode `event` as a line short enough for an atomic append; long texts are cut."""
    for limit in (2000, 500, 100):  # characters, of up to 4 bytes each
        cut = {name: _clip_text(value, limit) for name, value in event.items()}
        line = json.dumps(cut, ensure_ascii=False).encode(errors="replace") + b"\n"
        if len(line) <= append_log.LINE_LIMIT:
            return line
    raise AssertionError(f"an event with too many details: {', '.join(event)}")


def _clip_text(value: Any, limit: int) -> Any:
    return f"{value[: limit - 1]}…" if isinstance(value, str) and len(value) > limit else value
