import subprocess
import sys
from pathlib import Path

import pytest

from trainrig.errors import ConfigError
from trainrig.ray_runtime import ray_session


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_more_workers_than_cpus_are_refused_with_what_fits() -> None:
    import ray

    cpus = int(ray.cluster_resources()["CPU"])
    ray_session.connect(cpus, "run.toml: workers")
    with pytest.raises(ConfigError) as caught:
        ray_session.connect(cpus + 1, "run.toml: workers")
    assert str(caught.value) == (
        f"run.toml: workers: {cpus + 1} workers of 1 CPU each, but Ray has {cpus} "
        f"logical CPUs; set workers = {cpus} or fewer, or add nodes"
    )


UNASKED = """
import os
from trainrig.ray_runtime import ray_session
os.environ.update(ray_session.ENVIRONMENT)
import ray
ray.put(1)
"""


def test_no_call_starts_ray_without_a_request() -> None:
    ended = subprocess.run([sys.executable, "-c", UNASKED], capture_output=True, text=True)
    assert "Ray has not been started yet" in ended.stderr, ended.stderr


PRINTS = """
import os
from trainrig.ray_runtime import ray_session
os.environ.update(ray_session.ENVIRONMENT)
from ray._private import worker
lost = "\\n".join(["Raylet is terminated. Termination is unexpected.", *["(log of the node)"] * 42])
for text in (lost, "(autoscaler) at most 2 nodes", "(autoscaler) at most 3 nodes"):
    worker.print_to_stdstream({"lines": [text], "pid": "raylet", "is_err": False}, False)
"""


@pytest.mark.slow
def test_rays_messages_about_a_lost_node_are_not_printed_and_others_are() -> None:
    """Ray prints them to standard output, where a command's result belongs."""
    ended = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True)
    printed = ended.stdout.splitlines()
    assert len(printed) == 2, (printed, ended.stderr)
    assert "at most 2 nodes" in printed[0] and "at most 3 nodes" in printed[1]


IMPORTED_TOO_EARLY = """
import ray
from trainrig.ray_runtime import ray_session
ray_session.join()
"""


@pytest.mark.slow
def test_a_ray_that_was_imported_without_a_token_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    program = [sys.executable, "-c", IMPORTED_TOO_EARLY]
    ended = subprocess.run(program, capture_output=True, text=True)
    last = ended.stderr.splitlines()[-1]
    assert "ConfigError" in last and "RAY_AUTH_MODE=token" in last and "`ray.init()`" in last


TOKEN_REMOVED = """
from pathlib import Path
from trainrig.ray_runtime import ray_local, ray_session
ray_session.join()
ray_local.leave()
Path("~/.ray/auth_token").expanduser().unlink()
ray_session.join()
"""


@pytest.mark.slow
def test_a_gcs_that_ends_at_its_start_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray keeps the token of its first start, so it does not write the removed file again."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_gcs_server_port_wait_time_s", "2")
    program = [sys.executable, "-c", TOKEN_REMOVED]
    ended = subprocess.run(program, capture_output=True, text=True)
    last = ended.stderr.splitlines()[-1]
    assert "ClusterError" in last and "GCS ended" in last and "RAY_AUTH_TOKEN_PATH" in last
