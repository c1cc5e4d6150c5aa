"""Machines of a cluster, and their providers through gcloud and kubectl.

A machine is any part of a cluster that may cost money or hold a port. Instances of a Google Cloud
project are found by their labels. In Kubernetes, the machines are the pods of KubeRay's RayClusters
and RayJobs.
"""

import copy
import datetime
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from trainrig.errors import ClusterError, ConfigError

CLUSTER_TAG = "trainrig:cluster"
EXPIRES_TAG = "trainrig:expires"


@dataclass(frozen=True)
class CloudMachine:
    """A resource that stays until it is ended: an instance, a disk, a pod or a process."""

    id: str
    kind: str  # instance, spot request, volume, pod, process, …
    cluster: str
    state: str  # state in the provider's words
    place: str = ""  # region, zone or namespace
    pool: str = ""
    instance: str = ""  # type, by which prices are found
    market: str = ""  # spot or on-demand
    expires: str = ""  # time in its tag; empty: no tag

    @property
    def expired(self) -> bool:
        """True if the expiry time has passed; false without a readable time."""
        until = read_time(self.expires)
        return until is not None and until < datetime.datetime.now(datetime.UTC)

    @property
    def head(self) -> bool:
        """True for the head, which starts other machines, so it is ended first."""
        return self.pool == "head"

    def __str__(self) -> str:
        """Return a description in one line."""
        words = [self.id, self.kind, self.state, self.place, self.instance, self.market]
        until = f"expire{'d' if self.expired else 's'} {self.expires}" if self.expires else ""
        return ", ".join(
            word for word in [*words, self.pool and f"pool {self.pool}", until] if word
        )

    def to_json(self) -> dict[str, Any]:
        """Return the machine as a JSON object."""
        return asdict(self) | {"expired": self.expired}


class Provider(Protocol):
    """Interface to the service that runs the machines."""

    def machines(self, cluster: str | None) -> Sequence[CloudMachine]:
        """List all machines of that cluster; None: of any of trainrig's clusters.

        Raises ClusterError if any part of the answer is missing, as an unread list is not empty.
        """

    def end(self, machines: Sequence[CloudMachine]) -> None:
        """Request the end of machines, without waiting for it. Raises ClusterError."""


def read_time(written: str) -> datetime.datetime | None:
    """Parse the time of a tag, in UTC; Google's labels allow neither colons nor capitals."""
    day, _, clock = written.upper().partition("T")
    try:
        return datetime.datetime.fromisoformat(f"{day}T{clock.replace('-', ':')}")
    except ValueError:
        return None


ANSWER = 120.0  # seconds


def ask_command(command: Sequence[str], seconds: float = ANSWER) -> Any:
    """Return the parsed JSON output of `command`.

    Raises ClusterError if it fails, ConfigError if it is not installed.
    """
    written = run_command(command, seconds)
    try:
        return json.loads(written)
    except ValueError:
        raise ClusterError(
            f"{_name_command(command)}: the output is not JSON: {written[:200]!r}"
        ) from None


def run_command(command: Sequence[str], seconds: float = ANSWER) -> str:
    """Return the output of `command`.

    Raises ClusterError if it fails, ConfigError if it is not installed.
    """
    if not shutil.which(command[0]):
        raise ConfigError(
            f"{command[0]}: not installed on this machine; install it, and log in with it"
        )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{_name_command(command)}: no answer for {seconds:g} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ClusterError(f"{_name_command(command)}: {said[-1]}")
    return done.stdout


def _name_command(command: Sequence[str]) -> str:
    return " ".join(command[:3])


GOOGLE_CLUSTER_LABEL = "trainrig-cluster"
GOOGLE_EXPIRES_LABEL = "trainrig-expires"
RAY_LABEL = "ray-cluster-name"
POOL_LABEL = "ray-user-node-type"
KIND_LABEL = "ray-node-type"
DELETED = 600.0  # seconds that gcloud may take for a deletion


class Compute:
    """Instances and disks of trainrig's clusters in all zones of `project`."""

    def __init__(self, project: str) -> None:
        self._project = project

    def machines(self, cluster: str | None) -> Sequence[CloudMachine]:
        """List machines; see Provider."""
        ours = (
            f"labels.{GOOGLE_CLUSTER_LABEL}={cluster} OR labels.{RAY_LABEL}={cluster}"
            if cluster
            else f"labels.{GOOGLE_CLUSTER_LABEL}:* OR labels.{RAY_LABEL}:*"
        )
        found = ask_command(
            [*self._build_command("instances", "list"), f"--filter={ours}", "--format=json"]
        )
        loose = f"({ours}) AND -users:*"  # disks that are attached to no instance
        disks = ask_command(
            [*self._build_command("disks", "list"), f"--filter={loose}", "--format=json"]
        )
        return [
            *(_parse_instance("instance", instance) for instance in found),
            *(_parse_instance("disk", disk) for disk in disks),
        ]

    def end(self, machines: Sequence[CloudMachine]) -> None:
        """End machines; see Provider. Heads come first, as they would start others."""
        for leading in (True, False):
            for what in ("instance", "disk"):
                for zone in sorted({m.place for m in machines}):
                    names = [
                        m.id
                        for m in machines
                        if (m.kind, m.place, m.head) == (what, zone, leading)
                        and m.state != "STOPPING"
                    ]
                    if names:
                        command = [
                            *self._build_command(f"{what}s", "delete"),
                            *names,
                            f"--zone={zone}",
                        ]
                        run_command([*command, "--quiet"], DELETED)

    def _build_command(self, *what: str) -> list[str]:
        return ["gcloud", "compute", *what, f"--project={self._project}"]


