"""The Ray that a run was started with goes: its raylet, its GCS."""

import contextlib
import time

import psutil
import pytest
import trouble

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]


def family(driver):
    """A driver's processes, and those of the ranks that hang on them."""
    return psutil.Process(driver.pid).children(recursive=True)


def kill(driver, name):
    """SIGKILL to the daemon of that name of a driver's Ray; all of that Ray's processes."""
    those = family(driver)
    (daemon,) = [process for process in those if process.name() == name]
    daemon.kill()
    return those


@pytest.mark.timeout(600)
def test_a_run_begins_another_ray_when_its_own_is_lost_and_leaves_nobody_behind(
    start_driver, undisturbed, assert_equal, chaos, tmp_path, short_folder
):
    straight = undisturbed(40)
    job = trouble.slowed(straight, str(tmp_path / "run"), seconds=0.1)
    events = chaos.events(job.folder)
    driver = start_driver(job, 2)
    old = []
    for count, name in enumerate(("raylet", "gcs_server"), start=1):
        while len(events.all("first_step")) < count:
            assert driver.poll() is None, driver.stderr.read()
            time.sleep(0.02)
        old += kill(driver, name)
        # The attempt may fail before the driver learns why; another begins once Ray's is gone.
        events.wait("attempt_started", count + 1)
        assert not [process for process in old if process.is_running() and alive(process)]
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
    # The third failed in nothing.
    assert [[path.name for path in each.iterdir()] for each in kept] == [["logs"]] * 2
    assert list(short_folder.glob("trainrig-ray-*/owner.json")) == []


def alive(process):
    """Whether it is more than what its parent has not heard of yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
