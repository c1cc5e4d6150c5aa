"""Checks of a RayJob besides its cluster: entrypoint, retries, and end."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from trainrig.launch.check.document import Found, at, ensure_table

RUNS_US = re.compile(r"(-m trainrig[\w.]*|\btrainrig) ")


def check_ray_job(data: Any) -> Iterator[Found]:
    """Find the problems of the job itself."""
    spec = ensure_table(at(data, "spec"))
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


def _check_retries(spec: dict[str, Any]) -> Iterator[Found]:
    if spec.get("backoffLimit", 0) != 0:
        what = "each retry of KubeRay starts a whole new cluster, whatever the cause; trainrig"
        yield ("spec", "backoffLimit"), f"{what} retries by cause itself: write 0"
    if spec.get("submissionMode") == "SidecarMode":
        what = "ends the job when its log stream drops; write HTTPMode"
        yield ("spec", "submissionMode"), what


def _check_end(spec: dict[str, Any]) -> Iterator[Found]:
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