def _parse_instance(kind: str, found: Mapping[str, Any]) -> CloudMachine:
    labels = found.get("labels") or {}
    spot = (found.get("scheduling") or {}).get("provisioningModel") == "SPOT"
    return CloudMachine(
        found["name"],
        kind,
        labels.get(GOOGLE_CLUSTER_LABEL) or labels.get(RAY_LABEL, ""),
        found["status"],
        found["zone"].rpartition("/")[2],
        "head" if labels.get(KIND_LABEL) == "head" else labels.get(POOL_LABEL, ""),
        found.get("machineType", "").rpartition("/")[2],
        ("spot" if spot else "on-demand") if kind == "instance" else "",
        labels.get(GOOGLE_EXPIRES_LABEL, ""),
    )


CLUSTER_LABEL = "trainrig.io/cluster"
EXPIRES_ANNOTATION = "trainrig.io/expires"
OBJECTS = "rayclusters.ray.io,rayjobs.ray.io"
GROUP = "ray.io/group"
HEAD_UP = "HeadPodReady"  # KubeRay's name of that condition of a RayCluster


class Kubernetes:
    """Objects and pods of trainrig's clusters in `namespace`; None: in all namespaces."""

    def __init__(self, namespace: str | None) -> None:
        self._where = ["--all-namespaces"] if namespace is None else [f"--namespace={namespace}"]

    def machines(self, cluster: str | None) -> Sequence[CloudMachine]:
        """List machines; see Provider. Pods are listed too, as they may outlive their object."""
        ours = f"{CLUSTER_LABEL}={cluster}" if cluster else CLUSTER_LABEL
        return [_parse_pod(item) for what in (OBJECTS, "pods") for item in self._get(what, ours)]

    def end(self, machines: Sequence[CloudMachine]) -> None:
        """End machines; see Provider. Deleting an object deletes its pods; others go one by one."""
        objects = [machine for machine in machines if machine.kind != "pod"]
        for machine in objects or machines:
            what = [machine.kind.lower(), machine.id, f"--namespace={machine.place}"]
            run_command(["kubectl", "delete", *what, "--ignore-not-found", "--wait=false"])

    def _get(self, what: str, selector: str) -> list[dict[str, Any]]:
        command = ["kubectl", "get", what, f"--selector={selector}", *self._where]
        found: list[dict[str, Any]] = ask_command([*command, "--output=json"])["items"]
        return found


def apply_by_kubectl(path: str) -> str:
    """Apply a file with kubectl and return its output. Raises ClusterError."""
    return run_command(["kubectl", "apply", f"--filename={path}"])


def wait_for_head(about: Mapping[str, Any], seconds: float) -> None:
    """Wait until the head of the RayCluster with this metadata is up. Raises ClusterError."""
    command = ["kubectl", "wait", f"rayclusters.ray.io/{about['name']}"]
    command += [f"--namespace={about.get('namespace') or 'default'}"]
    run_command(
        [*command, f"--for=condition={HEAD_UP}", f"--timeout={seconds:.0f}s"], seconds + ANSWER
    )


def label_pods(document: dict[str, Any], cluster: str) -> dict[str, Any]:
    """Return a copy of a RayCluster or RayJob whose pods have the label of the cluster.

    Pods that outlive the object are found by that label.
    """
    document = copy.deepcopy(document)
    spec = document["spec"].get("rayClusterSpec") or document["spec"]
    for group in [spec["headGroupSpec"], *(spec.get("workerGroupSpecs") or [])]:
        about = group["template"].setdefault("metadata", {})
        for labelled in (about, group):  # the pods, then Ray's nodes
            labelled["labels"] = (labelled.get("labels") or {}) | {CLUSTER_LABEL: cluster}
    return document


def _parse_pod(found: Mapping[str, Any]) -> CloudMachine:
    about = found["metadata"]
    status = found.get("status") or {}
    labels = about.get("labels") or {}
    notes = about.get("annotations") or {}
    state = status.get("phase") or status.get("jobDeploymentStatus") or status.get("state") or ""
    pool = {"headgroup": "head"}.get(labels.get(GROUP, ""), labels.get(GROUP, ""))
    kind = "pod" if found["kind"] == "Pod" else found["kind"]
    cluster = labels.get(CLUSTER_LABEL, "")
    expires = notes.get(EXPIRES_ANNOTATION, "")
    return CloudMachine(
        about["name"], kind, cluster, state, about["namespace"], pool, expires=expires
    )
