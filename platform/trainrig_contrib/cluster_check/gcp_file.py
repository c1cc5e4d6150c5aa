"""Checks of Google Cloud cluster files: shape by the service's description, and safety."""

import functools
import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

from trainrig.hardware import INSTANCE_LABEL, MARKET_LABEL, Hardware
from trainrig.launch.clusters import cluster_yaml
from trainrig.launch.clusters.cluster_file import list_node_types
from trainrig_contrib.cluster_check.aws_file import Where, check_resources
from trainrig_contrib.cluster_check.ray_file import check_tags
from trainrig_contrib.cluster_check.schema_differences import find_differences

LABELS = ("trainrig-cluster", "trainrig-expires")
# this account may do almost everything in its project
DEFAULT_ACCOUNT = "-compute@developer.gserviceaccount.com"
RAYS_ACCOUNT = "ray-autoscaler-sa-v1"


@functools.cache
def load_node_schema() -> dict[str, Any]:
    """Return the schema of a machine's `node_config`; the schema file names its source."""
    text = resources.files("trainrig_contrib.cluster_check").joinpath("schemas/gcp_instance.json")
    schema: dict[str, Any] = json.loads(text.read_text())
    return {"$ref": "#/definitions/Instance", "definitions": schema["definitions"]}


def check_gcp(data: dict[str, Any], hardware: Hardware) -> Iterator[cluster_yaml.Found]:
    """Find the problems of a GCP cluster file that Ray's own rules do not cover."""
    yield from _check_provider(cluster_yaml.ensure_table(data.get("provider")))
    accounts: dict[str, str] = {}
    for name, node_type in list_node_types(data).items():
        where: Where = ("available_node_types", name, "node_config")
        config = cluster_yaml.ensure_table(node_type.get("node_config"))
        yield from find_differences(config, load_node_schema(), where)
        yield from _check_machine(config, node_type, where, hardware)
        yield from _check_scheduling(config, node_type, where, hardware)
        yield from _check_disks(config, where)
        yield from _check_network(config, where)
        labels = cluster_yaml.ensure_table(config.get("labels"))
        here = (*where, "labels")
        yield from check_tags(labels, here, data.get("cluster_name"), LABELS)
        yield from _check_account(config, where)
        accounts[name] = str(cluster_yaml.at(config, "serviceAccounts", 0, "email") or "")
    head = accounts.get(str(data.get("head_node_type")))
    for name, account in accounts.items():
        if name != data.get("head_node_type") and account and account == head:
            here = ("available_node_types", name, "node_config", "serviceAccounts")
            yield (
                here,
                "this is the head's account, which may rent machines; give workers another one",
            )


def _check_provider(provider: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    for key in ("project_id", "region", "availability_zone"):
        if not provider.get(key):
            yield ("provider",), f"`{key}` is missing"
    zone = str(provider.get("availability_zone", ""))
    region = str(provider.get("region", ""))
    if zone and region and not zone.startswith(region):
        yield ("provider", "availability_zone"), f"'{zone}' is not in region {region}"
    if provider.get("use_internal_ips") is not True:
        yield ("provider", "use_internal_ips"), "machines would get public addresses; write true"
    if provider.get("cache_stopped_nodes", False) is not False:
        what = "stopped machines keep their disks, which cost money; write false"
        yield ("provider", "cache_stopped_nodes"), what


def _check_machine(
    config: dict[str, Any], node_type: dict[str, Any], where: Where, hardware: Hardware
) -> Iterator[cluster_yaml.Found]:
    machine = config.get("machineType")
    labels = cluster_yaml.ensure_table(node_type.get("labels"))
    if machine is None:
        yield where, "`machineType` is missing"
        return
    short = str(machine).rpartition("/")[2]
    if labels.get(INSTANCE_LABEL, short) != short:
        what = (
            f"'{labels[INSTANCE_LABEL]}', but machineType is '{short}'; "
            "costs are computed from the label"
        )
        yield (*where[:-1], "labels", INSTANCE_LABEL), what
    yield from check_resources(
        cluster_yaml.ensure_table(node_type.get("resources")), short, where, hardware
    )


def _check_scheduling(
    config: dict[str, Any], node_type: dict[str, Any], where: Where, hardware: Hardware
) -> Iterator[cluster_yaml.Found]:
    scheduling = cluster_yaml.ensure_table(config.get("scheduling"))
    here = (*where, "scheduling")
    market = cluster_yaml.ensure_table(node_type.get("labels")).get(MARKET_LABEL)
    is_spot = scheduling.get("provisioningModel") == "SPOT"
    if scheduling.get("preemptible") is True:
        yield (
            (*here, "preemptible"),
            "ends after 24 hours, whatever runs; write provisioningModel: SPOT",
        )
    elif market == "spot" and not is_spot:
        what = "the label says spot, but no scheduling: { provisioningModel: SPOT } asks for it"
        yield (*where[:-1], "labels", MARKET_LABEL), what
    elif market == "on-demand" and is_spot:
        yield (*here, "provisioningModel"), "the label says on-demand"
    if not is_spot:
        return
    if scheduling.get("instanceTerminationAction") != "DELETE":
        what = "a preempted machine must be deleted, or its disks keep costing money; write DELETE"
        yield (*here, "instanceTerminationAction"), what
    if scheduling.get("automaticRestart") is not False:
        yield (*here, "automaticRestart"), "a spot machine cannot be restarted; write false"
    machine = str(config.get("machineType"))
    contains_gpus = machine in hardware.instances and hardware.count_accelerators(machine) > 0
    if contains_gpus and scheduling.get("onHostMaintenance") != "TERMINATE":
        yield (*here, "onHostMaintenance"), "GPUs cannot move while they run; write TERMINATE"


def _check_disks(config: dict[str, Any], where: Where) -> Iterator[cluster_yaml.Found]:
    disks = cluster_yaml.ensure_list(config.get("disks"))
    if not any(cluster_yaml.ensure_table(disk).get("boot") is True for disk in disks):
        yield where, "no entry of `disks` is the boot disk; write boot: true"
    for index, disk in enumerate(disks):
        if cluster_yaml.ensure_table(disk).get("autoDelete") is not True:
            yield (
                (*where, "disks", index),
                "the disk stays when the machine ends; write autoDelete: true",
            )


def _check_network(config: dict[str, Any], where: Where) -> Iterator[cluster_yaml.Found]:
    cards = cluster_yaml.ensure_list(config.get("networkInterfaces"))
    if not cards:
        yield (
            where,
            "`networkInterfaces` is missing, so Ray would choose one, with a public address",
        )
    for index, card in enumerate(cards):
        if cluster_yaml.ensure_table(card).get("accessConfigs"):
            here = (*where, "networkInterfaces", index, "accessConfigs")
            yield here, "the machine gets a public address; leave it out"


def _check_account(config: dict[str, Any], where: Where) -> Iterator[cluster_yaml.Found]:
    accounts = cluster_yaml.ensure_list(config.get("serviceAccounts"))
    email = str(cluster_yaml.at(accounts, 0, "email") or "")
    if not email:
        yield (
            where,
            (
                "no serviceAccounts; the machine would get the project's default account, which "
                "may do everything"
            ),
        )
    elif email.endswith(DEFAULT_ACCOUNT) or RAYS_ACCOUNT in email or email == "default":
        what = (
            f"'{email}' may do far more than needed; make two accounts for this cluster "
            "(docs/gcp.md)"
        )
        yield (*where, "serviceAccounts", 0, "email"), what
