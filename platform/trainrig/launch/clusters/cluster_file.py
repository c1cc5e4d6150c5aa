"""What a cluster file describes: its provider, its name, its pools and their labels.

A file is in Ray's own form (AWS, Google Cloud, this machine) or holds a RayCluster or a RayJob of
KubeRay. `trainrig cluster check` looks for mistakes; this module takes any file and returns what
it can find.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainrig import storage
from trainrig.config.run_file_text import Location
from trainrig.errors import ConfigError
from trainrig.launch.clusters.cluster_yaml import YamlDocument, at, ensure_list, ensure_table

KUBERNETES = "kubernetes"
LAPTOP = "fake_multinode"
RAY = ("RayCluster", "RayJob")
HEAD = "head"  # the pool of the head node
LARGEST = 2**20  # bytes of a cluster file at most; the shipped files have 10,000


def read_cluster_text(path: Path) -> str:
    """Return the text of the cluster file at `path`. Raises ConfigError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > LARGEST:
        raise ConfigError(
            f"{path}: {len(data):,} bytes; a cluster file may have at most {LARGEST:,}"
        )
    try:
        return storage.decode_utf8(data)
    except storage.NotUtf8 as error:
        raise ConfigError(f"{path}: {error}; write YAML") from None


def find_main_document(documents: Sequence[YamlDocument]) -> Any:
    """Return the data of the document that describes the cluster, if the file has several."""
    of_ray = [document.data for document in documents if at(document.data, "kind") in RAY]
    return (of_ray or [document.data for document in documents] or [{}])[0]


def find_provider(documents: Sequence[YamlDocument]) -> str:
    """Return aws, gcp, kubernetes, fake_multinode, or what the file names instead; "" for none."""
    tables = [ensure_table(document.data) for document in documents]
    if any("apiVersion" in table or "kind" in table for table in tables):
        return KUBERNETES
    return str(at(tables[0], "provider", "type") or "") if tables else ""


def find_cluster_name(data: Any) -> str:
    """Return the name that a cluster's main document gives; "" for none."""
    return str(at(data, "cluster_name") or at(data, "metadata", "name") or "")


def list_node_types(data: Any) -> dict[str, dict[str, Any]]:
    """Return the node types of a file in Ray's form, by name."""
    types = ensure_table(at(data, "available_node_types"))
    return {name: ensure_table(node_type) for name, node_type in types.items()}


def find_cluster_spec(data: Any) -> tuple[dict[str, Any], Location]:
    """Return the RayClusterSpec of a RayCluster or a RayJob, and its location."""
    where: Location = ("spec", "rayClusterSpec") if at(data, "kind") == "RayJob" else ("spec",)
    return ensure_table(at(data, *where)), where


def iterate_groups(data: Any) -> Iterator[tuple[str, dict[str, Any], Location]]:
    """Yield the head and the worker groups of KubeRay: name, spec, location."""
    spec, where = find_cluster_spec(data)
    if "headGroupSpec" in spec:
        yield HEAD, ensure_table(spec["headGroupSpec"]), (*where, "headGroupSpec")
    for index, group in enumerate(ensure_list(spec.get("workerGroupSpecs"))):
        name = str(ensure_table(group).get("groupName", index))
        yield name, ensure_table(group), (*where, "workerGroupSpecs", index)


def find_pool_labels(data: Any, provider: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the labels of each pool of a cluster's main document; the head is the pool `head`."""
    if provider == KUBERNETES:
        return {name: ensure_table(group.get("labels")) for name, group, _ in iterate_groups(data)}
    head = at(data, "head_node_type")
    return {
        HEAD if name == head else name: ensure_table(node_type.get("labels"))
        for name, node_type in list_node_types(data).items()
    }
