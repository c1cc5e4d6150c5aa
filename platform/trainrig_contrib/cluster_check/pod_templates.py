"""Checks of a group's pods: resources, shared memory, and time to end in.

Kubernetes quantities, such as `500m` and `16Gi`, are parsed here.
"""

import re
from collections.abc import Iterator
from typing import Any

from trainrig.config.run_file_text import Location
from trainrig.hardware import MARKET_LABEL
from trainrig.launch.clusters.cluster_file import HEAD
from trainrig.launch.clusters.cluster_yaml import Found, at, ensure_list, ensure_table
from trainrig_contrib.cluster_check.ray_file import AGENT, check_image

_FORM = re.compile(r"^([+-]?[0-9.]+)([numkMGTPE]|[KMGTPE]i)?$")
_TIMES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_TIMES |= {"E": 1e18} | {
    f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", 1)
}


def parse_quantity(quantity: Any) -> float | None:
    """Return `16Gi` in bytes, `500m` in cores; None for an invalid quantity."""
    if isinstance(quantity, int | float) and not isinstance(quantity, bool):
        return float(quantity)
    form = _FORM.match(quantity) if isinstance(quantity, str) else None
    if form is None:
        return None
    try:
        return float(form.group(1)) * _TIMES.get(form.group(2) or "", 1.0)
    except ValueError:  # such as "1.2.3"
        return None


GPU = "nvidia.com/gpu"
SHARED_MEMORY = "/dev/shm"
GRACE_TOLD = re.compile(r"--grace[ =](\d+)")
LEAST_GRACE = 15  # seconds; the most that GKE gives pods on spot machines


def check_pod_template(group: dict[str, Any], where: Location, name: str) -> Iterator[Found]:
    """Check the pod template of the head or of a worker group."""
    spec = ensure_table(at(group, "template", "spec"))
    here = (*where, "template", "spec")
    containers = ensure_list(spec.get("containers"))
    if not containers:
        yield here, "no container; the first container runs Ray"
        return
    ray = ensure_table(containers[0])
    of_ray = (*here, "containers", 0)
    yield from check_image(ray.get("image"), (*of_ray, "image"))
    yield from _check_resources(ray, of_ray)
    yield from _check_shared_memory(spec, here, ray, of_ray)
    yield from _check_rights(spec, here, ray, of_ray)
    yield from _check_probes(ray, of_ray)
    if name != HEAD:
        yield from _check_worker(group, spec, here)
        if ensure_table(group.get("labels")).get(MARKET_LABEL) == "spot":
            yield from _check_spot(spec, here, ray, of_ray)


def _check_resources(ray: dict[str, Any], where: Location) -> Iterator[Found]:
    limits, requests = (ensure_table(at(ray, "resources", key)) for key in ("limits", "requests"))
    for kind in ("cpu", "memory"):
        if kind not in limits:
            yield (
                (*where, "resources"),
                f"no limit of {kind}, so Ray would count the whole machine's",
            )
        elif kind in requests and parse_quantity(requests[kind]) != parse_quantity(limits[kind]):
            what = (
                f"{requests[kind]}, but the limit is {limits[kind]}, which Ray counts on; "
                "make both equal"
            )
            yield (*where, "resources", "requests", kind), what


def _check_shared_memory(
    spec: dict[str, Any], where: Location, ray: dict[str, Any], of_ray: Location
) -> Iterator[Found]:
    mounts = {
        str(ensure_table(volume_mount).get("name")): volume_mount
        for volume_mount in ensure_list(ray.get("volumeMounts"))
    }
    mount = next(
        (n for n, volume_mount in mounts.items() if volume_mount.get("mountPath") == SHARED_MEMORY),
        None,
    )
    if mount is None:
        what = (
            f"nothing is mounted at {SHARED_MEMORY}; Kubernetes' 64 MB are too small for "
            "Ray's objects"
        )
        yield (*of_ray, "volumeMounts"), what
    for index, volume in enumerate(ensure_list(spec.get("volumes"))):
        empty = at(volume, "emptyDir")
        here = (*where, "volumes", index, "emptyDir")
        if mount is None or at(volume, "name") != mount or empty is None:
            continue
        if ensure_table(empty).get("medium") != "Memory":
            yield here, f"{SHARED_MEMORY} must be memory; write medium: Memory"
        size = parse_quantity(ensure_table(empty).get("sizeLimit"))
        memory = parse_quantity(at(ray, "resources", "limits", "memory"))
        if size is not None and memory is not None and size >= memory:
            what = (
                f"{empty['sizeLimit']} counts towards the container's memory and uses it up; "
                "lower it"
            )
            yield (*here, "sizeLimit"), what
    volumes = {at(volume, "name") for volume in ensure_list(spec.get("volumes"))}
    for index, volume_mount in enumerate(ensure_list(ray.get("volumeMounts"))):
        if at(volume_mount, "name") not in volumes:
            yield (
                (*of_ray, "volumeMounts", index, "name"),
                f"no volume '{at(volume_mount, 'name')}'",
            )


