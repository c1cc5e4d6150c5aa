"""Ray's AWS provider and trainrig's code around it, with a server of EC2's protocol."""

import datetime
import re

import boto3
import pytest
import yaml

from trainrig.errors import ClusterError, ConfigError
from trainrig.launch.clusters.cluster_down import DeletionTimeouts, take_down_cluster
from trainrig.launch.clusters.cluster_kinds import open_cluster
from trainrig.launch.clusters.cluster_status import find_leaks, read_cluster_status
from trainrig.launch.clusters.cluster_up import apply_stamp, bring_up_cluster
from trainrig.launch.clusters.machine_providers import read_time
from trainrig.launch.clusters.shipped_clusters import find_cluster
from trainrig.launch.supervise.run_record import Home

REGION = "us-east-1"
ELSEWHERE = "eu-west-1"
QUICK = DeletionTimeouts(total=30.0, between=0.1, settle=0.3)


@pytest.fixture
def account(s3_server, monkeypatch, tmp_path):
    """Set up an account with the resources that the cluster file names, and no instances."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray's provider writes keys below it
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield Account()
    for region in (REGION, ELSEWHERE):
        client = boto3.client("ec2", region, endpoint_url=s3_server)
        running = [i["InstanceId"] for i in instances(client)]
        if running:
            client.terminate_instances(InstanceIds=running)


class Account:
    def __init__(self):
        self.ec2 = boto3.client("ec2", REGION)
        iam = boto3.client("iam")
        for role in ("trainrig-head", "trainrig-worker"):
            try:
                iam.create_instance_profile(InstanceProfileName=role)
                iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}")
                iam.add_role_to_instance_profile(InstanceProfileName=role, RoleName=role)
            except iam.exceptions.EntityAlreadyExistsException:
                pass  # the server is shared by the whole session
        profile = iam.get_instance_profile(InstanceProfileName="trainrig-head")
        self.number = profile["InstanceProfile"]["Arn"].split(":")[4]
        (zone_a,) = self.ec2.describe_subnets(
            Filters=[{"Name": "availability-zone", "Values": [f"{REGION}a"]}]
        )["Subnets"]
        self.subnet = zone_a["SubnetId"]
        vpc = zone_a["VpcId"]
        self.group = self.ec2.describe_security_groups(
            Filters=[{"Name": "vpc-id", "Values": [vpc]}]
        )["SecurityGroups"][0]["GroupId"]
        self.image = self.ec2.describe_images()["Images"][0]["ImageId"]
        if not self.ec2.describe_key_pairs()["KeyPairs"]:
            self.ec2.create_key_pair(KeyName="trainrig")


@pytest.fixture
def cluster(account, tmp_path):
    """Return the shipped cluster file with a user's values filled in."""
    text = find_cluster("aws").read_text()
    for pattern, value in (
        ("111122223333", account.number),
        ("subnet-0{17}", account.subnet),
        ("sg-0{17}", account.group),
        ("ami-0{17}", account.image),
        ("sha256:0{64}", f"sha256:{'1' * 64}"),
    ):
        text = re.sub(pattern, value, text)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "trainrig.pem").write_text("no key\n")
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return open_cluster(str(path))


@pytest.fixture
def home(tmp_path):
    return Home.choose(str(tmp_path / "home"))


def instances(client):
    states = [{"Name": "instance-state-name", "Values": ["pending", "running", "stopped"]}]
    found = client.describe_instances(Filters=states)["Reservations"]
    return [instance for reservation in found for instance in reservation["Instances"]]


def start_workers(cluster, *pools):
    """Start workers as Ray's autoscaler on the head does, and return its provider."""
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.commands import _bootstrap_config

    config = _bootstrap_config(apply_stamp(dict(cluster.data), cluster.name), no_config_cache=True)
    provider = AWSNodeProvider(config["provider"], config["cluster_name"])
    for pool in pools:
        tags = {"ray-node-type": "worker", "ray-user-node-type": pool, "ray-node-name": "w"}
        provider.create_node(config["available_node_types"][pool]["node_config"], tags, 1)
    return provider


