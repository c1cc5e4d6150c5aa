"""Puts a run on a cluster: its run file on record, the package on the head, a job that supervises
it.

The attempt is on record before the job is asked for. So a submission that dies halfway leaves an
attempt that nobody supervises, which the next one supersedes, and never a job that nobody knows.
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
from trainrig.launch.record.known_clusters import note_home
from trainrig.launch.record.run_record import ENDED, FAILED, Home, JobAttempt, RunRecord
from trainrig.launch.submit import package_upload
from trainrig.launch.submit.package_upload import Package
from trainrig.launch.submit.preflight import Preflight
from trainrig.launch.submit.shipped_files import with_shipped_files
from trainrig.launch.supervise.limits import Limits

log = logging.getLogger(__name__)
Environment = Literal["cluster", "pinned"]  # whose versions of the libraries
SETUP_SECONDS = 1800  # for pip on a node; Ray gives it 600


@dataclass(frozen=True)
class Submission:
    """A run, and where and how it is to be supervised."""

    home: Home
    record: RunRecord
    run_file: str  # its text, every default in it
    jobs: RayJobs
    package: Package
    limits: Limits
    environment: Environment
    cluster: str  # its name, under which it is not taken down; empty: none that we know
    hardware: str | None = None  # the text of the table that the limits name
    shipped: Mapping[str, bytes] = field(default_factory=dict)  # files by where they go

    @classmethod
    def of(cls, found: Preflight, limits: Limits, environment: Environment) -> "Submission":
        """What `found`, in which there are no problems, is about."""
        assert found.run and found.jobs and found.cluster and found.package, "there were problems"
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
        """Upload, take the next attempt and have it supervised. Raises ClusterError."""
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
        """So that the cluster is not taken down under the run by who has another home."""
        if not self.cluster:
            return
        try:
            note_home(self.cluster, self.home.path)
        except OSError as error:
            log.warning("%s: `cluster down` will not know of %s", error, self.home.path)

    def _keep_limits(self) -> dict[str, Any]:
        """The limits as the head reads them: the table of prices lies beside the run file."""
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
        """What the job's processes and its workers are started with. It is shown by the dashboard:
        nothing secret may be in it."""
        if self.environment == "cluster":
            return {"py_modules": [uri]}
        pip = {"packages": package_upload.pin_versions(), "pip_check": False}
        return {
            "py_modules": [uri],
            "pip": pip,
            "config": {"setup_timeout_seconds": SETUP_SECONDS},
        }


def give_up(record: RunRecord, attempt: JobAttempt, message: str, cause: str = "cluster") -> None:
    """Put on record that nobody supervises `attempt`, nor will."""
    end = {"state": FAILED, "cause": cause, "exit_code": 1, "message": message}
    record.record(ENDED, attempt.number, **end)
