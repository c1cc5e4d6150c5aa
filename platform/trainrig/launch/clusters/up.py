"""Implementation of `trainrig cluster up`: everything is checked before a machine is rented."""

import datetime
from collections.abc import Callable
from typing import Any

import yaml

from trainrig.errors import ClusterError, ConfigError
from trainrig.launch.check.cluster import KUBERNETES, LAPTOP
from trainrig.launch.check.document import at
from trainrig.launch.check.kubernetes.kubernetes_shape import RAY
from trainrig.launch.clusters import local_head, ray_launcher
from trainrig.launch.clusters.down import DeletionTimeouts, end_all
from trainrig.launch.clusters.kinds import OpenCluster
from trainrig.launch.clusters.mounts import check_mounts
from trainrig.launch.clusters.providers import kubernetes
from trainrig.launch.clusters.stamp import apply_stamp, compute_expiry
from trainrig.launch.clusters.token import make_token
from trainrig.launch.record.known_clusters import make_folder, record_launch, save_endpoint

LAUNCH = 900.0  # seconds for the head to be up: instance, image and setup

Say = Callable[[str], None]


def bring_up_cluster(cluster: OpenCluster, say: Say, seconds: float = LAUNCH) -> dict[str, str]:
    """Bring `cluster` up within `seconds`, and return its addresses.

    Machines of a failed start are ended again. Raises ConfigError if the file is wrong or the
    cluster is up already, ClusterError if it does not come up.
    """
    cluster.checked.refuse()
    there = cluster.provider.machines(cluster.name)
    if there:
        raise ConfigError(
            f"{cluster.path}: {cluster.name} is already up, or machines of it are left "
            f"({len(there)}: {there[0]}); see `trainrig cluster status`, or take it down "
            "first"
        )
    # On Kubernetes the token is in a Secret, so a token made here would be another one.
    if cluster.kind != KUBERNETES and (token := make_token()):
        say(f"wrote a new token to {token}; anyone who has it controls the cluster")
    if cluster.kind not in (KUBERNETES, LAPTOP):  # no files are copied to those two kinds
        check_mounts(cluster)
    try:
        return _launch(cluster, say, seconds)
    except BaseException:
        _end_what_was_started(cluster, say)
        raise


def _launch(cluster: OpenCluster, say: Say, seconds: float) -> dict[str, str]:
    if cluster.kind == KUBERNETES:
        path = record_launch(cluster.name, render_documents(cluster))
        for line in kubernetes.apply(str(path)).splitlines():
            say(line)
        if at(cluster.data, "kind") == "RayCluster":
            say(f"waiting for the head of {cluster.name}")
            kubernetes.wait_for_head(cluster.data["metadata"], seconds)
        return {"reached": "by kubectl port-forward: docs/kubernetes.md"}
    config = apply_stamp(dict(cluster.data), cluster.name)
    log = make_folder(cluster.name) / "launch.log"
    if cluster.kind == LAPTOP:
        how = local_head.start(cluster.name, config, log, seconds)
        save_endpoint(cluster.name, how)
        return how
    say(f"bringing up the head of {cluster.name}; Ray's log: {log}")
    ray_launcher.launch(record_launch(cluster.name, yaml.safe_dump(config)), log, seconds)
    head = next((m for m in cluster.provider.machines(cluster.name) if m.head), None)
    if head is None:
        raise ClusterError(f"{log}: Ray's launcher ended, but {cluster.name} has no head")
    return {"head": head.id, "place": head.place}


def render_documents(cluster: OpenCluster) -> str:
    """Return the file for Kubernetes, with expiry times and the cluster's label on pods."""
    now = datetime.datetime.now(datetime.UTC)
    documents: list[Any] = list(yaml.safe_load_all(cluster.path.read_text()))
    for index, document in enumerate(documents):
        if at(document, "kind") in RAY:
            documents[index] = document = kubernetes.label_pods(document, cluster.name)
        notes = at(document, "metadata", "annotations")
        if written := at(notes, kubernetes.EXPIRES):
            notes[kubernetes.EXPIRES] = compute_expiry(str(written), now)
    return str(yaml.safe_dump_all(documents))


def _end_what_was_started(cluster: OpenCluster, say: Say) -> None:
    say(f"{cluster.name} did not come up; ending its machines")
    try:
        left = end_all(cluster.provider, cluster.name, DeletionTimeouts(), say)
    except ClusterError as error:
        say(str(error))
    else:
        say(
            f"these machines are left: {'; '.join(map(str, left))}"
            if left
            else "no machines are left"
        )
