"""Implementation of `trainrig cluster up`: everything is checked before a machine is rented.

The expiry time is in the file's tags, so the cloud sets it on each machine, including those that
Ray's autoscaler starts days later. The cluster's name is a label of the nodes, which tells a
submitted run on which cluster it runs.

Ray's launcher looks for the files that it copies to the head only once the head is up, so they are
checked here. The head accepts any token that it gets, while clients here use the token of this
user: anyone who has it can control the user's clusters.
"""

import copy
import datetime
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from trainrig.errors import ClusterError, ConfigError
from trainrig.extras import load_extra
from trainrig.launch import ray_jobs
from trainrig.launch.clusters import head_start, machine_providers
from trainrig.launch.clusters.cluster_down import DeletionTimeouts, end_all
from trainrig.launch.clusters.cluster_file import KUBERNETES, LAPTOP, RAY
from trainrig.launch.clusters.cluster_kinds import OpenCluster
from trainrig.launch.clusters.cluster_yaml import at, ensure_table
from trainrig.launch.clusters.machine_providers import EXPIRES_TAG
from trainrig.launch.supervise.known_clusters import make_folder, record_launch, save_endpoint

HOURS = re.compile(r"([1-9]\d{0,3})h")
LABEL = "trainrig-expires"  # the label on Google Cloud
NODE_LABEL = "trainrig.io/cluster"


def apply_stamp(config: dict[str, Any], cluster: str) -> dict[str, Any]:
    """Return a copy of a Ray cluster file with expiry times in UTC and the cluster's name."""
    now = datetime.datetime.now(datetime.UTC)
    config = copy.deepcopy(config)
    for kind in config.get("available_node_types", {}).values():
        kind["labels"] = (kind.get("labels") or {}) | {NODE_LABEL: cluster}
        node = kind.get("node_config") or {}
        for specification in node.get("TagSpecifications") or []:
            for tag in specification["Tags"]:
                if tag["Key"] == EXPIRES_TAG:
                    tag["Value"] = compute_expiry(tag["Value"], now)
        if LABEL in (node.get("labels") or {}):
            written = compute_expiry(node["labels"][LABEL], now)
            node["labels"][LABEL] = written.lower().replace(":", "-")
    return config


def compute_expiry(written: str, now: datetime.datetime) -> str:
    """Convert hours such as `24h` to a time in UTC; a time is returned unchanged."""
    hours = HOURS.fullmatch(written)
    if not hours:
        return written
    until = now + datetime.timedelta(hours=int(hours[1]))
    return until.strftime("%Y-%m-%dT%H:%M:%SZ")


def find_token_path() -> Path:
    """Return the path of the token file, which is used unless RAY_AUTH_TOKEN is set."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()


def make_token() -> Path | None:
    """Create a token that only this user can read and return its path; None if there was one."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return None
    path = find_token_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        return None
    return path


TOKEN = ".ray/auth_token"  # relative to the home folder of the user who runs Ray


def check_mounts(cluster: OpenCluster) -> None:
    """Raise ConfigError for a missing source, or a token that differs from this user's."""
    for target, source in ensure_table(at(cluster.data, "file_mounts")).items():
        where = f'{cluster.path}: file_mounts["{target}"]: {source}'
        path = Path(str(source)).expanduser()
        if target.endswith(TOKEN):
            _check_token(where, path)
        elif not path.exists():
            raise ConfigError(
                f"{where}: does not exist on this machine; create it, or leave it out"
            )


def _check_token(where: str, path: Path) -> None:
    given = bool(os.environ.get("RAY_AUTH_TOKEN", "").strip())
    source = "RAY_AUTH_TOKEN" if given else str(find_token_path())
    ours = ray_jobs.read_token()
    if ours is None:
        raise ConfigError(
            f"{where}: {source} holds no token; remove it, and `cluster up` makes one"
        )
    try:
        if path.read_text().strip() == ours:
            return
        found = "it holds another token"
    except OSError as error:
        found = f"its token cannot be read ({error.strerror})"
    put = f'printenv RAY_AUTH_TOKEN > "{path}"' if given else f'cp "{source}" "{path}"'
    raise ConfigError(
        f"{where}: {found}, so the cluster would refuse the token of {source}; copy that "
        f"one: (umask 077; {put})"
    )


LAUNCH = 900.0  # seconds for the head to be up: instance, image and setup

Say = Callable[[str], None]


def bring_up_cluster(cluster: OpenCluster, say: Say, seconds: float = LAUNCH) -> dict[str, str]:
    """Bring `cluster` up within `seconds`, and return its addresses.

    Machines of a failed start are ended again. Raises ConfigError if the file is wrong or the
    cluster is up already, ClusterError if it does not come up.
    """
    load_extra("cluster_check.cluster_check", "trainrig cluster up").check_cluster(
        cluster.path
    ).refuse()
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
        for line in machine_providers.apply_by_kubectl(str(path)).splitlines():
            say(line)
        if at(cluster.data, "kind") == "RayCluster":
            say(f"waiting for the head of {cluster.name}")
            machine_providers.wait_for_head(cluster.data["metadata"], seconds)
        return {"reached": "by kubectl port-forward: docs/kubernetes.md"}
    config = apply_stamp(dict(cluster.data), cluster.name)
    log = make_folder(cluster.name) / "launch.log"
    if cluster.kind == LAPTOP:
        how = head_start.start_local_head(cluster.name, config, log, seconds)
        save_endpoint(cluster.name, how)
        return how
    say(f"bringing up the head of {cluster.name}; Ray's log: {log}")
    head_start.launch_head_by_ray(record_launch(cluster.name, yaml.safe_dump(config)), log, seconds)
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
            documents[index] = document = machine_providers.label_pods(document, cluster.name)
        notes = at(document, "metadata", "annotations")
        if written := at(notes, machine_providers.EXPIRES_ANNOTATION):
            notes[machine_providers.EXPIRES_ANNOTATION] = compute_expiry(str(written), now)
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
