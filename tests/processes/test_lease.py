import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.waiting import PATIENCE, wait_until

from trainrig import storage
from trainrig.errors import OutputTaken
from trainrig.processes import lease
from trainrig.train.elastic import trainer
from trainrig.train.pretrain import pretrain

HOLD = """
import sys
from trainrig.processes import lease
with lease.hold_lease(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()  # until told to end
"""


@pytest.fixture
def hold():
    """Return the function `hold(folder)`: start another process that holds the lease."""
    holders = []

    def start(folder):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        holders.append(holder)
        assert holder.stdout.readline() == b"held\n"
        return holder

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


def change(folder, **values):
    path = Path(folder) / lease.FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_run_in_use_is_refused_and_its_owner_named(hold, tmp_path):
    holder = hold(tmp_path)
    message = (
        rf"{tmp_path}: in use by a live run \(process {holder.pid} on \S+, since .* \d+ s ago\)"
    )
    with pytest.raises(OutputTaken, match=message), lease.hold_lease(str(tmp_path)):
        pytest.fail("two hold it")
    holder.communicate()  # the process ends and releases the lease
    assert not (tmp_path / lease.FILE).exists()
    with lease.hold_lease(str(tmp_path)):
        assert (tmp_path / lease.FILE).exists()
    assert not (tmp_path / lease.FILE).exists()


def test_a_second_pretrain_of_a_live_run_is_refused_before_workers_start(
    hold, make_run, monkeypatch, tmp_path
):
    run = make_run(tmp_path / "run")
    monkeypatch.setattr(trainer, "check_fit", lambda *_: None)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trainer, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        pretrain(run)  # started, and released
    hold(run.output)
    monkeypatch.setattr(trainer, "check_fit", lambda *_: pytest.fail("workers were asked for"))
    with pytest.raises(OutputTaken, match="in use by a live run"):
        pretrain(run)
    assert (tmp_path / "run" / "stage.json").exists()


def test_a_killed_owner_is_taken_over_from_at_once(hold, caplog, tmp_path):
    holder = hold(tmp_path)
    holder.send_signal(signal.SIGKILL)
    # A dead process that is not reaped: its pid stays in the process table.
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    with lease.hold_lease(str(tmp_path)):
        pass
    assert f"taken over from process {holder.pid} on" in caplog.text


def test_a_process_that_only_has_a_dead_owners_number_is_not_the_owner(hold, tmp_path):
    hold(tmp_path)
    change(tmp_path, process_began="1")
    with lease.hold_lease(str(tmp_path)):
        pass


@pytest.mark.parametrize(("seconds", "taken"), [(10, False), (40, True)])
def test_another_machines_lease_expires_without_renewal(hold, tmp_path, seconds, taken):
    holder = hold(tmp_path)
    holder.send_signal(signal.SIGSTOP)  # the holder stops, as if its machine had failed
    change(tmp_path, host="elsewhere", renewed=time.time() - seconds)
    try:
        with lease.hold_lease(str(tmp_path)):
            assert taken
    except OutputTaken as refused:
        assert not taken
        assert "on elsewhere" in str(refused)


def test_a_held_lease_is_renewed(monkeypatch, tmp_path):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.01)
    renewed = threading.Event()
    write = storage.write

    def seen(path, data):
        write(path, data)
        renewed.set()

    monkeypatch.setattr(storage, "write", seen)
    with lease.hold_lease(str(tmp_path)):
        first = json.loads((tmp_path / lease.FILE).read_text())
        renewed.clear()  # the first renewals may be older than what was read
        assert renewed.wait(PATIENCE)
        later = json.loads((tmp_path / lease.FILE).read_text())
    assert later["renewed"] > first["renewed"] and later["token"] == first["token"]


def test_an_owner_that_was_taken_over_from_leaves_the_lease_alone(caplog, monkeypatch, tmp_path):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.01)
    with lease.hold_lease(str(tmp_path)):
        (renewer,) = [thread for thread in threading.enumerate() if thread.name == "lease"]
        theirs = lease.LeaseOwner.here()

        def end_renewal():
            """Replace the lease again, as the renewer may have been writing just then."""
            storage.write(f"{tmp_path}/{lease.FILE}", theirs.model_dump_json().encode())
            renewer.join(0.1)
            return not renewer.is_alive()

        wait_until(end_renewal)
    assert f"taken over by process {theirs.pid} on {theirs.host}" in caplog.text
    assert json.loads((tmp_path / lease.FILE).read_text())["token"] == theirs.token


def test_a_removed_lease_is_reported_as_not_taken_over(caplog, monkeypatch, tmp_path):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.01)
    with lease.hold_lease(str(tmp_path / "run")):
        (renewer,) = [thread for thread in threading.enumerate() if thread.name == "lease"]

        def end_renewal():
            """Remove the lease again, as the renewer may have been writing just then."""
            (tmp_path / "run" / lease.FILE).unlink(missing_ok=True)
            renewer.join(0.1)
            return not renewer.is_alive()

        wait_until(end_renewal)
    assert "the lease is gone, though no other run took it over" in caplog.text
    assert list((tmp_path / "run").iterdir()) == []


def test_a_lease_that_is_no_lease_is_taken_over(tmp_path):
    (tmp_path / lease.FILE).write_text("{")
    with lease.hold_lease(str(tmp_path)):
        assert json.loads((tmp_path / lease.FILE).read_text())["pid"]


def test_a_lease_in_a_bucket_is_held_too(s3, hold):
    hold(f"{s3}/run")
    with pytest.raises(OutputTaken, match="in use by a live run"), lease.hold_lease(f"{s3}/run"):
        pytest.fail("two hold it")
