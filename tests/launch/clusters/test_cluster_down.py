import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainrig import hardware
from trainrig.errors import ClusterError, ConfigError
from trainrig.launch.clusters.cluster_down import DeletionTimeouts, end_all, take_down_cluster
from trainrig.launch.clusters.cluster_kinds import OpenCluster
from trainrig.launch.clusters.cluster_status import find_runs, read_cluster_status
from trainrig.launch.clusters.machine_providers import CloudMachine
from trainrig.launch.clusters.shipped_clusters import find_cluster
from trainrig.launch.submit.submission import Submission
from trainrig.launch.supervise import known_clusters
from trainrig.launch.supervise.run_record import Home

QUICK = DeletionTimeouts(total=1.0, between=0.01, settle=0.05)
HEAD = CloudMachine("i-1", "instance", "aws", "running", pool="head")
WORKER = CloudMachine("i-2", "instance", "aws", "running", pool="cpu")


class Cloud:
    """A stand-in for a cloud whose lists of machines follow a script; the last list is repeated."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.ended = []

    def machines(self, cluster):
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(look, Exception):
            raise look
        return look

    def end(self, machines):
        self.ended.append([machine.id for machine in machines])


def ended(cloud, timeouts=QUICK):
    return end_all(cloud, "aws", timeouts, lambda text: None), cloud.ended


def test_machines_that_appear_after_an_empty_list_are_ended_too():
    assert ended(Cloud([HEAD], [], [WORKER], [WORKER], [])) == ([], [["i-1"], ["i-2"], ["i-2"]])


def test_one_empty_list_is_not_enough():
    cloud = Cloud([])
    began = time.monotonic()
    end_all(cloud, "aws", QUICK, print)
    assert time.monotonic() - began >= QUICK.settle


def test_an_unreadable_list_ends_nothing_and_is_not_zero():
    dark = ClusterError("AWS, us-east-1: no answer")
    assert ended(Cloud(dark, dark, [HEAD], dark, [])) == ([], [["i-1"]])
    cloud = Cloud([HEAD], dark)
    with pytest.raises(ClusterError, match="left: AWS"):
        end_all(cloud, "aws", QUICK, print)
    assert cloud.ended == [["i-1"]]


def test_machines_that_do_not_end_are_named():
    assert ended(Cloud([HEAD, WORKER], [WORKER]))[0] == [WORKER]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Return a cluster of one head, whose file gives its nodes no home for records."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("TRAINRIG_HOME", raising=False)
    return make_cluster({}, Cloud([HEAD], [HEAD], [HEAD], []))


def make_cluster(data, cloud):
    path = find_cluster("aws")
    return OpenCluster(path, "aws", "aws", data, cloud)


def submit_from(home, cluster="aws"):
    """Record a run as `submit` does, in a shell whose TRAINRIG_HOME is `home`."""
    sent = SimpleNamespace(address="http://10.0.0.1:8265", upload=lambda *_: "gcs://a")
    sent.submit = lambda *_: None
    record = home.create("curate", "s3://bucket/out")
    package = SimpleNamespace(name="a", data=b"")
    limits = SimpleNamespace(model_dump=lambda mode: {})
    Submission(home, record, "", sent, package, limits, "cluster", cluster).submit()
    return record


def take_down(cluster, **more):
    return take_down_cluster(cluster, Home.choose(), lambda text: None, QUICK, **more)


def test_a_run_that_was_submitted_from_another_shell_keeps_its_cluster(cluster, tmp_path):
    home = Home.choose(str(tmp_path / "theirs"))
    record = submit_from(home)
    submit_from(home)
    assert known_clusters.read_noted_homes("aws") == [home.path]
    with pytest.raises(ConfigError, match=f"runs are live on it: {record.id} ") as refused:
        take_down(cluster)
    assert str(refused.value).endswith(f"trainrig stop ID --home {home.path}")
    assert cluster.provider.ended == []
    assert read_cluster_status(cluster, Home.choose()).runs == {record.id: "queued"}
    record.record("ended", 2, state="done")
    assert take_down(cluster) == 1
    assert known_clusters.read_noted_homes("aws") == []


def test_a_run_in_a_bucket_of_another_shell_keeps_its_cluster(cluster, s3):
    record = submit_from(Home.choose(f"{s3}/home"))
    with pytest.raises(ConfigError, match=f"runs are live on it: {record.id}"):
        take_down(cluster)


def test_a_run_on_a_cluster_without_a_name_notes_nothing(cluster, tmp_path):
    submit_from(Home.choose(str(tmp_path / "theirs")), cluster="")
    assert known_clusters.read_noted_homes("") == []


def test_a_home_that_cannot_be_read_is_not_one_without_runs(cluster, tmp_path):
    known_clusters.note_home("aws", "s3://gone-since-then/home")
    with pytest.raises(ConfigError, match="s3://gone-since-then/home may hold") as refused:
        take_down(cluster)
    assert "\n" not in str(refused.value)
    assert "give --ignore-home s3://gone-since-then/home" in str(refused.value)
    assert cluster.provider.ended == []
    (line,) = [
        x
        for x in read_cluster_status(cluster, Home.choose()).format_lines()
        if "unknown" in x and "runs" in x
    ]
    assert line.startswith("runs in s3://gone-since-then/home: unknown: ")
    assert take_down(cluster, ignored=["s3://gone-since-then/home"]) == 1


@pytest.mark.parametrize(
    "give",
    [
        lambda path: {"docker": {"run_options": [f"--env=TRAINRIG_HOME={path}"]}},
        lambda path: {"setup_commands": [f"export TRAINRIG_HOME='{path}'; true"]},
        lambda path: {"env": [{"name": "TRAINRIG_HOME", "value": path}]},
    ],
)
def test_a_run_in_the_home_that_the_file_gives_nodes_keeps_its_cluster(cluster, tmp_path, give):
    home = Home.choose(str(tmp_path / "shared"))
    ours = make_cluster(give(home.path), Cloud([HEAD], []))
    with pytest.raises(ConfigError, match="no such folder"):
        take_down(ours)
    record = home.create("curate", "s3://bucket/out")
    record.take_attempt("one", "http://10.0.0.1:8265", "aws", {})
    with pytest.raises(ConfigError, match=f"runs are live on it: {record.id}"):
        take_down(ours)
    record.record("ended", 1, state="done")
    assert take_down(ours) >= 0


def test_a_home_that_only_the_machine_could_fill_in_is_none(tmp_path):
    data = {"setup_commands": ["export TRAINRIG_HOME=s3://$BUCKET/home"]}
    assert find_runs(make_cluster(data, Cloud([])), Home.choose(str(tmp_path))) == ([], {})


def test_a_missing_bucket_holds_no_runs(cluster, s3):
    data = {"docker": {"run_options": ["--env=TRAINRIG_HOME=s3://never-made-by-anyone/home"]}}
    assert take_down(make_cluster(data, Cloud([HEAD], []))) == 1


def test_the_hourly_price_is_from_a_users_table(cluster, tmp_path):
    spot = CloudMachine("i-3", "instance", "aws", "running", instance="m7i.2xlarge", market="spot")
    cluster.provider.looks = [[spot]]
    shipped = Path(hardware.__file__).with_name("hardware.toml").read_text()
    before, name, after = shipped.partition('[instances."m7i.2xlarge"]\n')
    own = tmp_path / "prices.toml"
    own.write_text(f"{before}{name}spot_usd = 0.125\n{after}")
    assert read_cluster_status(cluster, Home.choose(), str(own)).usd == 0.125
    assert read_cluster_status(cluster, Home.choose()).usd > 0.125
