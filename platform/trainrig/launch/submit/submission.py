"""Submission of a run: the run file is recorded, the package uploaded, and a job supervises it.

The attempt is recorded before the job is requested. So a submission that fails halfway leaves an
attempt without a supervisor, which the next attempt supersedes. It never leaves an unknown job.
"""

import logging
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainrig import config, manifest, storage
from trainrig.errors import ClusterError
from trainrig.launch.ray_jobs import RayJobs
from trainrig.launch.submit import uploads
from trainrig.launch.submit.preflight import Preflight
from trainrig.launch.submit.uploads import Package, with_shipped_files
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.known_clusters import note_home
from trainrig.launch.supervise.run_record import ENDED, FAILED, Home, JobAttempt, RunRecord

log = logging.getLogger(__name__)
Environment = Literal["cluster", "pinned"]  # the source of the library versions
SETUP_SECONDS = 1800  # seconds for pip on a node; Ray's default is 600


@dataclass(frozen=True)
class Submission:
    """A run with everything needed to submit it and supervise it."""

    home: Home
    record: RunRecord
    run_file: str  # text, with every default written out
    jobs: RayJobs
    package: Package
    limits: Limits
    environment: Environment
    cluster: str  # name that protects it from `cluster down`; empty: unknown
    hardware: str | None = None  # text of the hardware table of the limits
    shipped: Mapping[str, bytes] = field(default_factory=dict)  # contents by path

    @classmethod
    def of(cls, found: Preflight, limits: Limits, environment: Environment) -> "Submission":
        """Build a submission from checks that found no problem."""
        assert found.run and found.jobs and found.cluster and found.package, (
            "the preflight checks found problems"
        )
        record = found.home.create(found.run.verb, found.output)
        run, shipped = with_shipped_files(found.run, storage.join(record.path, "files"))
        text = config.to_toml(run)
        table = None if limits.hardware is None else config.read_text(limits.hardware)
        return cls(
            found.home,
            record,
            text,
            found.jobs,
            found.package,
            limits,
            environment,
            found.cluster.name,
            table,
            shipped,
        )

    def submit(self) -> JobAttempt:
        """Upload the package, take the next attempt and start its job. Raises ClusterError."""
        self._note_home()
        for path, data in self.shipped.items():
            storage.write(path, data)
        storage.write(self.record.run_file, self.run_file.encode())
        uri = self.jobs.upload(self.package.name, self.package.data)
        name = f"{self.record.id}.{{attempt}}.{secrets.token_hex(2)}"
        limits = self._keep_limits()
        attempt = self.record.take_attempt(name, self.jobs.address, self.cluster, limits)
        self.record.record(
            "submitted",
            attempt.number,
            submission_id=attempt.submission_id,
            address=attempt.address,
            versions=manifest.collect_environment(),
        )
        about = {"run": self.record.id, "attempt": str(attempt.number)}
        try:
            self.jobs.submit(
                attempt.submission_id,
                self._build_entrypoint(attempt),
                self._build_runtime_env(uri),
                about,
            )
        except ClusterError as error:
            give_up(self.record, attempt, str(error))
            raise
        return attempt

    def _note_home(self) -> None:
        """Note the home, so that `cluster down` from another home sees the run."""
        if not self.cluster:
            return
        try:
            note_home(self.cluster, self.home.path)
        except OSError as error:
            log.warning("%s: `cluster down` will not know of %s", error, self.home.path)

    def _keep_limits(self) -> dict[str, Any]:
        """Return the limits for the head, with the hardware table stored next to the run file."""
        limits = self.limits.model_dump(mode="json")
        if self.hardware is not None:
            limits["hardware"] = storage.join(self.record.path, "hardware.toml")
            storage.write(limits["hardware"], self.hardware.encode())
        return limits

    def _build_entrypoint(self, attempt: JobAttempt) -> str:
        command = ["python", "-m", "trainrig.launch.supervise.entrypoint", "--home", self.home.path]
        command += ["--run", self.record.id, "--attempt", str(attempt.number)]
        return shlex.join(command)

    def _build_runtime_env(self, uri: str) -> Mapping[str, Any]:
        """Return the runtime environment of the job and its workers.

        Ray's dashboard shows it, so it must contain no secret.
        """
        if self.environment == "cluster":
            return {"py_modules": [uri]}
        pip = {"packages": uploads.pin_versions(), "pip_check": False}
        return {
            "py_modules": [uri],
            "pip": pip,
            "config": {"setup_timeout_seconds": SETUP_SECONDS},
        }


def give_up(record: RunRecord, attempt: JobAttempt, message: str, cause: str = "cluster") -> None:
    """Record that no process supervises `attempt`, or will."""
    end = {"state": FAILED, "cause": cause, "exit_code": 1, "message": message}
    record.record(ENDED, attempt.number, **end)
