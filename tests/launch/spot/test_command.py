"""The agent as a process: its options, its end, and its detection of the provider."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.waiting import PATIENCE

from trainrig.errors import ConfigError
from trainrig.launch.spot.preemption_notices import (
    LEFT_FOR_RAY,
    ComputeMetadata,
    InstanceMetadata,
    PodEnd,
    detect,
    make_source,
)

NOBODY = "127.0.0.1:1"  # an address without a head


def agent(*options, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "trainrig.launch.spot", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def wait_for_handler(process):
    """Wait until the process handles SIGTERM, which would end it before."""
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        caught = int(status.read_text().partition("SigCgt:\t")[2][:16], 16)
        if caught & 1 << (signal.SIGTERM - 1):
            return
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--provider=aws"], "give --address HOST:PORT of Ray's head"),
        (["--address=auto"], "auto: not an address of Ray's head; write HOST:PORT"),
        (["--address=ray://h:1"], "ray://h:1: not an address of Ray's head"),
        (["--address=h:1", "--now"], "--now is for a preStop hook"),
        (
            ["--address=h:1", "--provider=aws", "--endpoint=https://h"],
            "not the address of a metadata",
        ),
        (["--address=h:1", "--provider=gcp", "--endpoint=h:x"], "not the address of a metadata"),
    ],
)
def test_invalid_options_are_refused_in_one_line(options, says):
    environment = {"RAY_ADDRESS": ""}
    process = agent(*options, **environment)
    talk = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 2
    assert says in talk
    assert len(talk.splitlines()) == 1


@pytest.mark.slow
def test_sigterm_is_the_notice_of_a_pod_and_the_agent_lives_until_its_grace_is_nearly_over():
    process = agent("--provider=kubernetes", f"--address={NOBODY}", "--grace=3.5")
    wait_for_handler(process)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    talk = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0
    assert time.monotonic() - began >= 3.5 - LEFT_FOR_RAY
    assert "the pod ends: this machine ends in" in talk
    assert talk.count("no Ray head answers there") == 1


def test_a_prestop_hook_needs_no_signal():
    handler = signal.getsignal(signal.SIGTERM)
    try:
        before = time.time()
        hook = PodEnd(grace=30.0, now=True)
        notice = hook.look()
        assert before + 30.0 <= notice.deadline <= time.time() + 30.0
        assert not hook.over()
        waits = PodEnd(grace=30.0, now=False)
        assert waits.look() is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert waits.look() == waits.look() != None  # noqa: E711 - both, and the same
    finally:
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize(
    ("vendor", "environment", "provider"),
    [
        ("Amazon EC2\n", {}, "aws"),
        ("Google\n", {}, "gcp"),
        ("Amazon EC2\n", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        (None, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
    ],
)
def test_a_provider_is_known_by_the_firmware_or_by_kubernetes(
    tmp_path, vendor, environment, provider
):
    if vendor:
        (tmp_path / "sys_vendor").write_text(vendor)
    assert detect(environment, tmp_path / "sys_vendor") == provider


@pytest.mark.parametrize("vendor", ["LENOVO\n", None])
def test_a_machine_of_no_cloud_is_refused_with_the_needed_option(tmp_path, vendor):
    if vendor:
        (tmp_path / "sys_vendor").write_text(vendor)
    with pytest.raises(ConfigError, match=r"--provider aws\|gcp\|kubernetes"):
        detect({}, tmp_path / "sys_vendor")


def test_the_service_s_address_comes_from_option_environment_or_the_cloud():
    def asked(provider, environment, option=""):
        return make_source(provider, environment, option, 30.0, False)._endpoint  # type: ignore[attr-defined]

    assert asked("aws", {}).host == "169.254.169.254"
    variable = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://[fd00:ec2::254]/"}
    assert asked("aws", variable).host == "fd00:ec2::254"
    assert asked("aws", variable, "http://127.0.0.1:81").port == 81
    assert asked("gcp", {}).host == "metadata.google.internal"
    assert asked("gcp", {"GCE_METADATA_HOST": "127.0.0.1:82"}).port == 82
    assert isinstance(make_source("aws", {}, "", 30.0, False), InstanceMetadata)
    assert isinstance(make_source("gcp", {}, "", 30.0, False), ComputeMetadata)
