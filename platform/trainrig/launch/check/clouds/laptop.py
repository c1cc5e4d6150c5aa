"""Checks of a cluster on this machine alone: it is not reachable from outside, and free."""

from collections.abc import Iterator
from typing import Any

from trainrig.hardware import OWN
from trainrig.launch.check.document import Found, ensure_list, ensure_table
from trainrig.launch.check.pools import INSTANCE, MARKET
from trainrig.launch.check.ray_file import list_node_types


def check_laptop(data: dict[str, Any]) -> Iterator[Found]:
    """Find the problems of a local cluster file that Ray's own rules do not cover."""
    provider = ensure_table(data.get("provider"))
    if provider.get("disable_node_updaters") is not True:
        yield (
            ("provider", "disable_node_updaters"),
            "a local cluster has no machines to log in to; write true",
        )
    if not ensure_table(data.get("auth")).get("ssh_user"):
        yield (), "`auth.ssh_user` is missing; Ray's monitor needs it, whatever its value"
    if data.get("docker"):
        yield ("docker",), "a local cluster runs no containers; leave it out"
    for name, node_type in list_node_types(data).items():
        where = ("available_node_types", name)
        if ensure_table(node_type.get("node_config")):
            yield (*where, "node_config"), "a local cluster rents no machines; write {}"
        labels = ensure_table(node_type.get("labels"))
        if (instance := labels.get(INSTANCE, OWN)) != OWN:
            yield (*where, "labels", INSTANCE), f"'{instance}' cannot be rented here; write {OWN}"
        if labels.get(MARKET) == "spot":
            yield (*where, "labels", MARKET), "this machine is never preempted; write on-demand"
    for index, command in enumerate(ensure_list(data.get("head_start_ray_commands"))):
        if "ray start" in str(command) and "--node-ip-address=127.0.0.1" not in str(command):
            where_it_is = ("head_start_ray_commands", index)
            yield where_it_is, "Ray would listen on the network; write --node-ip-address=127.0.0.1"
