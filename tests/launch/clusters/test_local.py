"""A local cluster: `trainrig cluster up local`, its open ports, and what remains after `down`."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest
from support.processes import find_free_ports

from trainrig.launch.clusters.local_processes import MARK, Processes
from trainrig.launch.clusters.shipped_clusters import find_cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]


@pytest.fixture
def file(tmp_path):
    """Write the shipped file with another name and free ports."""
    text = find_cluster("local").read_text().replace("cluster_name: local", "cluster_name: mine")
    for port in ("6399", "8266"):
        text = text.replace(port, str(find_free_ports(1)[0]))
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    yield path
    Processes().end(Processes().machines("mine"))


@pytest.fixture
def trainrig(tmp_path):
    """Return a function that runs the command line with its own state folder."""
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    environment.pop("TRAINRIG_HOME", None)

    def run(*arguments, status=0):
        command = [sys.executable, "-m", "trainrig", "cluster", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == status, done.stderr
        return done

    return run


DRIVER = """
import ray
from trainrig.ray_runtime import ray_session
ray_session.connect(8, "workers")
where = ray.remote(lambda: ray.get_runtime_context().get_node_id())
there = where.options(num_cpus=1, label_selector={"trainrig.io/pool": "cpu"})
print(ray.get(there.remote(), timeout=60))
assert {node["Labels"]["trainrig.io/cluster"] for node in ray.nodes()} == {"mine"}
"""


def test_a_local_cluster_is_started_used_and_removed(file, trainrig, tmp_path):
    up = json.loads(trainrig("up", file, "--json").stdout)
    assert trainrig("up", file, status=2).stderr.count("is already up") == 1
    reach = dict(word.split("=") for word in up["drivers"].split())
    driver = [sys.executable, "-c", DRIVER]
    node = subprocess.run(driver, capture_output=True, text=True, env=os.environ | reach)
    assert re.fullmatch(r"[0-9a-f]{56}\n", node.stdout), node.stderr
    seen = json.loads(trainrig("status", file, "--json").stdout)
    assert seen["nodes"] == {"head": 1, "cpu": 1} and seen["usd_an_hour"] == 0
    ours = {int(machine["id"]) for machine in seen["machines"]}
    others = [
        (c.laddr, psutil.Process(c.pid).name())
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.pid in ours
        if not c.laddr.ip.startswith(("127.", "::1", "::ffff:127."))
    ]
    assert others == []
    for path in ("/api/jobs/", "/api/version", "/nodes?view=summary"):  # requests without a token
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(up["jobs"] + path, timeout=30)
    ended = json.loads(trainrig("down", file, "--json").stdout)
    assert ended["ended"] >= len(ours)
    assert not [p for p in psutil.process_iter() if _marked(p)]
    assert trainrig("leaks", file).stdout == "no machines found\n"
    assert "no machines" in trainrig("status", file).stdout


@pytest.mark.soak
def test_a_local_cluster_with_a_live_run_stays_up(file, trainrig, tmp_path):
    from trainrig.launch.supervise.run_record import Home

    up = json.loads(trainrig("up", file, "--json").stdout)
    home = tmp_path / "home"
    record = Home.choose(str(home)).create("curate", str(tmp_path / "out"))
    record.take_attempt("one", up["jobs"], "", {})
    refused = trainrig("down", file, "--home", home, status=2)
    assert f"runs are live on it: {record.id} (queued)" in refused.stderr
    assert json.loads(trainrig("status", file, "--home", home, "--json").stdout)["runs"] == {
        record.id: "queued"
    }
    record.record("ended", 1, state="stopped")
    trainrig("down", file, "--home", home)


def _marked(process):
    try:
        return process.environ().get(MARK) == "mine"
    except psutil.Error:
        return False
