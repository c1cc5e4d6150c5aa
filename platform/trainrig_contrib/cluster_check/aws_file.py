"""Checks of AWS cluster files: shape by botocore's model of EC2, safety and cost.

AWS checks the request that starts an instance against that model only minutes later, when Ray's
autoscaler on the head makes it. Ray's schema does not look into `node_config`, so a typo there
would give a cluster that never grows, with the reason in a log of the head.
"""

import functools
from collections.abc import Iterator
from typing import Any

from trainrig.hardware import INSTANCE_LABEL, MARKET_LABEL, Hardware
from trainrig.launch.clusters import cluster_yaml
from trainrig.launch.clusters.cluster_file import list_node_types
from trainrig_contrib.cluster_check.ray_file import check_tags
from trainrig_contrib.cluster_check.schema_differences import find_differences

SERVICE = "ec2"
REQUEST = "RunInstancesRequest"
# Key of Ray: a list of subnets, of which each node gets the first with free addresses.
OF_RAY = {"SubnetIds": {"type": "array", "items": {"type": "string"}, "minItems": 1}}
# Ray overwrites these keys, so a value in the file would be lost
SET_BY_RAY = {"MinCount", "MaxCount", "SubnetId", "DryRun"}

_SCALARS = {
    "boolean": "boolean",
    "integer": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "string": "string",
    "blob": "string",
    "timestamp": "string",
}


@functools.cache
def build_node_schema() -> dict[str, Any]:
    """Return the schema of `node_config` of an AWS node type. Reading the model takes a second."""
    import botocore.session

    model = botocore.session.get_session().get_service_model(SERVICE)
    schema = _convert_to_schema(model.shape_for(REQUEST))
    known = {
        name: member for name, member in schema["properties"].items() if name not in SET_BY_RAY
    }
    schema["properties"] = known | OF_RAY
    schema.pop("required", None)
    return schema


def _convert_to_schema(shape: Any) -> dict[str, Any]:
    if shape.type_name == "structure":
        members = {name: _convert_to_schema(member) for name, member in shape.members.items()}
        schema = {"type": "object", "properties": members, "additionalProperties": False}
        return schema | ({"required": shape.required_members} if shape.required_members else {})
    if shape.type_name == "list":
        return {"type": "array", "items": _convert_to_schema(shape.member)}
    if shape.type_name == "map":
        return {"type": "object", "additionalProperties": _convert_to_schema(shape.value)}
    schema = {"type": _SCALARS[shape.type_name]}
    return schema | ({"enum": list(shape.enum)} if getattr(shape, "enum", None) else {})


Where = tuple[str | int, ...]
TAGS = ("trainrig:cluster", "trainrig:expires")
RAYS_OWN = "ray-autoscaler-v1"  # role and profile created by Ray, with all rights to EC2 and S3
HOPS = 2  # hops from a container to the metadata service; one more than from the machine


def check_aws(data: dict[str, Any], hardware: Hardware) -> Iterator[cluster_yaml.Found]:
    """Find the problems of an AWS cluster file that Ray's own rules do not cover."""
    yield from _check_provider(cluster_yaml.ensure_table(data.get("provider")))
    profiles: dict[str, str] = {}
    for name, node_type in list_node_types(data).items():
        where: Where = ("available_node_types", name, "node_config")
        config = cluster_yaml.ensure_table(node_type.get("node_config"))
        yield from find_differences(config, build_node_schema(), where)
        yield from _check_machine(config, node_type, where, hardware)
        yield from _check_metadata(config, where)
        yield from _check_disks(config, where)
        yield from _check_network(config, where)
        yield from _check_tags(config, where, data.get("cluster_name"))
        yield from _check_profile(config, where)
        profiles[name] = str(cluster_yaml.at(config, "IamInstanceProfile", "Arn") or "")
    yield from _check_shared_profile(profiles, data.get("head_node_type"))


