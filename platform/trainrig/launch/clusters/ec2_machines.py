"""Provider for instances, spot requests and volumes of an AWS account, found by their tags."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainrig.errors import ClusterError
from trainrig.launch.clusters.machine_providers import CLUSTER_TAG, EXPIRES_TAG, CloudMachine

RAY_TAG = "ray-cluster-name"
POOL_TAG = "ray-user-node-type"
KIND_TAG = "ray-node-type"
# States without cost. A stopped instance's disks cost money, and it may be started again.
GONE = {"terminated", "shutting-down"}
LIVE = ["pending", "running", "stopping", "stopped", "shutting-down"]
REGIONS_AT_ONCE = 16


class EC2:
    """Machines of trainrig's clusters in `regions`; None: in all regions of the account."""

    def __init__(self, regions: Sequence[str] | None = None) -> None:
        self._regions = regions
        self._clients: dict[str, Any] = {}

    def machines(self, cluster: str | None) -> Sequence[CloudMachine]:
        """List machines; see Provider."""
        regions = self._regions or self._list_regions()
        with ThreadPoolExecutor(REGIONS_AT_ONCE) as threads:
            found = list(threads.map(lambda region: self._list_region(region, cluster), regions))
        return [machine for machines in found for machine in machines]

    def end(self, machines: Sequence[CloudMachine]) -> None:
        """End machines; see Provider. Heads come first, as they would start others."""
        leading = [machine for machine in machines if machine.head]
        for some in (leading, [machine for machine in machines if not machine.head]):
            for region in sorted({machine.place for machine in some}):
                ids: dict[str, list[str]] = {}
                for machine in some:
                    if machine.place == region and machine.state not in GONE:
                        ids.setdefault(machine.kind, []).append(machine.id)
                with _said(region):
                    self._end_in(region, ids)

    def _end_in(self, region: str, ids: Mapping[str, list[str]]) -> None:
        client = self._open_client(region)
        # first, as an open request may still start an instance
        if requests := ids.get("spot request"):
            client.cancel_spot_instance_requests(SpotInstanceRequestIds=requests)
        if instances := ids.get("instance"):
            client.terminate_instances(InstanceIds=instances)
        for volume in ids.get("volume", []):
            client.delete_volume(VolumeId=volume)

    def _list_regions(self) -> Sequence[str]:
        with _said("the regions of the account (name some with --region)"):
            found = self._open_client(None).describe_regions()["Regions"]
        return [region["RegionName"] for region in found]

    def _list_region(self, region: str, cluster: str | None) -> list[CloudMachine]:
        with _said(region):
            client = self._open_client(region)
            return [
                *_list_instances(client, region, cluster),
                *_list_spot_requests(client, region, cluster),
                *_list_volumes(client, region, cluster),
            ]

    def _open_client(self, region: str | None) -> Any:
        import boto3
        from botocore.config import Config

        name = region or "us-east-1"
        if name not in self._clients:
            retries = {"mode": "standard", "max_attempts": 5}
            settings = Config(retries=retries, connect_timeout=10, read_timeout=30)
            self._clients[name] = boto3.client("ec2", region_name=name, config=settings)
        return self._clients[name]


def _list_instances(client: Any, region: str, cluster: str | None) -> Iterator[CloudMachine]:
    live = {"Name": "instance-state-name", "Values": LIVE}
    for found in _list_tagged(
        client, "describe_instances", "Reservations", "InstanceId", live, cluster
    ):
        yield _parse_machine(
            found["InstanceId"],
            "instance",
            found["State"]["Name"],
            region,
            found,
            instance=found["InstanceType"],
            market="spot" if found.get("InstanceLifecycle") == "spot" else "on-demand",
        )


def _list_spot_requests(client: Any, region: str, cluster: str | None) -> Iterator[CloudMachine]:
    named = "describe_spot_instance_requests", "SpotInstanceRequests", "SpotInstanceRequestId"
    for found in _list_tagged(client, *named, {"Name": "state", "Values": ["open"]}, cluster):
        id_ = found["SpotInstanceRequestId"]
        yield _parse_machine(id_, "spot request", found["State"], region, found, market="spot")


def _list_volumes(client: Any, region: str, cluster: str | None) -> Iterator[CloudMachine]:
    """Yield volumes without an instance; attached ones are deleted with theirs."""
    loose = {"Name": "status", "Values": ["available", "error"]}
    for found in _list_tagged(client, "describe_volumes", "Volumes", "VolumeId", loose, cluster):
        yield _parse_machine(found["VolumeId"], "volume", found["State"], region, found)


def _list_tagged(
    client: Any, request: str, key: str, id_key: str, state: Mapping[str, Any], cluster: str | None
) -> Iterator[dict[str, Any]]:
    """Yield each answer to `request` once, by either tag: Ray's is there without trainrig's."""
    seen = set()
    for ours in _build_filters(cluster):
        for page in client.get_paginator(request).paginate(Filters=[ours, state]):
            for item in page[key]:
                for found in item.get("Instances", [item]):  # a reservation has several
                    if found[id_key] not in seen:
                        seen.add(found[id_key])
                        yield found


def _build_filters(cluster: str | None) -> list[dict[str, Any]]:
    if cluster is None:
        return [{"Name": "tag-key", "Values": [CLUSTER_TAG, RAY_TAG]}]
    return [{"Name": f"tag:{tag}", "Values": [cluster]} for tag in (CLUSTER_TAG, RAY_TAG)]


def _parse_machine(
    id_: str, kind: str, state: str, region: str, found: Mapping[str, Any], **more: str
) -> CloudMachine:
    tags = {tag["Key"]: tag["Value"] for tag in found.get("Tags") or []}
    pool = "head" if tags.get(KIND_TAG) == "head" else tags.get(POOL_TAG, "")
    cluster = tags.get(CLUSTER_TAG) or tags.get(RAY_TAG, "")
    return CloudMachine(
        id_, kind, cluster, state, region, pool, expires=tags.get(EXPIRES_TAG, ""), **more
    )


class _said:
    """Context that converts errors of AWS and of the network to ClusterError with the place."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        if isinstance(error, BotoCoreError | ClientError):
            raise ClusterError(f"AWS, {self._place}: {error}") from None
