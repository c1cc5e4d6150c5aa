"""Every mistake injected into a shipped cluster file is reported, with its line.

One mistake at a time, as people make them: a misspelt word, swapped bounds, something unsafe.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from trainrig_contrib.cluster_check.cluster_check import check_cluster

CLUSTER = Path(__file__).parents[3] / "cluster"


@dataclass(frozen=True)
class Seed:
    """One mistake: the first `old` that follows `after` becomes `new`."""

    old: str
    new: str
    says: str  # part of the message about it
    after: str = ""  # empty: from the beginning
    # The message's line is the first after `after` with this text; empty: the changed line.
    at: str = ""

    def sow(self, text: str) -> tuple[str, int]:
        """Return the text with the mistake in it, and the line that must be reported."""
        begin = text.index(self.after)
        place = text.index(self.old, begin)
        sown = text[:place] + self.new + text[place + len(self.old) :]
        found = sown.index(self.at, begin) if self.at else place
        return sown, sown[:found].count("\n") + 1


HEAD_START = "\nhead_start_ray_commands:"
WORKER_START = "\nworker_start_ray_commands:"
DIGEST = "sha256:" + 64 * "0"

AWS = [
    Seed(
        "p5.48xlarge",
        "p5.48xlrge",
        "did you mean 'p5.48xlarge'?",
        "    node_config:\n      InstanceType: p5",
    ),
    Seed("MarketType: spot", "MarketTyp: spot", "did you mean 'MarketType'?"),
    Seed(
        "MarketType: spot", "MarketType: sport", "'sport' is not one of the choices; did you mean"
    ),
    Seed("VolumeSize: 300", "VolumeSize: large", "should be a whole number, found 'large'"),
    Seed("HttpTokens: required", "HttpTokens: optional", "IMDSv1 gives credentials"),
    Seed("HopLimit: 2", "HopLimit: 1", "needs 2 hops"),
    Seed("stopped_nodes: false", "stopped_nodes: true", "stopped machines keep their disks"),
    Seed("internal_ips: true", "internal_ips: false", "would get public addresses"),
    Seed("CPU: 0, GPU: 0", "CPU: 8, GPU: 0", "the head must have CPU: 0"),
    Seed("min_workers: 0", "min_workers: 20", "more than max_workers (16)", "\n  cpu:"),
    Seed("trainrig.launch.spot", "nothing", "without the agent", WORKER_START, "worker_start"),
    Seed("--provider aws", "--provider gcp", "another cloud's", WORKER_START, "- >-"),
    Seed("2>&1 < /dev/null &", "2>&1 < /dev/null", "the background", WORKER_START, "- >-"),
    Seed("/trainrig-worker", "/ray-autoscaler-v1", "full access to EC2 and S3"),
    Seed("/trainrig-worker", "/trainrig-head", "the head's profile"),
    Seed('"trainrig:expires"', '"expires"', "no tag `trainrig:expires`", at="Tags: &pairs"),
    Seed("Value: 24h", "Value: later", "`trainrig:expires` is 'later'", at="Tags: &pairs"),
    Seed("host=127.0.0.1", "host=0.0.0.0", "listen on loopback only", HEAD_START, "- >-"),
    Seed("RAY_AUTH_MODE=token ray", "ray", "anyone who reaches the port", HEAD_START, "- >-"),
    Seed("idle_timeout_minutes: 5", "idle_timeout_minutes: 600", "idle machines cost"),
    Seed("idle_timeout_minutes", "idle_timeout_minuts", "did you mean 'idle_timeout_minutes'?"),
    Seed("availability_zone", "availabilty_zone", "did you mean 'availability_zone'?"),
    Seed("pool: gpu", "pool: gpus", "but the pool is named 'gpu'"),
    Seed("instance: m7i.8xlarge", "instance: m7i.4xlarge", "but InstanceType is 'm7i.8xlarge'"),
    Seed("market: spot", "market: on-demand", "on-demand", at="MarketType: spot"),
    Seed("GPU: 8", "GPU: 16", "16, but p5.48xlarge has 8"),
    Seed("head_node_type: head", "head_node_type: heed", "did you mean 'head'?"),
    Seed("Encrypted: true", "Encrypted: false", "the disk is not encrypted"),
    Seed("DeleteOnTermination: true", "DeleteOnTermination: false", "stays when the machine ends"),
    Seed("upscaling_speed: 1.0", "max_workers: 30", "occurs twice (first in line 10)"),
    Seed("us-east-1a,", "us-west-2a,", "'us-west-2a' is not in region us-east-1"),
    Seed("_MODE=token", "_TOKEN=0123456789abcdef", "the value of RAY_AUTH_TOKEN in the file"),
    Seed("Behavior: terminate", "Behavior: hibernate", "no notice to save in"),
    Seed("--shm-size", "--shm-siz", "no --shm-size", at="run_options"),
    Seed(f"@{DIGEST}", ":latest", "may differ between two nodes"),
    Seed("[subnet-00000000000000000]", "subnet-00000000000000000", "should be a list", "\n  gpu:"),
]

GCP = [
    Seed("machineType: a3", "machinType: a3", "did you mean 'machineType'?"),
    Seed("provisioningModel: SPOT", "provisioningModel: SPOTS", "did you mean 'SPOT'?"),
    Seed("Action: DELETE", "Action: STOP", "its disks keep costing money; write DELETE"),
    Seed("provisioningModel: SPOT", "preemptible: true", "ends after 24 hours"),
    Seed("diskSizeGb: 300", "diskSizeGB: 300", "did you mean 'diskSizeGb'?"),
    Seed("autoDelete: true", "autoDelete: 1", "should be true or false, found 1"),
    Seed("onHostMaintenance: TERM", "onHostMaintenance: x", "not one of the choices"),
    Seed("trainrig # YOURS", "trainrig\n          accessConfigs: [{}]", "a public address",
         "networkInterfaces", "accessConfigs: [{}]"),
    Seed("expires: 24h", "expires: tomorrow", "is 'tomorrow'; write hours", at="labels: &labels"),
    Seed("trainrig-worker@my-project", "trainrig-head@my-project", "the head's account",
         at="serviceAccounts: &worker"),
    Seed("trainrig-worker@my-project.iam", "1-compute@developer", "may do far more than needed"),
    Seed("CPU: 0, GPU: 0", "CPU: 4, GPU: 0", "the head must have CPU: 0"),
    Seed("region: us-central1", "region: us-east4", "is not in region us-east4", at="availab"),
    Seed("project_id", "project", "did you mean 'project_id'?"),
    Seed("max_workers: 4", "max_workers: 40", "more than the max_workers of all pools (20)"),
    Seed("market: spot", "market: sport", "did you mean 'spot'?"),
    Seed("GPU: 8", "GPU: 9", "9, but a3-highgpu-8g has 8"),
    Seed("--provider gcp", "--provider aws", "another cloud's", WORKER_START, "- >-"),
    Seed("upscaling_speed: 1.0", "upscaling_speed: fast", "should be a number, found 'fast'"),
]  # fmt: skip

RAYCLUSTER = [
    Seed("minReplicas: 0", "minReplica: 0", "did you mean 'minReplicas'?"),
    Seed("mode: token", "mode: disabled", "anyone who reaches the head"),
    Seed("version: v2", "version: v3", "'v3' is not one of the choices"),
    Seed("version: v2", "version: v1", "write v2"),
    Seed('num-cpus: "0"', "num-cpus: 0", "should be text, found 0"),
    Seed('num-cpus: "0"', 'num-cpus: "8"', "the head must have num-cpus"),
    Seed("serviceType: ClusterIP", "serviceType: LoadBalancer", "open to the network"),
    Seed("restartPolicy: Never", "restartPolicy: Always", "one that restarts in place"),
    Seed("maxReplicas: 16", "maxReplicas: -1", "-1 is less than 0"),
    Seed("replicas: 0", "replicas: 20", "20 is not between minReplicas (0) and maxReplicas (16)"),
    Seed("minReplicas: 0", "minReplicas: 2", "2 pods would never be released"),
    Seed("medium: Memory", "medium: memory", "did you mean 'Memory'?"),
    Seed("sizeLimit: 36Gi", "sizeLimit: 112Gi", "uses it up", at="sizeLimit: 112Gi",
         after="groupName: cpu"),
    Seed("memory: 112Gi", "memory: 112GB", "does not match the pattern", "groupName: cpu"),
    Seed("cpu: \"30\"", "cpu: \"20\"", "but the limit is 30", "requests: { cpu: \"30\""),
    Seed("- { key: nvidia.com/gpu, operator: Exists, effect: NoSchedule }\n", "\n",
         "no toleration of nvidia.com/gpu", "groupName: gpu", "tolerations"),
    Seed("effect: NoSchedule", "effect: NoSchedul", "did you mean 'NoSchedule'?"),
    Seed("trainrig.launch.spot", "nothing", "no preStop that drains the node",
         at="lifecycle:", after="groupName: cpu"),
    Seed("PeriodSeconds: 110", "PeriodSeconds: 5", "5 s is too short to save"),
    Seed("PeriodSeconds: 110", "PeriodSeconds: 15", "the preStop hook gives Ray 110 s",
         at="lifecycle:", after="groupName: cpu"),
    Seed("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true",
         "may gain more rights", at="securityContext: &unprivileged"),
    Seed("runAsNonRoot: true", "runAsNonRoot: false", "may run as root"),
    Seed("name: shared-memory, mountPath: /dev/shm", "name: shm, mountPath: /dev/shm",
         "no volume 'shm'"),
    Seed("expires: 24h", "expire: 24h", "no annotation `trainrig.io/expires`", at="annotations"),
    Seed("name: trainrig\n", "name: other\n", "must be 'other'", "metadata:", "labels"),
    Seed("TRAINRIG_HOME", "HF_TOKEN", "the value of HF_TOKEN in the file"),
    Seed("groupName: gpu", "groupName: cpu", "two worker groups are named 'cpu'"),
    Seed("readinessProbe: &probe", "readynessProbe: &probe", "did you mean 'readinessProbe'?"),
    Seed("kind: RayCluster", "kind: RayClutser", "did you mean 'RayCluster'?"),
    Seed("ray.io/v1", "ray.io/v1alpha1", "did you mean 'ray.io/v1'?"),
    Seed(f"@{DIGEST}", ":2.60", "may differ between two nodes"),
]  # fmt: skip

RAYJOB = [
    Seed("entrypoint:", "entrypint:", "did you mean 'entrypoint'?"),
    Seed("submissionMode: HTTPMode", "submissionMode: HttpMode", "did you mean 'HTTPMode'?"),
    Seed("submissionMode: HTTPMode", "submissionMode: SidecarMode", "when its log stream"),
    Seed("backoffLimit: 0", "backoffLimit: 3", "each retry of KubeRay starts a whole"),
    Seed("AfterJobFinishes: true", "AfterJobFinishes: false", "the cluster would stay, and cost"),
    Seed("ttlSecondsAfterFinished: 300", "ttlSecondsAfterFinished: 5m", "should be a whole number"),
    Seed("activeDeadlineSeconds: 86400", "activeDeadlineSeconds: 0", "0 is less than 1"),
    Seed("  activeDeadlineSeconds: 86400\n", "", "`activeDeadlineSeconds` is missing", at="spec:"),
    Seed("-m trainrig pretrain", "-m other pretrain", "does not run trainrig"),
    Seed("backoffLimit: 0", "deletionStrategy: {}", "combined with deletionStrategy",
         at="shutdownAfterJobFinishes"),
    Seed("claimName: trainrig", "claimNam: trainrig", "did you mean 'claimName'?"),
    Seed("mode: token", "mode: tokens", "did you mean 'token'?"),
    Seed("maxReplicas: 4", "maxReplicas: four", "should be a whole number, found 'four'"),
    Seed("market: spot", "market: cheap", "unknown market 'cheap'"),
    Seed("backoffLimit: 0", 'runtimeEnvYAML: "a: [1"', "not YAML"),
    Seed("restartPolicy: Never", "restartPolicy: never", "did you mean 'Never'?"),
    Seed("idleTimeoutSeconds: 300", "idleTimeoutSecond: 300", "did you mean 'idleTimeoutSeconds'?"),
    Seed("expires: 24h", "expires: soon", "'soon' is not a time; write hours"),
    Seed("secretName", "secretNam", "did you mean 'secretName'?"),
    Seed("rayClusterSpec", "rayClusterSpecs", "did you mean 'rayClusterSpec'?"),
]  # fmt: skip

LOCAL = [
    Seed("fake_multinode", "fake_multinodes", "did you mean 'fake_multinode'?"),
    Seed("disable_node_updaters: true", "disable_node_updaters: false", "no machines to log in to"),
    Seed("disable_node_updaters", "disable_node_updater", "did you mean 'disable_node_updaters'?"),
    Seed("ssh_user: nobody", "ssh_usr: nobody", "did you mean 'ssh_user'?"),
    Seed("CPU: 0", "CPU: 2", "the head must have CPU: 0"),
    Seed("max_workers: 4\n    node", "max_workers: 8\n    node", "8 is more than the max_workers"),
    Seed("CPU: 2", "CPU: two", "should be a whole number, found 'two'"),
    Seed("node_config: {}", "node_config: {InstanceType: m7i.large}", "rents no machines"),
    Seed("dashboard-host=127.0.0.1", "dashboard-host=0.0.0.0", "on loopback only", at="- >-"),
    Seed("--node-ip-address=127.0.0.1 ", "", "Ray would listen on the network", at="- >-"),
    Seed("RAY_AUTH_MODE=token ", "", "anyone who reaches the port", at="- >-"),
    Seed("--autoscaling-config", "--config", "no node is ever added", at="- >-"),
    Seed("idle_timeout_minutes: 1", "idle_timeout_minutes: 0", "0 minutes"),
    Seed("market: on-demand", "market: spot", "never preempted", "\n  cpu:"),
    Seed("trainrig.io/instance: laptop", "trainrig.io/instanc: laptop", "did you mean",
         at="trainrig.io/instanc: laptop"),
    Seed("trainrig.io/instance: laptop", "trainrig.io/instance: m7i.large", "cannot be rented here",
         at="trainrig.io/instance: m7i.large"),
    Seed("max_workers: 4 #", "max_worker: 4 #", "did you mean 'max_workers'?"),
    Seed("head_node_type: head", "head_node_type: cpus", "names no node type"),
    Seed("provider:\n", "provider:\n\ttype: x\n", "not YAML", at="\ttype"),
]  # fmt: skip

SEEDS = {
    "aws": AWS,
    "gcp": GCP,
    "kuberay/raycluster": RAYCLUSTER,
    "kuberay/rayjob": RAYJOB,
    "local": LOCAL,
}

EACH = [(name, seed) for name, seeds in SEEDS.items() for seed in seeds]


@pytest.mark.parametrize("name", SEEDS)
def test_a_shipped_file_is_clean(name: str) -> None:
    assert check_cluster(CLUSTER / f"{name}.yaml").problems == ()


@pytest.mark.parametrize(("name", "seed"), EACH, ids=lambda mistake: getattr(mistake, "says", None))
def test_a_mistake_is_named_with_its_line(name: str, seed: Seed, tmp_path: Path) -> None:
    sown, line = seed.sow((CLUSTER / f"{name}.yaml").read_text())
    path = tmp_path / "sown.yaml"
    path.write_text(sown)
    problems = check_cluster(path).problems
    said = [
        str(problem) for problem in problems if problem.line == line and seed.says in str(problem)
    ]
    assert said, f"line {line} of:\n" + "\n".join(map(str, problems))
    assert said[0].startswith(f"{path}:{line}: ")


@pytest.mark.parametrize("name", SEEDS)
def test_mistakes_are_named_all_at_once(name: str, tmp_path: Path) -> None:
    """Inject ten mistakes into one file, each in a part without another."""
    sown = (CLUSTER / f"{name}.yaml").read_text()
    seeds = []
    for seed in SEEDS[name]:
        if "YAML" in seed.says or len(seeds) == 10:
            continue
        tried, _ = seed.sow(sown) if seed.old in sown and seed.after in sown else (sown, 0)
        (tmp_path / "sown.yaml").write_text(tried)
        said = " ".join(map(str, check_cluster(tmp_path / "sown.yaml").problems))
        if all(mistake.says in said for mistake in (*seeds, seed)):
            sown = tried
            seeds = [*seeds, seed]
    assert len(seeds) == 10
