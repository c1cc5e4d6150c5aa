"""Checks of RayClusters and RayJobs of KubeRay: shape, bounds, labels, token, and the job itself.

The shape is checked by JSON schemas of KubeRay's resources, and of other objects that a file may
contain. The pods of a group are checked by `pod_templates`.
"""

import functools
import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import yaml

from trainrig.config.run_file_text import Location
from trainrig.hardware import INSTANCE_LABEL, MARKET_LABEL
from trainrig.launch.clusters import cluster_yaml
from trainrig.launch.clusters.cluster_file import HEAD, RAY, find_cluster_spec, iterate_groups
from trainrig_contrib.cluster_check.machine_pools import PricedPool
from trainrig_contrib.cluster_check.pod_templates import check_pod_template, parse_quantity
from trainrig_contrib.cluster_check.ray_file import EXPIRY, LONGEST_IDLE, check_labels
from trainrig_contrib.cluster_check.schema_differences import find_differences, suggest_nearest

# Other objects of a cluster, with the version of their API. A Secret is not allowed, as its values
# would be in the file.
BESIDE = {
    "ConfigMap": "v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PersistentVolumeClaim": "v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "Service": "v1",
    "ServiceAccount": "v1",
}


@functools.cache
def _load_definitions() -> dict[str, Any]:
    file = resources.files("trainrig_contrib.cluster_check").joinpath("schemas/kubernetes.json")
    found: dict[str, Any] = json.loads(file.read_text())["definitions"]
    return found


def find_kubernetes_differences(data: Any) -> Iterator[cluster_yaml.Found]:
    """Find where one document differs from the schema of its kind."""
    kind = cluster_yaml.ensure_table(data).get("kind")
    if kind in RAY or kind in BESIDE:
        yield from find_differences(
            data, {"$ref": f"#/definitions/{kind}", "definitions": _load_definitions()}
        )
        if kind in BESIDE and data.get("apiVersion") != BESIDE[kind]:
            yield ("apiVersion",), f"'{data.get('apiVersion')}'; {kind} needs {BESIDE[kind]}"
    elif kind == "Secret":
        yield (
            ("kind",),
            "a Secret's values would be in the file; make it with kubectl (docs/kubernetes.md)",
        )
    else:
        choices = [*RAY, *BESIDE]
        found = (
            "`kind` is missing"
            if kind is None
            else f"kind '{kind}' is not allowed in a cluster file"
        )
        yield (
            (() if kind is None else ("kind",)),
            found + suggest_nearest(str(kind or ""), choices),
        )


WHOSE = "trainrig.io/cluster"
UNTIL = "trainrig.io/expires"
GPU = "nvidia.com/gpu"


def check_ray_cluster(data: Any) -> Iterator[cluster_yaml.Found]:
    """Find the problems of the cluster in a RayCluster or a RayJob, beyond its shape."""
    spec, where = find_cluster_spec(data)
    yield from _check_owner(cluster_yaml.ensure_table(data))
    yield from _check_token(spec, where)
    yield from _check_autoscaler(spec, where)
    names: set[str] = set()
    for name, group, here in iterate_groups(data):
        if name in names:
            yield (*here, "groupName"), f"two worker groups are named '{name}'; rename one"
        names.add(name)
        yield from check_labels(
            cluster_yaml.ensure_table(group.get("labels")), (*here, "labels"), name
        )
        yield from _check_head(group, here) if name == HEAD else _check_bounds(group, here)
        yield from check_pod_template(group, here, name)
    if names <= {HEAD}:
        yield (*where, "workerGroupSpecs"), "no worker group, so nothing could run; add one"


def list_kuberay_pools(data: Any) -> list[PricedPool]:
    """Return a pool for the head and for each worker group."""
    return [_build_pool(name, group) for name, group, _ in iterate_groups(data)]


def _build_pool(name: str, group: dict[str, Any]) -> PricedPool:
    labels = cluster_yaml.ensure_table(group.get("labels"))
    limits = cluster_yaml.at(group, "template", "spec", "containers", 0, "resources", "limits")
    least = group.get("minReplicas")
    most = group.get("maxReplicas")
    hosts = group.get("numOfHosts", 1)
    return PricedPool(
        name=name,
        instance=str(labels.get(INSTANCE_LABEL, "")),
        market=str(labels.get(MARKET_LABEL, "")),
        least=1 if name == HEAD else _parse_count(least) * _parse_count(hosts),
        most=1 if name == HEAD else _parse_count(most) * _parse_count(hosts),
        cpus=0.0
        if name == HEAD
        else parse_quantity(cluster_yaml.ensure_table(limits).get("cpu")) or 0.0,
        gpus=parse_quantity(cluster_yaml.ensure_table(limits).get(GPU)) or 0.0,
    )


