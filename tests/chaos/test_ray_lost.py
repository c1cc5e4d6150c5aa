"""A run whose Ray cluster fails: its raylet or its GCS is killed."""

import contextlib

import psutil
import pytest
from support import faults, trouble

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]


def list_descendants(driver):
    """Return the descendants of a driver's process, which include its ranks."""
    return psutil.Process(driver.pid).children(recursive=True)


def kill_daemon(driver, name):
    """Send SIGKILL to the daemon `name` of a driver's Ray and return all processes of that Ray."""
    those = list_descendants(driver)
    (daemon,) = [process for process in those if process.name() == name]
    daemon.kill()
    return those


@pytest.mark.timeout(600)
def test_a_run_starts_another_ray_when_its_own_is_lost_and_leaves_no_process(
    start_driver, undisturbed, assert_equal, tmp_path, short_folder
):
    straight = undisturbed(40)
    job = trouble.slowed(straight, str(tmp_path / "run"), seconds=0.1)
    events = faults.Events(job.folder)
    driver = start_driver(job, 2)
    old = []
    for count, name in enumerate(("raylet", "gcs_server"), start=1):
        events.wait("first_step", count)
        old += kill_daemon(driver, name)
        # The attempt may fail before the driver learns why. Another begins once that Ray has ended.
        events.wait("attempt_started", count + 1)
        assert not [process for process in old if process.is_running() and is_running(process)]
    said = driver.communicate(timeout=300)[1]
    assert driver.returncode == 0, said
    lost = [event["problem"] for event in events.all("cluster_lost")]
    assert [problem.split(" (")[0] for problem in lost] == [
        "the raylet of this machine's Ray",
        "the GCS of this machine's Ray",
    ]
    assert all(problem.endswith("was killed by SIGKILL") for problem in lost)
    assert all(f"{problem}; ending the rest of the attempt\n" in said for problem in lost)
    assert_equal(job, straight)
    kept = list(short_folder.glob("trainrig-ray-*/r/session_2*"))
    # The third cluster had no failure, so its logs are not kept.
    assert [[path.name for path in folder.iterdir()] for folder in kept] == [["logs"]] * 2
    assert list(short_folder.glob("trainrig-ray-*/owner.json")) == []


def is_running(process):
    """Return whether `process` runs, rather than being a zombie that its parent has not reaped."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
