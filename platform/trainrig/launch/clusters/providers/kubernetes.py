"""Provider for the pods of KubeRay's RayClusters and RayJobs, through kubectl."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig.launch.clusters.providers.commands import ANSWER, ask, tell
from trainrig.launch.clusters.providers.machine import CloudMachine

CLUSTER_LABEL = "trainrig.io/cluster"
EXPIRES = "trainrig.io/expires"
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
        return [
            _parse_machine(item) for what in (OBJECTS, "pods") for item in self._get(what, ours)
        ]

    def end(self, machines: Sequence[CloudMachine]) -> None:
        """End machines; see Provider. Deleting an object deletes its pods; others go one by one."""
        objects = [machine for machine in machines if machine.kind != "pod"]
        for machine in objects or machines:
            what = [machine.kind.lower(), machine.id, f"--namespace={machine.place}"]
            tell(["kubectl", "delete", *what, "--ignore-not-found", "--wait=false"])

    def _get(self, what: str, selector: str) -> list[dict[str, Any]]:
        command = ["kubectl", "get", what, f"--selector={selector}", *self._where]
        found: list[dict[str, Any]] = ask([*command, "--output=json"])["items"]
        return found


def apply(path: str) -> str:
    """Apply a file with kubectl and return its output. Raises ClusterError."""
    return tell(["kubectl", "apply", f"--filename={path}"])


def wait_for_head(about: Mapping[str, Any], seconds: float) -> None:
    """Wait until the head of the RayCluster with this metadata is up. Raises ClusterError."""
    command = ["kubectl", "wait", f"rayclusters.ray.io/{about['name']}"]
    command += [f"--namespace={about.get('namespace') or 'default'}"]
    tell([*command, f"--for=condition={HEAD_UP}", f"--timeout={seconds:.0f}s"], seconds + ANSWER)


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


def _parse_machine(found: Mapping[str, Any]) -> CloudMachine:
    about = found["metadata"]
    status = found.get("status") or {}
    labels = about.get("labels") or {}
    notes = about.get("annotations") or {}
    state = status.get("phase") or status.get("jobDeploymentStatus") or status.get("state") or ""
    pool = {"headgroup": "head"}.get(labels.get(GROUP, ""), labels.get(GROUP, ""))
    kind = "pod" if found["kind"] == "Pod" else found["kind"]
    cluster = labels.get(CLUSTER_LABEL, "")
    expires = notes.get(EXPIRES, "")
    return CloudMachine(
        about["name"], kind, cluster, state, about["namespace"], pool, expires=expires
    )