def _parse_count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _check_owner(data: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    metadata = cluster_yaml.ensure_table(data.get("metadata"))
    name = metadata.get("name")
    labels = cluster_yaml.ensure_table(metadata.get("labels"))
    until = cluster_yaml.ensure_table(metadata.get("annotations")).get(UNTIL)
    if not name:
        yield ("metadata",), "`name` is missing"
    if labels.get(WHOSE) != name:
        yield (
            ("metadata", "labels"),
            f"label `{WHOSE}` must be '{name}'; leaked pods are found by it",
        )
    if until is None:
        what = f"no annotation `{UNTIL}`; write hours after the start (24h), or a time in UTC"
        yield ("metadata", "annotations"), what
    elif not EXPIRY.match(str(until)):
        what = f"'{until}' is not a time; write hours (24h), or a time (2026-11-30T18:00:00Z)"
        yield ("metadata", "annotations", UNTIL), what


def _check_token(spec: dict[str, Any], where: Location) -> Iterator[cluster_yaml.Found]:
    options = cluster_yaml.ensure_table(spec.get("authOptions"))
    if options.get("mode") != "token":
        here = (*where, "authOptions", "mode") if options else where
        yield (
            here,
            (
                "anyone who reaches the head controls the cluster; write authOptions: { mode: "
                "token, … }"
            ),
        )
    elif not options.get("secretName"):
        what = "`secretName` is missing, so KubeRay would make a token that you do not have"
        yield (*where, "authOptions"), what
    head = (*where, "headGroupSpec")
    if cluster_yaml.at(spec, "headGroupSpec", "serviceType") in {"LoadBalancer", "NodePort"}:
        yield (*head, "serviceType"), "the dashboard would be open to the network; write ClusterIP"
    if cluster_yaml.at(spec, "headGroupSpec", "enableIngress") is True:
        yield (*head, "enableIngress"), "the dashboard would be open to the network; write false"


def _check_autoscaler(spec: dict[str, Any], where: Location) -> Iterator[cluster_yaml.Found]:
    options = cluster_yaml.ensure_table(spec.get("autoscalerOptions"))
    here = (*where, "autoscalerOptions")
    if spec.get("enableInTreeAutoscaling") is not True:
        yield (
            (*where, "enableInTreeAutoscaling"),
            "groups would keep their number of replicas; write true",
        )
    if options.get("version") != "v2":
        yield (*here, "version"), "autoscaler v1 may leave idle nodes running; write v2"
    idle = options.get("idleTimeoutSeconds")
    if idle is None:
        yield (
            here,
            "`idleTimeoutSeconds` is missing; it is the time that idle machines wait for work",
        )
    elif isinstance(idle, int) and not 0 < idle <= LONGEST_IDLE * 60:
        what = f"{idle} s; idle machines cost as much as busy ones: 1 to {LONGEST_IDLE * 60}"
        yield (*here, "idleTimeoutSeconds"), what


def _check_head(group: dict[str, Any], where: Location) -> Iterator[cluster_yaml.Found]:
    cpus = cluster_yaml.ensure_table(group.get("rayStartParams")).get("num-cpus")
    of_resources = cluster_yaml.ensure_table(group.get("resources")).get("CPU")
    if cpus != "0" and of_resources != "0":
        what = 'the head must have num-cpus: "0"; a task there can take the cluster down'
        yield (*where, "rayStartParams", "num-cpus"), what


def _check_bounds(group: dict[str, Any], where: Location) -> Iterator[cluster_yaml.Found]:
    least = group.get("minReplicas")
    most = group.get("maxReplicas")
    replicas = group.get("replicas", least)
    if not isinstance(least, int) or not isinstance(most, int):
        return
    if least > most:
        yield (*where, "minReplicas"), f"{least} is more than maxReplicas ({most})"
    elif least > 0:
        yield (*where, "minReplicas"), f"{least} pods would never be released; write 0"
    elif isinstance(replicas, int) and not least <= replicas <= most:
        what = f"{replicas} is not between minReplicas ({least}) and maxReplicas ({most})"
        yield (*where, "replicas"), what


RUNS_US = re.compile(r"(-m trainrig[\w.]*|\btrainrig) ")


def check_ray_job(data: Any) -> Iterator[cluster_yaml.Found]:
    """Find the problems of the job itself."""
    spec = cluster_yaml.ensure_table(cluster_yaml.at(data, "spec"))
    if not spec.get("entrypoint"):
        yield ("spec",), "`entrypoint` is missing; it is the command to run"
    elif not RUNS_US.search(str(spec["entrypoint"])):
        yield ("spec", "entrypoint"), "does not run trainrig; give a trainrig command"
    yield from _check_retries(spec)
    yield from _check_end(spec)
    environment = spec.get("runtimeEnvYAML")
    if isinstance(environment, str):
        try:
            yaml.safe_load(environment)
        except yaml.YAMLError as error:
            yield ("spec", "runtimeEnvYAML"), f"not YAML: {str(error).splitlines()[0]}"
    if not spec.get("rayClusterSpec") and not spec.get("clusterSelector"):
        yield ("spec",), "`rayClusterSpec` is missing, so the job has no cluster to run on"


def _check_retries(spec: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    if spec.get("backoffLimit", 0) != 0:
        what = "each retry of KubeRay starts a whole new cluster, whatever the cause; trainrig"
        yield ("spec", "backoffLimit"), f"{what} retries by cause itself: write 0"
    if spec.get("submissionMode") == "SidecarMode":
        what = "ends the job when its log stream drops; write HTTPMode"
        yield ("spec", "submissionMode"), what


def _check_end(spec: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    if "deletionStrategy" in spec:
        for key in ("shutdownAfterJobFinishes", "ttlSecondsAfterFinished"):
            if key in spec:
                yield ("spec", key), "cannot be combined with deletionStrategy; choose one"
    elif spec.get("shutdownAfterJobFinishes") is not True:
        what = "the cluster would stay, and cost money, after the job has ended; write true"
        yield ("spec", "shutdownAfterJobFinishes"), what
    if "ttlSecondsAfterFinished" in spec and spec.get("shutdownAfterJobFinishes") is not True:
        what = "has no effect without shutdownAfterJobFinishes: true"
        yield ("spec", "ttlSecondsAfterFinished"), what
    if "activeDeadlineSeconds" not in spec:
        yield (
            ("spec",),
            "`activeDeadlineSeconds` is missing; a job that hangs would cost money without end",
        )
