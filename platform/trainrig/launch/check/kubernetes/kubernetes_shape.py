"""JSON schemas of KubeRay's resources, and of other objects that a file may contain."""

import functools
import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

from trainrig.launch.check.document import Found, ensure_table, suggest_nearest
from trainrig.launch.check.shape import find_differences

RAY = ("RayCluster", "RayJob")
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
    file = resources.files("trainrig.launch.check").joinpath("schemas/kubernetes.json")
    found: dict[str, Any] = json.loads(file.read_text())["definitions"]
    return found


def find_kubernetes_differences(data: Any) -> Iterator[Found]:
    """Find where one document differs from the schema of its kind."""
    kind = ensure_table(data).get("kind")
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
        yield (() if kind is None else ("kind",)), found + suggest_nearest(str(kind or ""), choices)
