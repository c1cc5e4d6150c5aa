"""Checks of any cluster file in Ray's own form, whichever cloud it is for.

The shape is checked by Ray's JSON schema, read from the installed package as data without starting
Ray. Where Ray's schema allows any key, this check does not: an unknown key under `provider` is a
typo.

The checks of labels, images, and tags with owner and expiry serve files for KubeRay too. Leaked
machines are found by these tags. A cluster on this machine alone must not be reachable from
outside, and is free.
"""

import functools
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainrig.errors import ClusterError
from trainrig.hardware import INSTANCE_LABEL, MARKET_LABEL, OWN, POOL_LABEL
from trainrig.launch.clusters import cluster_yaml
from trainrig.launch.clusters.cluster_file import HEAD, list_node_types
from trainrig_contrib.cluster_check.machine_pools import MARKETS, PricedPool
from trainrig_contrib.cluster_check.schema_differences import find_differences, suggest_nearest

# A time in UTC, in lower case where a cloud requires that, or hours from `cluster up` on.
EXPIRY = re.compile(r"^(\d{4}-\d\d-\d\d[Tt]\d\d[:-]\d\d[:-]\d\d[Zz]|[1-9]\d{0,3}h)$")


def check_tags(
    tags: Mapping[str, Any], where: tuple[str | int, ...], cluster: Any, names: tuple[str, str]
) -> Iterator[cluster_yaml.Found]:
    """Check the tags of a machine; `names` are the cloud's keys of the cluster and expiry tags."""
    whose, until = names
    if whose not in tags:
        yield where, f"no tag `{whose}`; leaked machines are found by it"
    elif cluster is not None and tags[whose] != cluster:
        yield where, f"`{whose}` is '{tags[whose]}', but the cluster is named '{cluster}'"
    if until not in tags:
        yield where, f"no tag `{until}`; write hours after `cluster up` (24h), or a time in UTC"
    elif not EXPIRY.match(str(tags[until])):
        found = tags[until]
        yield where, f"`{until}` is '{found}'; write hours (24h), or a time (2026-11-30T18:00:00Z)"


DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def check_image(image: Any, where: tuple[str | int, ...]) -> Iterator[cluster_yaml.Found]:
    """Check that an image is named by its digest, as the image behind a tag can change."""
    if isinstance(image, str) and not DIGEST.search(image):
        short = image if len(image) <= 60 else image[:57] + "..."
        yield where, f"'{short}' may differ between two nodes; pin it by @sha256:…"


