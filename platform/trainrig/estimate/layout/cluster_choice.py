"""Choice of the devices and links that a run is estimated for."""

from dataclasses import dataclass

from trainrig.errors import ConfigError
from trainrig.estimate.layout.communication import Cluster
from trainrig.hardware import Hardware, HardwareLink

# Stands for the link of devices whose table entry names none. No time is predicted with it.
NO_LINK = HardwareLink(bandwidth=1.0, latency=1.0, between="devices", source="unknown")


@dataclass(frozen=True)
class ClusterWanted:
    """Devices that a run is planned for, as the options name them."""

    device: str | None = None  # None: the device of `instance`, or h100
    nodes: int | None = None  # number of machines; None: derived from `devices`
    devices: int | None = None  # None: derived from `nodes`, or the number of the run's workers
    instance: str | None = None  # None: the cheapest instance type with such devices
    interconnect: str | None = None  # None: the interconnect of the instance type


USUAL_DEVICE = "h100"


def build_cluster(wanted: ClusterWanted, offers: Hardware, workers: int) -> Cluster:
    """Return the cluster that the options name.

    Without a number of devices or machines, it has as many devices as the run has `workers`. Raises
    ConfigError if the options contradict each other; the message names what works.
    """
    name = _choose_device(wanted, offers)
    device = offers.find_device(name)
    instance = wanted.instance or offers.find_cheapest(name)
    if device.link is None:
        linked = ", ".join(
            sorted(other for other, other_device in offers.devices.items() if other_device.link)
        )
        raise ConfigError(
            f"plan: the table of hardware has no link of '{name}', which planning a layout needs; "
            f"add it, or choose one of these with --device: {linked or 'none has a link'}"
        )
    devices_per_machine = offers.find_instance(instance).devices if instance else 1
    devices = wanted.devices or (wanted.nodes * devices_per_machine if wanted.nodes else workers)
    if wanted.nodes and wanted.devices and wanted.nodes * devices_per_machine != wanted.devices:
        raise ConfigError(
            f"plan: {wanted.nodes} nodes with {devices_per_machine} {name} each have "
            f"{wanted.nodes * devices_per_machine} devices, and `devices` is {wanted.devices}; "
            "leave out one of the two"
        )
    if devices > devices_per_machine and devices % devices_per_machine:
        below = devices // devices_per_machine * devices_per_machine
        raise ConfigError(
            f"plan: {devices} {name} are not a whole number of machines of {devices_per_machine}; "
            f"use {below} or {below + devices_per_machine}"
        )
    across = None
    if wanted.interconnect is not None:
        across = offers.find_interconnect(wanted.interconnect)
    elif devices > devices_per_machine:
        across = offers.find_interconnect(_find_usual_interconnect(instance, offers))
    inside = offers.links[device.link]
    return Cluster(name, device, devices, devices_per_machine, inside, across, instance)


def _choose_device(wanted: ClusterWanted, offers: Hardware) -> str:
    if wanted.instance is None:
        return wanted.device or USUAL_DEVICE
    held = offers.find_instance(wanted.instance).device
    if wanted.device not in (None, held):
        raise ConfigError(
            f"plan: instance {wanted.instance} has devices '{held}', not '{wanted.device}'; "
            "leave out one of the two"
        )
    return held


def _find_usual_interconnect(instance: str | None, offers: Hardware) -> str:
    own = offers.instances[instance].interconnect if instance else None
    if own is None:
        there = ", ".join(name for name, link in offers.links.items() if link.between == "machines")
        raise ConfigError(
            f"plan: the table of hardware has no interconnect for machines of {instance}; choose "
            f"one as `layout.interconnect`: {there}"
        )
    return own


def build_rented_cluster(
    name: str, offers: Hardware, devices: int, instance: str | None = None
) -> Cluster:
    """Return `devices` devices of the kind `name`, in machines of `instance`.

    By default the machines are of the cheapest type with such devices. Without links in the table
    the cluster has NO_LINK, and `is_timed` is false of it.
    """
    device = offers.find_device(name)
    instance = instance or offers.find_cheapest(name)
    offer = offers.find_instance(instance) if instance else None
    per_machine = offer.devices if offer else 1
    across = offers.links[offer.interconnect] if offer and offer.interconnect else None
    inside = offers.links[device.link] if device.link else NO_LINK
    several = devices > per_machine
    return Cluster(
        name, device, devices, per_machine, inside, across if several else None, instance
    )


def is_timed(cluster: Cluster) -> bool:
    """Return whether the table of hardware has all figures that a predicted time needs."""
    device = cluster.device
    known = None not in (device.bandwidth, device.matmul, device.processors)
    several = cluster.devices > cluster.devices_per_machine
    linked = cluster.devices == 1 or cluster.inside is not NO_LINK
    return known and linked and not (several and cluster.across is None)