def _check_rights(
    spec: dict[str, Any], where: Location, ray: dict[str, Any], of_ray: Location
) -> Iterator[Found]:
    own = ensure_table(ray.get("securityContext"))
    pods = ensure_table(spec.get("securityContext"))
    if (own.get("runAsNonRoot", pods.get("runAsNonRoot"))) is not True:
        yield (*where, "securityContext"), "may run as root; write runAsNonRoot: true"
    if own.get("allowPrivilegeEscalation") is not False:
        here = (*of_ray, "securityContext")
        yield here, "may gain more rights; write allowPrivilegeEscalation: false"
    if own.get("privileged") is True:
        yield (
            (*of_ray, "securityContext", "privileged"),
            "has full access to the machine; leave it out",
        )
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key) is True:
            yield (*where, key), "shares a namespace of the machine; leave it out"


def _check_probes(ray: dict[str, Any], where: Location) -> Iterator[Found]:
    for key in ("readinessProbe", "livenessProbe"):
        if key not in ray:
            yield where, f"no {key}; a node that hangs would count as healthy"


def _check_worker(group: dict[str, Any], spec: dict[str, Any], where: Location) -> Iterator[Found]:
    if spec.get("restartPolicy") != "Never":
        what = (
            "autoscaler v2 makes new pods and loses track of one that restarts in place; "
            "write Never"
        )
        yield (*where, "restartPolicy"), what
    gpus = parse_quantity(at(spec, "containers", 0, "resources", "limits", GPU))
    keys = {
        str(ensure_table(toleration).get("key"))
        for toleration in ensure_list(spec.get("tolerations"))
    }
    if gpus and GPU not in keys:
        what = f"no toleration of {GPU}; nodes with GPUs reject pods without it"
        yield (*where, "tolerations"), what


def _check_spot(
    spec: dict[str, Any], where: Location, ray: dict[str, Any], of_ray: Location
) -> Iterator[Found]:
    tolerated = [
        str(ensure_table(toleration).get("key"))
        for toleration in ensure_list(spec.get("tolerations"))
    ]
    chosen = {**ensure_table(spec.get("nodeSelector"))}
    affinity = str(at(spec, "affinity", "nodeAffinity") or "")
    words = " ".join([*chosen, *map(str, chosen.values()), affinity]).lower()
    if "spot" not in words:
        what = "the label says spot, but no nodeSelector or nodeAffinity selects spot machines"
        yield (*where, "nodeSelector"), what
    if not any("spot" in key.lower() or "capacity" in key.lower() for key in tolerated):
        yield (*where, "tolerations"), "no toleration of the taint that spot machines have"
    grace = spec.get("terminationGracePeriodSeconds")
    if not isinstance(grace, int) or grace < LEAST_GRACE:
        what = f"{grace} s is too short to save and leave; write {LEAST_GRACE} or more"
        yield (*where, "terminationGracePeriodSeconds"), what.replace("None s", "30 s by default")
    command = " ".join(map(str, ensure_list(at(ray, "lifecycle", "preStop", "exec", "command"))))
    if AGENT not in command:
        what = f"no preStop that drains the node: python -m {AGENT} --provider kubernetes --now"
        yield (*of_ray, "lifecycle"), what
    told = GRACE_TOLD.search(command)
    if told and isinstance(grace, int) and int(told[1]) > grace:
        what = (
            f"the preStop hook gives Ray {told[1]} s, but Kubernetes waits {grace} s in all; "
            "set --grace to"
        )
        yield (*of_ray, "lifecycle"), f"{what} {grace} or less"