def check_docker(data: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    """Check the `docker` part of a cluster file in Ray's form."""
    docker = cluster_yaml.ensure_table(data.get("docker"))
    if not docker:
        yield (), "`docker` is missing; every node needs an image with trainrig, pinned by digest"
        return
    for key in ("image", "head_image", "worker_image"):
        yield from check_image(docker.get(key), ("docker", key))
    options = [str(option) for option in cluster_yaml.ensure_list(docker.get("run_options"))]
    where = ("docker", "run_options") if options else ("docker",)
    if not any(option.startswith("--shm-size") for option in options):
        yield (
            where,
            "no --shm-size; Docker's 64 MB are too small for Ray's object store: --shm-size=32g",
        )
    if not any(option.replace("=", " ").startswith("--ulimit nofile") for option in options):
        yield where, "no --ulimit=nofile=65536:65536; a large shuffle opens more files than 1,024"
    for index, option in enumerate(options):
        if option.startswith("--privileged"):
            yield (
                (*where, index),
                "a privileged container has full access to the machine; leave it out",
            )


# Keys that Ray's providers read, but its schema lacks (ray/autoscaler/_private, 2.60).
MORE_OF_PROVIDER = (
    "aws_credentials",
    "disable_launch_config_check",
    "foreground_node_launch",
    "gcs_address",
    "worker_liveness_check",
    "worker_rpc_drain",
)
LONGEST_IDLE = 60  # minutes; an idle p5.48xlarge costs about 1 USD a minute


@functools.cache
def load_ray_schema() -> dict[str, Any]:
    """Return the schema of cluster files from the installed Ray, with `provider` closed."""
    found = importlib.util.find_spec("ray")
    if found is None or not found.submodule_search_locations:
        raise ClusterError(
            "Ray is not installed, and cluster files are checked by its schema; install "
            "trainrig with Ray"
        )
    path = Path(found.submodule_search_locations[0]) / "autoscaler" / "ray-schema.json"
    schema: dict[str, Any] = json.loads(path.read_text())
    provider = schema["properties"]["provider"]
    provider["properties"] |= {key: {} for key in MORE_OF_PROVIDER}
    provider["additionalProperties"] = False
    return schema


def check_ray_file(data: Any) -> Iterator[cluster_yaml.Found]:
    """Find the problems of a cluster file in Ray's form that do not depend on its provider."""
    yield from find_differences(data, load_ray_schema())
    yield from _check_head(cluster_yaml.ensure_table(data))
    yield from _check_sizes(cluster_yaml.ensure_table(data))
    yield from _check_all_labels(cluster_yaml.ensure_table(data))
    yield from _check_idle(cluster_yaml.ensure_table(data))
    yield from _check_ray_start(cluster_yaml.ensure_table(data))


def list_ray_pools(data: Any) -> list[PricedPool]:
    """Return a pool for each node type; missing numbers count as 0."""
    return [
        _build_pool(name, node_type, name == cluster_yaml.at(data, "head_node_type"))
        for name, node_type in list_node_types(data).items()
    ]


def _build_pool(name: str, node_type: dict[str, Any], is_head: bool) -> PricedPool:
    labels = cluster_yaml.ensure_table(node_type.get("labels"))
    resources = cluster_yaml.ensure_table(node_type.get("resources"))
    return PricedPool(
        name=HEAD if is_head else name,
        instance=str(labels.get(INSTANCE_LABEL, "")),
        market=str(labels.get(MARKET_LABEL, "")),
        least=1 if is_head else _parse_count(node_type.get("min_workers")),
        most=1 if is_head else _parse_count(node_type.get("max_workers")),
        cpus=_parse_count(resources.get("CPU")),
        gpus=_parse_count(resources.get("GPU")),
    )


def _parse_count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _check_head(data: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    types = list_node_types(data)
    head = data.get("head_node_type")
    if not types:
        yield (), "`available_node_types` is missing; give a head and at least one pool"
        return
    if head not in types:
        what = (
            "is missing"
            if head is None
            else f"names no node type{suggest_nearest(str(head), types)}"
        )
        yield ("head_node_type",), what
        return
    resources = cluster_yaml.ensure_table(types[head].get("resources"))
    for kind in ("CPU", "GPU"):
        if resources.get(kind, 0 if kind == "GPU" else None) != 0:
            where = ("available_node_types", head, "resources", kind)
            yield where, f"the head must have {kind}: 0; a task there can take the cluster down"
    for bound in ("min_workers", "max_workers"):
        if types[head].get(bound, 0) != 0:
            yield ("available_node_types", head, bound), "there is only one head; write 0"


def _check_sizes(data: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    most_of_all = data.get("max_workers")
    for name, node_type in list_node_types(data).items():
        where = ("available_node_types", name)
        if name == data.get("head_node_type"):
            continue
        least = node_type.get("min_workers", 0)
        most = node_type.get("max_workers")
        if not isinstance(most, int):
            yield where, "`max_workers` is missing; without it, one pool may take all machines"
        elif isinstance(least, int) and least > most:
            yield (*where, "min_workers"), f"{least} is more than max_workers ({most})"
        elif isinstance(most_of_all, int) and most > most_of_all:
            yield (
                (*where, "max_workers"),
                f"{most} is more than the max_workers of all pools ({most_of_all})",
            )
        elif isinstance(least, int) and least > 0:
            yield (*where, "min_workers"), f"{least} machines would never be released; write 0"
        if not cluster_yaml.ensure_table(node_type.get("resources")):
            yield (
                where,
                "`resources` is empty, so the autoscaler cannot start this type for any work",
            )
    if most_of_all is None:
        yield (), "`max_workers` is missing; Ray's default is 0 or 2, whatever the pools allow"


def _check_all_labels(data: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    for name, node_type in list_node_types(data).items():
        is_head = name == data.get("head_node_type")
        labels = cluster_yaml.ensure_table(node_type.get("labels"))
        where = ("available_node_types", name, "labels")
        yield from check_labels(labels, where, HEAD if is_head else name)


def check_labels(
    labels: dict[str, Any], where: tuple[str | int, ...], pool: str
) -> Iterator[cluster_yaml.Found]:
    """Check the labels of a node of `pool`, on which stages and costs depend."""
    ours = (POOL_LABEL, INSTANCE_LABEL, MARKET_LABEL)
    for label in ours:
        if label not in labels:
            yield (
                where,
                f"`{label}` is missing; stages find their nodes by it, and costs their prices",
            )
    for label in labels:
        if label.startswith("trainrig.io/") and label not in (*ours, "trainrig.io/cluster"):
            yield (
                (*where, label),
                f"unknown label{suggest_nearest(label, list(ours))}",
            )
    if labels.get(POOL_LABEL, pool) != pool:
        yield (*where, POOL_LABEL), f"'{labels[POOL_LABEL]}', but the pool is named '{pool}'"
    if pool == HEAD and labels.get(MARKET_LABEL) == "spot":
        yield (
            (*where, MARKET_LABEL),
            "the head is on spot, and the cluster ends with it; rent it on demand",
        )
    elif labels.get(MARKET_LABEL, "spot") not in MARKETS:
        found = labels[MARKET_LABEL]
        yield (
            (*where, MARKET_LABEL),
            f"unknown market '{found}'{suggest_nearest(str(found), list(MARKETS))}",
        )


def _check_idle(data: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    minutes = data.get("idle_timeout_minutes")
    if minutes is None:
        yield (
            (),
            "`idle_timeout_minutes` is missing; it is the time that idle machines wait for work",
        )
    elif isinstance(minutes, int | float) and not 0 < minutes <= LONGEST_IDLE:
        what = f"{minutes} minutes; idle machines cost as much as busy ones: 1 to {LONGEST_IDLE}"
        yield ("idle_timeout_minutes",), what


def _check_ray_start(data: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    """Check how Ray is started: with a token, its dashboard on loopback, an autoscaler."""
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        commands = [str(command) for command in cluster_yaml.ensure_list(data.get(key))]
        starts = [index for index, command in enumerate(commands) if "ray start" in command]
        if not starts and (key == "head_start_ray_commands" or data.get(key) != []):
            here = (key,) if key in data else ()
            yield here, f"`{key}` has no `ray start`; Ray's default one sets no token"
        for index in starts:
            where = (key, index)
            command = commands[index]
            if "RAY_AUTH_MODE=token" not in command:
                yield (
                    where,
                    (
                        "without RAY_AUTH_MODE=token, anyone who reaches the port controls the "
                        "cluster"
                    ),
                )
            if key == "head_start_ray_commands":
                yield from _check_head_start(where, command)


def _check_head_start(where: tuple[str | int, ...], command: str) -> Iterator[cluster_yaml.Found]:
    if "--dashboard-host=127.0.0.1" not in command:
        yield where, "the dashboard must listen on loopback only: --dashboard-host=127.0.0.1"
    if "--autoscaling-config" not in command:
        yield (
            where,
            "without --autoscaling-config=~/ray_bootstrap_config.yaml no node is ever added",
        )


AGENT = "trainrig.launch.spot"


def check_agent(data: dict[str, Any], provider: str) -> Iterator[cluster_yaml.Found]:
    """Check that every worker starts the agent before Ray, for the right provider."""
    types = list_node_types(data).items()
    spot = [
        name
        for name, node_type in types
        if cluster_yaml.ensure_table(node_type.get("labels")).get(MARKET_LABEL) == "spot"
    ]
    if not spot:
        return
    key = "worker_start_ray_commands"
    commands = [str(command) for command in cluster_yaml.ensure_list(data.get(key))]
    agents = [index for index, command in enumerate(commands) if AGENT in command]
    starts = [index for index, command in enumerate(commands) if "ray start" in command]
    wanted = f"python -m {AGENT} --provider {provider}"
    if not agents:
        what = (
            f"spot machines ({', '.join(spot)}) without the agent: run `{wanted} &` before "
            "`ray start`"
        )
        yield (key,) if key in data else (), what
        return
    if f"--provider {provider}" not in commands[agents[0]].replace("=", " "):
        yield (key, agents[0]), f"this agent watches another cloud's notices; use `{wanted}`"
    if starts and agents[0] > starts[0]:
        yield (
            (key, agents[0]),
            "the agent starts after `ray start`; put it before",
        )
    if not commands[agents[0]].rstrip().endswith("&"):
        yield (key, agents[0]), "the agent never ends; run it in the background with `&`"


def check_laptop(data: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    """Find the problems of a local cluster file that Ray's own rules do not cover."""
    provider = cluster_yaml.ensure_table(data.get("provider"))
    if provider.get("disable_node_updaters") is not True:
        yield (
            ("provider", "disable_node_updaters"),
            "a local cluster has no machines to log in to; write true",
        )
    if not cluster_yaml.ensure_table(data.get("auth")).get("ssh_user"):
        yield (), "`auth.ssh_user` is missing; Ray's monitor needs it, whatever its value"
    if data.get("docker"):
        yield ("docker",), "a local cluster runs no containers; leave it out"
    for name, node_type in list_node_types(data).items():
        where = ("available_node_types", name)
        if cluster_yaml.ensure_table(node_type.get("node_config")):
            yield (*where, "node_config"), "a local cluster rents no machines; write {}"
        labels = cluster_yaml.ensure_table(node_type.get("labels"))
        if (instance := labels.get(INSTANCE_LABEL, OWN)) != OWN:
            yield (
                (*where, "labels", INSTANCE_LABEL),
                f"'{instance}' cannot be rented here; write {OWN}",
            )
        if labels.get(MARKET_LABEL) == "spot":
            yield (
                (*where, "labels", MARKET_LABEL),
                "this machine is never preempted; write on-demand",
            )
    for index, command in enumerate(cluster_yaml.ensure_list(data.get("head_start_ray_commands"))):
        if "ray start" in str(command) and "--node-ip-address=127.0.0.1" not in str(command):
            where_it_is = ("head_start_ray_commands", index)
            yield where_it_is, "Ray would listen on the network; write --node-ip-address=127.0.0.1"
