"""A preemption notice from the cloud: the node's agent reads it, and training moves in time."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from support import faults, trouble
from support.waiting import wait_until

from trainrig.launch.spot.preemption_notices import INTERRUPTION, REBALANCE
from trainrig.train.elastic import trainer

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]


@pytest.fixture
def agent(several_raylets, metadata_service, tmp_path):
    """Start the agent of the second node and return the path of its log."""
    command = [sys.executable, "-m", "trainrig.launch.spot", "--provider=aws"]
    command += [f"--address={several_raylets.address}"]
    command += [f"--node={several_raylets.nodes[-1].node_id}"]
    variable = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata_service.url}
    talk = tmp_path / "agent.log"
    with talk.open("w") as file:
        process = subprocess.Popen(command, stderr=file, env={**os.environ, **variable})
    yield talk
    assert process.poll() is None  # no failure of the service ended the agent
    process.kill()
    process.wait()


def make_notice(seconds):
    when = datetime.now(UTC) + timedelta(seconds=seconds)
    return json.dumps({"action": "terminate", "time": when.strftime("%Y-%m-%dT%H:%M:%SZ")})


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_training_saves_and_moves_when_the_notice_comes_and_no_step_is_done_twice(
    several_raylets, agent, metadata_service, undisturbed, tmp_path
):
    straight = undisturbed(60)
    # Steps take a second, and the notice comes some 20 s after the first.
    job = trouble.slowed(straight, str(tmp_path / "run"), seconds=0.25)
    events = faults.Events(job.folder)

    def cloud():
        events.wait("first_step")
        metadata_service.refuses = 503  # the service fails for a moment
        wait_until(lambda: "status 503" in agent.read_text())
        metadata_service.refuses = None
        metadata_service.put(REBALANCE, '{"noticeTime": "2026-11-22T08:20:00Z"}')
        wait_until(lambda: "this machine may be taken back" in agent.read_text())
        assert not events.all("node_draining")  # a warning alone drains no node
        metadata_service.forget_tokens()
        metadata_service.put(INTERRUPTION, make_notice(120))

    aside = faults.Aside(cloud)
    outcome = trainer.run(job, (1, 2))
    aside.end()
    whys = [(event["why"], event["workers"]) for event in events.all("attempt_started")]
    assert whys == [("start", 2), ("drain", 1)]
    assert not events.all("attempt_failed")
    left = events.all("attempt_stopped")[0]["step"]
    resumed = [attempt.resumed_step for attempt in events.folder.read_attempts()]
    assert resumed == [0, left] and left > 0
    assert outcome.checkpoint.step == 60
    assert "Ray is draining this machine" in agent.read_text()
    found = faults.read_results(job)
    wanted = faults.read_results(straight)
    for name in ("updates", "held out", "samples"):
        assert found[name] == wanted[name], name
