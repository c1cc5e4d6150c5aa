"""Start of a cluster's head: on this machine, or by Ray's own launcher with a deadline.

On this machine, the autoscaler of the head starts more raylets. The file has Ray's form for a
provider that starts raylets instead of machines. Settings that Ray requires for that, without
documenting them, are added here.

Ray's launcher, `ray up`, logs in to the head by SSH and retries without limit. It is killed at the
deadline with all processes that it started.
"""

import copy
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainrig.errors import ClusterError, ConfigError
from trainrig.launch.clusters.cluster_yaml import at, ensure_list, ensure_table
from trainrig.launch.clusters.local_processes import HEAD_LABELS, MARK, PROC
from trainrig.processes.child_process import hold_group
from trainrig.ray_runtime.ray_private import find_local_node_provider
from trainrig.ray_runtime.ray_session import ENVIRONMENT, LOOPBACK

HEAD_ID = "f" * 51 + "00000"
HEAD_TYPE = "ray.head.default"  # name of the head's type in Ray's provider
# path at which Ray's launcher stores the file on a machine
BOOTSTRAP = "~/ray_bootstrap_config.yaml"
STORE = 80 * 2**20  # bytes of a node's object store, Ray's minimum: it holds only paths
FILLED = (
    "cluster_synced_files",
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "worker_start_ray_commands",
)


def start_local_head(
    name: str, config: Mapping[str, Any], log: Path, seconds: float
) -> dict[str, str]:
    """Start the head of `config` and return its addresses and its folder; Ray logs to `log`.

    Raises ConfigError if the file has no command to start it, ClusterError if it does not start.
    """
    if not PROC.is_dir():
        raise ConfigError(
            f"{name}: this system has no /proc, which is needed to find processes again"
        )
    commands = [
        text
        for text in map(str, ensure_list(config.get("head_start_ray_commands")))
        if "ray start" in text
    ]
    if not commands:
        raise ConfigError(
            f"{name}: head_start_ray_commands has no `ray start` to start the head with"
        )
    # short, as the path of a socket has at most 107 bytes
    folder = tempfile.mkdtemp(prefix="trainrig-")
    port = _parse_option(commands[0], "--port", "6379")
    bootstrap = Path(folder, "cluster.json")
    bootstrap.write_text(json.dumps(_build_raylet_config(config, f"127.0.0.1:{port}")))
    commands = [_complete_command(text, bootstrap, _find_head(config)) for text in commands]
    _run_ray_start(commands, name, config, log, seconds)
    dashboard = _parse_option(commands[0], "--dashboard-port", "8265")
    return {
        "address": f"127.0.0.1:{port}",
        "jobs": f"http://127.0.0.1:{dashboard}",
        # environment of drivers that are not submitted as jobs
        "drivers": f"RAY_ADDRESS=127.0.0.1:{port} {LOOPBACK}=0",
        "folder": folder,
    }


def _run_ray_start(
    commands: list[str], name: str, config: Mapping[str, Any], log: Path, seconds: float
) -> None:
    # not a pipe: processes that `ray start` leaves running would keep it open
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                ["bash", "-c", " && ".join(commands)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                env=_build_environment(name, config),
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{log}: the head was not up after {seconds:g} s") from None
    if done.returncode:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise ClusterError(f"{log}: `ray start` failed: {said[-1] if said else 'no output'}")


def _build_environment(name: str, config: Mapping[str, Any]) -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    return (
        ENVIRONMENT
        | dict(os.environ)
        | {
            MARK: name,
            HEAD_LABELS: json.dumps(_find_head(config).get("labels") or {}),
            "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
            "RAY_FAKE_CLUSTER": "1",
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
            LOOPBACK: "0",
        }
    )


def _build_raylet_config(config: Mapping[str, Any], address: str) -> dict[str, Any]:
    made = {name: [] for name in FILLED} | {"file_mounts": {}} | copy.deepcopy(dict(config))
    made["provider"] = ensure_table(config.get("provider")) | {
        "type": "external",  # under its own name, the provider needs a file that Ray does not ship
        "module": find_local_node_provider(),
        "gcs_address": address,
        "head_node_id": HEAD_ID,
        "launch_multiple": True,
    }
    kinds = ensure_table(made["available_node_types"])
    kinds[HEAD_TYPE] = kinds.pop(str(made["head_node_type"]))
    made["head_node_type"] = HEAD_TYPE
    for kind in kinds.values():
        kind.setdefault("resources", {}).setdefault("object_store_memory", STORE)
    return made


def _find_head(config: Mapping[str, Any]) -> dict[str, Any]:
    return ensure_table(at(config, "available_node_types", str(config.get("head_node_type"))))


def _complete_command(command: str, bootstrap: Path, head: Mapping[str, Any]) -> str:
    """Add the options that Ray's launcher would pass by environment variables.

    The monitor would apply those variables to the nodes that it starts.
    """
    labels = ",".join(f"{name}={value}" for name, value in ensure_table(head.get("labels")).items())
    resources = dict(ensure_table(head.get("resources")))
    options = [
        f"--temp-dir={bootstrap.parent}/ray",
        f"--num-cpus={resources.pop('CPU', 0)}",
        f"--num-gpus={resources.pop('GPU', 0)}",
        f"--object-store-memory={STORE}",
        f"--resources={json.dumps(resources)}",
        f"--labels={labels}",
    ]
    with_path = command.replace(BOOTSTRAP, str(bootstrap))
    return with_path.replace("ray start", f"ray start {shlex.join(options)}", 1)


def _parse_option(command: str, name: str, otherwise: str) -> str:
    for word in shlex.split(command):
        if word.startswith(f"{name}="):
            return word.removeprefix(f"{name}=")
    return otherwise


def launch_head_by_ray(config: Path, log: Path, seconds: float) -> None:
    """Bring up the cluster of the file `config` with Ray's launcher, within `seconds`.

    Its output goes to `log`. Raises ClusterError with the last line of that.
    """
    with (
        log.open("ab") as output,
        hold_group(
            [
                *(str(Path(sys.executable).with_name("ray")), "up", str(config), "--yes"),
                # Other users could read the cache, which is in the folder for temporary files.
                *("--no-config-cache", "--use-login-shells", "--log-style=record"),
                "--log-color=false",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT | dict(os.environ),
        ) as process,
    ):
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{log}: the head was not up after {seconds:g} s") from None
    if status:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise ClusterError(f"{log}: Ray's launcher failed: {lines[-1] if lines else 'no output'}")