@pytest.mark.slow
def test_spot_nodes_have_their_tags_are_counted_and_are_gone_after_down(account, cluster, home):
    provider = start_workers(cluster, "cpu", "gpu")
    found = {m.pool: m for m in cluster.provider.machines("aws") if m.kind == "instance"}
    assert {pool: (m.instance, m.market, m.cluster) for pool, m in found.items()} == {
        "cpu": ("m7i.8xlarge", "spot", "aws"),
        "gpu": ("p5.48xlarge", "spot", "aws"),
    }
    with pytest.raises(ConfigError, match="aws is already up"):
        bring_up_cluster(cluster, print)
    left = read_time(found["gpu"].expires) - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(hours=23) < left < datetime.timedelta(hours=24)
    seen = read_cluster_status(cluster, home)
    assert seen.nodes == {"cpu": 1, "gpu": 1} and seen.usd > 10 and not seen.runs
    account.ec2.terminate_instances(InstanceIds=[found["gpu"].id])  # simulates a preemption
    assert provider.non_terminated_nodes({}) == [found["cpu"].id]
    assert read_cluster_status(cluster, home).nodes == {"cpu": 1}
    assert take_down_cluster(cluster, home, print, QUICK) >= 1
    assert instances(account.ec2) == [] and cluster.provider.machines("aws") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "regions", [[REGION, ELSEWHERE], pytest.param(None, marks=pytest.mark.chaos)]
)
def test_an_orphan_is_listed_from_any_region_and_left_alone(account, cluster, regions):
    client = boto3.client("ec2", ELSEWHERE)
    tags = [
        {"Key": "trainrig:cluster", "Value": "aws"},
        {"Key": "trainrig:expires", "Value": "2026-01-31T00:00:00Z"},
    ]
    image = client.describe_images()["Images"][0]["ImageId"]
    (orphan,) = client.run_instances(
        ImageId=image,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )["Instances"]
    volume = account.ec2.create_volume(
        AvailabilityZone=f"{REGION}a",
        Size=1,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags[:1]}],
    )
    try:
        found = find_leaks(cluster, regions, all_of_ours=False)
        assert [(m.id, m.place, m.kind, m.expired) for m in found] == [
            (orphan["InstanceId"], ELSEWHERE, "instance", True),
            (volume["VolumeId"], REGION, "volume", False),
        ]
        assert find_leaks(cluster, [REGION], all_of_ours=True) == found[1:]
        assert len(instances(client)) == 1
    finally:
        account.ec2.delete_volume(VolumeId=volume["VolumeId"])


@pytest.mark.slow
def test_a_cluster_with_a_live_run_is_not_taken_down(account, cluster, home):
    start_workers(cluster, "cpu")
    record = home.create("pretrain", "s3://bucket/out")
    record.take_attempt("one", "http://10.0.0.1:8265", "aws", {})
    with pytest.raises(ConfigError, match=rf"aws: runs are live on it: {record.id} \(queued\)"):
        take_down_cluster(cluster, home, print, QUICK)
    assert len(instances(account.ec2)) == 1
    record.record("ended", 1, state="done")
    take_down_cluster(cluster, home, print, QUICK)
    assert instances(account.ec2) == []


@pytest.mark.slow
def test_an_unreadable_count_is_not_zero(cluster, home, monkeypatch, closed_port):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    dark = open_cluster(str(cluster.path))
    for act in (
        lambda: take_down_cluster(dark, home, print, QUICK),
        lambda: read_cluster_status(dark, home),
        lambda: find_leaks(dark, [REGION], all_of_ours=True),
    ):
        with pytest.raises(ClusterError, match="AWS, "):
            act()


@pytest.mark.slow
@pytest.mark.soak
def test_a_head_that_never_answers_is_given_up_and_ended(account, cluster):
    said = []
    with pytest.raises(ClusterError, match="up after 30 s"):
        bring_up_cluster(cluster, said.append, seconds=30.0)
    assert instances(account.ec2) == []
    assert said[-1] == "no machines are left", said
    heads = [{"Name": "tag:ray-node-type", "Values": ["head"]}]
    (started,) = account.ec2.describe_instances(Filters=heads)["Reservations"]
    tags = {tag["Key"]: tag["Value"] for tag in started["Instances"][0]["Tags"]}
    assert tags["trainrig:cluster"] == "aws"
    assert read_time(tags["trainrig:expires"]) is not None


@pytest.mark.slow
def test_nothing_is_rented_with_unfilled_placeholders(account):
    with pytest.raises(ConfigError, match=r"aws\.yaml:"):
        bring_up_cluster(open_cluster(str(find_cluster("aws"))), print)


def test_hours_become_a_time_and_a_time_is_kept():
    text = find_cluster("aws").read_text().replace("24h", '"2026-11-30T18:00:00Z"')
    kind = apply_stamp(yaml.safe_load(text), "aws")["available_node_types"]["gpu"]
    tags = {t["Key"]: t["Value"] for t in kind["node_config"]["TagSpecifications"][0]["Tags"]}
    assert tags == {"trainrig:cluster": "aws", "trainrig:expires": "2026-11-30T18:00:00Z"}
    assert kind["labels"]["trainrig.io/cluster"] == "aws"
