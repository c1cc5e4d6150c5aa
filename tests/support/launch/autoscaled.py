"""A Ray cluster on this machine whose autoscaler starts and ends raylets, with its own pools."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from support.processes import find_free_ports
from support.waiting import wait_until
from trainrig.ray_runtime.ray_session import ENVIRONMENT

MEMORY = 80 * 2**20  # bytes of an object store: the least that Ray accepts
HEAD_ID = "f" * 51 + "00000"  # the head's node id as the provider reports it
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
PATIENCE = 120.0  # s for one event: far above what any takes, to end a broken test


class Autoscaled:
    """A head without room for workers, and pools that start without nodes."""

    def __init__(self, idle_seconds: float = 8.0, **pools: tuple[int, int]) -> None:
        """Start the cluster.

        `pools` maps a pool's name, which is its label too, to the CPUs of a node and the most
        nodes.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="scaled-"))
        self.address = f"127.0.0.1:{find_free_ports(1)[0]}"
        config = self._folder / "cluster.json"
        config.write_text(json.dumps(_config(self.address, idle_seconds, pools)))
        ray = str(Path(sys.executable).with_name("ray"))
        command = [ray, "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
        command += [f"--port={self.address.split(':')[1]}", "--num-cpus=0"]
        command += ["--include-dashboard=false", f"--object-store-memory={MEMORY}"]
        command += [f"--temp-dir={self._folder}/ray", f"--autoscaling-config={config}"]
        command += ["--labels=trainrig.io/pool=head"]
        self._log = (self._folder / "log").open("w")
        self._head = subprocess.Popen(
            command,
            env=os.environ | ENVIRONMENT | _FAKE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._wait_for_the_head()

    def nodes(self) -> Counter[str]:
        """Return how many nodes are alive in each pool, as Ray reports it."""
        import ray

        return Counter(
            node["Labels"].get("trainrig.io/pool")
            for node in ray.nodes()
            if node["Alive"] and "node:__internal_head__" not in node["Resources"]
        )

    def wait_for(self, **wanted: int) -> float:
        """Wait until the pools have the `wanted` numbers of nodes, and return the seconds."""
        began = time.monotonic()
        wait_until(
            lambda: self.nodes() == Counter(wanted),
            lambda: f"{dict(self.nodes())}, not {wanted}: {self.log()}",
            process=self._head,
            seconds=PATIENCE,
            every=0.1,
        )
        return time.monotonic() - began

    def lose_a_node(self) -> None:
        """Send SIGKILL to one node's raylet, as if a cloud took it back without notice."""
        import psutil

        for process in psutil.Process(self._head.pid).children(recursive=True):
            if process.name() == "raylet" and "RAY_NODE_TYPE_NAME" in process.environ():
                process.kill()
                return

    def log(self) -> str:
        """Return the end of the autoscaler's logs."""
        logs = sorted(self._folder.glob("ray/session_2*/logs/monitor.*"))
        return "\n".join(path.read_text()[-3000:] for path in logs)

    def shutdown(self) -> None:
        """End the head and all processes that it started."""
        import psutil

        family = psutil.Process(self._head.pid).children(recursive=True)
        self._head.send_signal(signal.SIGTERM)
        for process in [*family, psutil.Process(self._head.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._head.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_for_the_head(self) -> None:
        host, port = self.address.split(":")
        until = time.monotonic() + PATIENCE
        while True:
            assert self._head.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < until, (self._folder / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                if "Ray runtime started" in (self._folder / "log").read_text():
                    return
            time.sleep(0.1)


_FAKE = {
    "RAY_FAKE_CLUSTER": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
}


_COMMANDS = ("initialization_commands", "setup_commands", "head_setup_commands")
_COMMANDS += ("worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
_COMMANDS += ("cluster_synced_files",)


def _config(address: str, idle_seconds: float, pools: dict[str, tuple[int, int]]) -> dict[str, Any]:
    return {
        "cluster_name": "scaled",
        "max_workers": sum(most for _, most in pools.values()),
        "upscaling_speed": 100,
        "idle_timeout_minutes": idle_seconds / 60,
        "provider": {
            # With its own type, the provider would need a file that Ray does not ship.
            "type": "external",
            "module": PROVIDER,
            "gcs_address": address,
            "head_node_id": HEAD_ID,
            "launch_multiple": True,
            "disable_node_updaters": True,
        },
        "auth": {"ssh_user": "nobody"},
        **{command: [] for command in _COMMANDS},
        "file_mounts": {},
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
        }
        | {
            name: {
                "resources": {"CPU": cpus, "object_store_memory": MEMORY},
                "labels": {"trainrig.io/pool": name.split("-")[0]},
                "node_config": {},
                "min_workers": 0,
                "max_workers": most,
            }
            for name, (cpus, most) in pools.items()
        },
    }