def _check_provider(provider: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    if provider.get("cache_stopped_nodes", True) is not False:
        what = "stopped machines keep their disks, which cost money; write false"
        yield ("provider", "cache_stopped_nodes"), what
    if provider.get("use_internal_ips") is not True:
        yield ("provider", "use_internal_ips"), "machines would get public addresses; write true"
    region = provider.get("region")
    zones = str(provider.get("availability_zone", ""))
    if not region:
        yield ("provider",), "`region` is missing"
    for zone in filter(None, zones.split(",")):
        if region and not zone.startswith(str(region)):
            yield ("provider", "availability_zone"), f"'{zone}' is not in region {region}"
    for index, rule in enumerate(
        cluster_yaml.ensure_list(cluster_yaml.at(provider, "security_group", "IpPermissions"))
    ):
        if "0.0.0.0/0" in str(rule) or "::/0" in str(rule):
            where = ("provider", "security_group", "IpPermissions", index)
            yield where, "open to the whole internet; name the addresses that you log in from"


def _check_machine(
    config: dict[str, Any], node_type: dict[str, Any], where: Where, hardware: Hardware
) -> Iterator[cluster_yaml.Found]:
    instance = config.get("InstanceType")
    labels = cluster_yaml.ensure_table(node_type.get("labels"))
    if instance is None:
        yield where, "`InstanceType` is missing"
        return
    of_labels = (*where[:-1], "labels")
    if labels.get(INSTANCE_LABEL, instance) != instance:
        what = (
            f"'{labels[INSTANCE_LABEL]}', but InstanceType is '{instance}'; "
            "costs are computed from the label"
        )
        yield (*of_labels, INSTANCE_LABEL), what
    rented = cluster_yaml.at(config, "InstanceMarketOptions", "MarketType")
    if labels.get(MARKET_LABEL) == "spot" and rented != "spot":
        what = "the label says spot, but no InstanceMarketOptions: { MarketType: spot } asks for it"
        yield (*of_labels, MARKET_LABEL), what
    elif labels.get(MARKET_LABEL) == "on-demand" and rented == "spot":
        yield (*where, "InstanceMarketOptions", "MarketType"), "the label says on-demand"
    behaviour = cluster_yaml.at(
        config, "InstanceMarketOptions", "SpotOptions", "InstanceInterruptionBehavior"
    )
    if behaviour in {"hibernate", "stop"}:
        yield (
            (*where, "InstanceMarketOptions", "SpotOptions", "InstanceInterruptionBehavior"),
            (
                f"{behaviour}: the machine gets no notice to save in, or its disks keep "
                "costing money; write terminate"
            ),
        )
    yield from check_resources(
        cluster_yaml.ensure_table(node_type.get("resources")), str(instance), where, hardware
    )


def check_resources(
    resources: dict[str, Any], instance: str, where: Where, hardware: Hardware
) -> Iterator[cluster_yaml.Found]:
    """Check that a node offers no more than its machine has, or its work would wait for ever."""
    offer = hardware.instances.get(instance)
    if offer is None:
        return
    has = {"CPU": offer.vcpus, "GPU": hardware.count_accelerators(instance)}
    for kind, count in has.items():
        asked = resources.get(kind, 0)
        if isinstance(asked, int) and asked > count:
            yield (*where[:-1], "resources", kind), f"{asked}, but {instance} has {count}"


def _check_metadata(config: dict[str, Any], where: Where) -> Iterator[cluster_yaml.Found]:
    options = cluster_yaml.ensure_table(config.get("MetadataOptions"))
    here = (*where, "MetadataOptions")
    if options.get("HttpTokens") != "required":
        what = "IMDSv1 gives credentials to any request; write HttpTokens: required"
        yield (*here, "HttpTokens"), what
    if options.get("HttpPutResponseHopLimit") != HOPS:
        what = f"a container needs {HOPS} hops to reach the service; write {HOPS}"
        yield (*here, "HttpPutResponseHopLimit"), what
    if options.get("HttpEndpoint") == "disabled":
        yield (
            (*here, "HttpEndpoint"),
            "without the metadata service no preemption notice arrives; write enabled",
        )


def _check_disks(config: dict[str, Any], where: Where) -> Iterator[cluster_yaml.Found]:
    disks = cluster_yaml.ensure_list(config.get("BlockDeviceMappings"))
    if not disks:
        yield (
            where,
            (
                "no BlockDeviceMappings; the image's own disk is small and not encrypted. Add an "
                "encrypted disk"
            ),
        )
    for index, disk in enumerate(disks):
        ebs = cluster_yaml.ensure_table(cluster_yaml.ensure_table(disk).get("Ebs"))
        here = (*where, "BlockDeviceMappings", index, "Ebs")
        if not ebs:
            continue
        if ebs.get("Encrypted") is not True:
            yield here, "the disk is not encrypted; write Encrypted: true"
        if ebs.get("DeleteOnTermination") is not True:
            yield here, "the disk stays when the machine ends; write DeleteOnTermination: true"
        if ebs.get("VolumeType") != "gp3":
            yield here, "gp3 is faster and cheaper than the default type; write VolumeType: gp3"


def _check_network(config: dict[str, Any], where: Where) -> Iterator[cluster_yaml.Found]:
    cards = cluster_yaml.ensure_list(config.get("NetworkInterfaces"))
    for index, card in enumerate(cards):
        if cluster_yaml.ensure_table(card).get("AssociatePublicIpAddress") is True:
            here = (*where, "NetworkInterfaces", index, "AssociatePublicIpAddress")
            yield here, "the machine gets a public address; write false"
    for key in ("SubnetIds", "SecurityGroupIds"):
        if not cards and not config.get(key):
            yield where, f"`{key}` is missing, so Ray would choose one, which may be public"


def _check_tags(config: dict[str, Any], where: Where, cluster: Any) -> Iterator[cluster_yaml.Found]:
    given: dict[str, tuple[int, dict[str, Any]]] = {}
    for index, specification in enumerate(
        cluster_yaml.ensure_list(config.get("TagSpecifications"))
    ):
        pairs = [
            cluster_yaml.ensure_table(pair)
            for pair in cluster_yaml.ensure_list(
                cluster_yaml.ensure_table(specification).get("Tags")
            )
        ]
        tags = {str(pair.get("Key")): pair.get("Value") for pair in pairs}
        given[str(cluster_yaml.ensure_table(specification).get("ResourceType"))] = (index, tags)
    for kind in ("instance", "volume"):
        if kind not in given:
            yield (
                where,
                (
                    f"no TagSpecifications of ResourceType {kind}; leaked machines and disks are "
                    "found by tags"
                ),
            )
            continue
        index, tags = given[kind]
        here = (*where, "TagSpecifications", index, "Tags")
        yield from check_tags(tags, here, cluster, TAGS)


def _check_profile(config: dict[str, Any], where: Where) -> Iterator[cluster_yaml.Found]:
    profile = cluster_yaml.ensure_table(config.get("IamInstanceProfile"))
    name = str(profile.get("Arn") or profile.get("Name") or "")
    if not name:
        yield (
            where,
            (
                f"no IamInstanceProfile, so Ray would make {RAYS_OWN}, with full access to EC2 "
                "and S3"
            ),
        )
    elif RAYS_OWN in name:
        what = (
            f"{RAYS_OWN} has full access to EC2 and S3; make a profile from cluster/iam "
            "(docs/aws.md)"
        )
        yield (*where, "IamInstanceProfile"), what


def _check_shared_profile(profiles: dict[str, str], head: Any) -> Iterator[cluster_yaml.Found]:
    for name, profile in profiles.items():
        if name != head and profile and profile == profiles.get(str(head)):
            where = ("available_node_types", name, "node_config", "IamInstanceProfile")
            yield (
                where,
                "this is the head's profile, which may rent machines; give workers another one",
            )
