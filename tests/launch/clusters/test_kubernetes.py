"""Calls of kubectl and the handling of its answers, by a stand-in for Kubernetes."""

import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from trainrig.errors import ClusterError, ConfigError
from trainrig.launch.clusters.cluster_kinds import open_cluster
from trainrig.launch.clusters.cluster_up import bring_up_cluster, render_documents
from trainrig.launch.clusters.machine_providers import Kubernetes, read_time
from trainrig_contrib.cluster_check.cluster_check import check_cluster

CLUSTER = {
    "kind": "RayCluster",
    "metadata": {
        "name": "trainrig",
        "namespace": "default",
        "labels": {"trainrig.io/cluster": "trainrig"},
        "annotations": {"trainrig.io/expires": "2020-01-01T00:00:00Z"},
    },
    "status": {"state": "ready"},
}
POD = {
    "kind": "Pod",
    "metadata": {
        "name": "trainrig-gpu-worker-x1",
        "namespace": "default",
        "labels": {"trainrig.io/cluster": "trainrig", "ray.io/group": "gpu"},
    },
    "status": {"phase": "Running"},
}
STAND_IN = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$2" in
  pods) cat {folder}/pods ;;
  rayclusters*) cat {folder}/objects ;;
esac
exit $(cat {folder}/status)
"""


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """Put a stand-in for kubectl on the PATH: prepared answers, recorded arguments."""
    program = tmp_path / "kubectl"
    program.write_text(STAND_IN.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "pods").write_text(json.dumps({"items": [POD]}))
    (tmp_path / "objects").write_text(json.dumps({"items": [CLUSTER]}))
    (tmp_path / "status").write_text("0")
    return tmp_path


def test_pods_of_a_cluster_count_as_they_may_outlive_it(kubectl: Path) -> None:
    cluster, pod = Kubernetes("default").machines("trainrig")
    assert (cluster.kind, cluster.state, cluster.expired) == ("RayCluster", "ready", True)
    asked = (kubectl / "asked").read_text().splitlines()
    assert all("--selector=trainrig.io/cluster=trainrig" in line for line in asked)
    assert (pod.id, pod.pool, pod.cluster) == ("trainrig-gpu-worker-x1", "gpu", "trainrig")


@pytest.mark.parametrize("name", ["kuberay/raycluster", "kuberay/rayjob"])
def test_the_pods_of_each_shipped_file_name_their_cluster(name: str) -> None:
    cluster = open_cluster(name)
    for document in yaml.safe_load_all(render_documents(cluster)):
        if document["apiVersion"].startswith("ray.io/"):
            spec = document["spec"].get("rayClusterSpec") or document["spec"]
            groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
            labels = [group["template"]["metadata"]["labels"] for group in groups]
            assert {label["trainrig.io/cluster"] for label in labels} == {cluster.name}
            until = document["metadata"]["annotations"]["trainrig.io/expires"]
            assert read_time(until) is not None


def test_the_object_is_deleted_and_pods_alone_only_when_it_is_gone(kubectl: Path) -> None:
    provider = Kubernetes("default")
    found = provider.machines("trainrig")
    provider.end(found)
    provider.end(found[1:])
    asked = (kubectl / "asked").read_text().splitlines()[-2:]
    assert [line.split()[:3] for line in asked] == [
        ["delete", "raycluster", "trainrig"],
        ["delete", "pod", "trainrig-gpu-worker-x1"],
    ]


def test_an_answer_that_failed_is_no_empty_list(kubectl: Path) -> None:
    (kubectl / "status").write_text("1")
    with pytest.raises(ClusterError, match="kubectl get"):
        Kubernetes("default").machines("trainrig")


def test_up_waits_for_the_head_and_makes_no_token_besides_the_secret(
    kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(kubectl))
    monkeypatch.setenv("TRAINRIG_HOME", str(kubectl / "home"))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name in ("pods", "objects"):
        (kubectl / name).write_text(json.dumps({"items": []}))
    text = (Path(__file__).parents[3] / "cluster" / "kuberay" / "raycluster.yaml").read_text()
    path = kubectl / "raycluster.yaml"
    for example, own in (
        ("0" * 64, "a" * 64),
        ("registry.example.com", "r.test"),
        ("111122223333", "111111111111"),
    ):
        text = text.replace(example, own)
    path.write_text(text)
    found = open_cluster(str(path))
    assert check_cluster(path).placeholders == ()
    bring_up_cluster(found, lambda line: None, seconds=42)
    asked = (kubectl / "asked").read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["get", "get", "apply", "wait"]
    assert asked[-1].split()[1:] == [
        "rayclusters.ray.io/trainrig",
        "--namespace=default",
        "--for=condition=HeadPodReady",
        "--timeout=42s",
    ]
    assert not (kubectl / ".ray" / "auth_token").exists()


def test_without_kubectl_one_line_names_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="kubectl: not installed"):
        Kubernetes("default").machines("trainrig")
