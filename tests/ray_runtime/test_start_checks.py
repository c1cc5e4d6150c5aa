"""Checks of a machine before a local Ray starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainrig.ray_runtime import start_checks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
LONG = 60.0  # s: a bound for broken code
OTHER = 61234  # a user without a passwd entry
JOIN = """
from trainrig.job import exit_codes
from trainrig.ray_runtime import ray_session

with exit_codes():
    ray_session.join()
"""
CHECK = """
import os, resource, sys
from trainrig.job import exit_codes
from trainrig.ray_runtime import start_checks

os.setuid(int(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
with exit_codes():
    start_checks.check_threads()
"""
# A mount namespace whose shared memory is small, full of files, or read-only.
SHARED = 'mount --make-rprivate / && mount -t tmpfs -o "$0" tmpfs /dev/shm && exec "$@"'
SHORTAGES = {
    "small": "size=64k",
    "no more files": "size=4m,nr_inodes=1",
    "read-only": "size=4m,ro",
}


def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a short command, and return its output and exit code."""
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LONG, env={**inherited, **environment}
    )


def can_make_namespaces(kind: str) -> bool:
    return subprocess.run(["unshare", kind, "true"], capture_output=True).returncode == 0


@pytest.mark.slow  # imports Ray
@pytest.mark.parametrize("options", SHORTAGES.values(), ids=SHORTAGES)
def test_too_little_shared_memory_is_named_before_ray_starts(options: str, tmp_path: Path) -> None:
    if not can_make_namespaces("-m"):
        pytest.skip("no mount namespace may be made here")
    shell = ["unshare", "-m", "sh", "-c", SHARED, options]
    ended = run(*shell, sys.executable, "-c", JOIN, RAY_TMPDIR=str(tmp_path))
    (line,) = ended.stderr.splitlines()
    assert line.startswith("trainrig: /dev/shm: ")
    assert "--shm-size" in line
    assert ended.returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # imports Ray
def test_a_loopback_that_is_down_is_named_before_ray_starts(tmp_path: Path) -> None:
    if not can_make_namespaces("-n"):
        pytest.skip("no network namespace may be made here")
    ended = run("unshare", "-n", sys.executable, "-c", JOIN, RAY_TMPDIR=str(tmp_path))
    (line,) = ended.stderr.splitlines()
    assert line.startswith("trainrig: 127.0.0.1: this machine cannot reach itself (")
    assert line.endswith("(`ip link set lo up`)")
    assert ended.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_threads_is_named_with_what_is_needed() -> None:
    ended = run(sys.executable, "-c", CHECK, str(OTHER))
    (line,) = ended.stderr.splitlines()
    assert line.startswith("trainrig: ulimit -u: 100 threads and processes are allowed, of which ")
    assert f"needs {start_checks.THREADS_NEEDED}." in line
    assert ended.returncode == 2


def test_a_control_groups_limit_counts_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in (("outer", "40"), ("inner", "max")):
        group = tmp_path / name
        group.mkdir()
        (group / "pids.max").write_text(f"{limit}\n")
        (group / "pids.current").write_text("30\n")
    folders = [tmp_path / name for name in ("inner", "outer", "missing")]
    monkeypatch.setattr(start_checks, "list_control_groups", lambda controller: folders)
    found = start_checks.find_group_limit()
    assert found is not None
    assert (found.most, found.left) == (40, 10)
    assert "outer/pids.max is 40" in start_checks.describe_thread_shortage()
