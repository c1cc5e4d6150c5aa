"""Calls of gcloud and the handling of its answers, by a stand-in for Google Cloud."""

import json
import os
import stat

import pytest

from trainrig.errors import ClusterError
from trainrig.launch.clusters.machine_providers import Compute

ZONE = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a"
WORKER = {
    "name": "ray-gcp-worker-1",
    "status": "RUNNING",
    "zone": ZONE,
    "machineType": f"{ZONE}/machineTypes/a3-highgpu-8g",
    "scheduling": {"provisioningModel": "SPOT"},
    "labels": {
        "trainrig-cluster": "gcp",
        "trainrig-expires": "2020-01-01t00-00-00z",
        "ray-node-type": "worker",
        "ray-user-node-type": "gpu",
    },
}
HEAD = WORKER | {
    "name": "ray-gcp-head-1",
    "scheduling": {},
    "labels": {"ray-cluster-name": "gcp", "ray-node-type": "head"},
}
DISK = {"name": "left", "status": "READY", "zone": ZONE, "labels": {"trainrig-cluster": "gcp"}}

STAND_IN = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$2 $3" in
  "instances list") cat {folder}/instances ;;
  "disks list") cat {folder}/disks ;;
esac
exit $(cat {folder}/status)
"""


@pytest.fixture
def gcloud(tmp_path, monkeypatch):
    """Put a stand-in for gcloud on the PATH: prepared answers, recorded arguments."""
    program = tmp_path / "gcloud"
    program.write_text(STAND_IN.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "instances").write_text(json.dumps([WORKER, HEAD]))
    (tmp_path / "disks").write_text(json.dumps([DISK]))
    (tmp_path / "status").write_text("0")
    return tmp_path


def test_instances_and_loose_disks_count_and_heads_go_first(gcloud):
    provider = Compute("p")
    found = worker, head, disk = provider.machines("gcp")
    assert (worker.instance, worker.market, worker.pool) == ("a3-highgpu-8g", "spot", "gpu")
    assert worker.expired and worker.place == "us-central1-a"
    assert head.head and head.market == "on-demand" and head.cluster == "gcp"
    assert disk.kind == "disk"
    provider.end(found)
    deleted = [
        (line.split()[1], line.split()[4])
        for line in (gcloud / "asked").read_text().splitlines()
        if line.split()[2] == "delete"
    ]
    assert deleted == [
        ("instances", "ray-gcp-head-1"),
        ("instances", "ray-gcp-worker-1"),
        ("disks", "left"),
    ]


def test_an_answer_that_failed_is_no_empty_list(gcloud):
    (gcloud / "status").write_text("1")
    with pytest.raises(ClusterError, match="gcloud compute instances"):
        Compute("p").machines("gcp")
