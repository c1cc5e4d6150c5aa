"""Kinds of clusters: which kind a file describes, and which provider runs its machines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig.errors import ConfigError
from trainrig.launch.clusters import cluster_file
from trainrig.launch.clusters.cluster_yaml import at, read_documents
from trainrig.launch.clusters.ec2_machines import EC2
from trainrig.launch.clusters.local_processes import Processes
from trainrig.launch.clusters.machine_providers import CLUSTER_LABEL, Compute, Kubernetes, Provider
from trainrig.launch.clusters.shipped_clusters import find_cluster


@dataclass(frozen=True)
class OpenCluster:
    """A cluster file and the provider of its machines."""

    path: Path
    name: str  # the name in the tags of the machines
    kind: str  # aws, gcp, kubernetes or fake_multinode
    data: Mapping[str, Any]  # content of the file
    provider: Provider


def open_cluster(name: str) -> OpenCluster:
    """Open the cluster that NAME|FILE means. Raises ConfigError."""
    path = find_cluster(name)
    documents, problems = read_documents(cluster_file.read_cluster_text(path), str(path))
    data = next((d.data for d in documents if isinstance(d.data, dict)), None)
    if data is None:
        raise ConfigError(str(problems[0]) if problems else f"{path}: not a cluster file")
    kind = cluster_file.find_provider(documents)
    if kind not in _PROVIDERS:
        raise ConfigError(
            f"{path}: trainrig cannot bring up clusters with provider.type "
            f"'{kind}'; use {', '.join(sorted(_PROVIDERS))}"
        )
    own_name = cluster_file.find_cluster_name(cluster_file.find_main_document(documents))
    versions = ((d.data, str(at(d.data, "apiVersion") or "")) for d in documents)
    data = next((found for found, version in versions if version.startswith("ray.io/")), data)
    tag = str(at(data, "metadata", "labels", CLUSTER_LABEL) or own_name)
    return OpenCluster(path, tag, kind, data, _PROVIDERS[kind](data))


def _require_provider_key(data: Mapping[str, Any], key: str) -> str:
    found = at(data, "provider", key)
    if not isinstance(found, str):
        raise ConfigError(f"provider.{key} is missing, so the machines cannot be located")
    return found


_PROVIDERS: dict[str, Callable[[Mapping[str, Any]], Provider]] = {
    "aws": lambda data: EC2([_require_provider_key(data, "region")]),
    "gcp": lambda data: Compute(_require_provider_key(data, "project_id")),
    cluster_file.KUBERNETES: lambda data: Kubernetes(
        str(at(data, "metadata", "namespace") or "default")
    ),
    cluster_file.LAPTOP: lambda data: Processes(),
}
