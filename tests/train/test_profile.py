"""Profiles recorded by `[training.profile]`, which change nothing in the run."""

import gzip
import json
from pathlib import Path

import pytest

from trainrig.train.held_out_loss import StepProfile
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

EXACT = ("train/loss", "train/grad_norm", "train/tokens")


@pytest.fixture(scope="module")
def profiled(ranks, make_job, tmp_path_factory):
    """Return runs of two ranks by whether one recorded steps 3 to 5, the last."""
    jobs = {}
    for recorded in (True, False):
        profile = {"steps": (3, 9), "ranks": (1, 7)} if recorded else None
        training = {"steps": 5, "profile": profile}
        job = make_job(tmp_path_factory.mktemp(f"profiled-{recorded}"), training=training)
        ranks(2, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        jobs[recorded] = job
    return jobs


@pytest.mark.slow
def test_a_trace_has_the_chosen_steps_and_their_operations_and_memory(profiled):
    (written,) = Path(profiled[True].folder, "profile", "attempt-0001").iterdir()
    assert written.name == "rank-00001.trace.json.gz"
    events = json.loads(gzip.decompress(written.read_bytes()))["traceEvents"]
    steps = {event["name"]: event for event in events if event["name"].startswith("step ")}
    assert steps.keys() == {"step 3", "step 4", "step 5"}
    for step in steps.values():
        inside = [
            event["name"]
            for event in events
            if event.get("ph") == "X" and step["ts"] <= event["ts"] <= step["ts"] + step["dur"]
        ]
        assert {"aten::mm", "FSDP::all_gather"} <= {name.split(" ")[0] for name in inside}
    held = [event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]"]
    assert max(held) > 0


@pytest.mark.slow
def test_profiling_changes_no_bit_of_the_run(profiled, last_weights):
    def exact(job):
        return [[line[name] for name in EXACT] for line in metrics.read_series(job.folder)]

    assert exact(profiled[True]) == exact(profiled[False])
    assert last_weights(profiled[True]) == last_weights(profiled[False])
    assert not Path(profiled[False].folder, "profile").exists()


@pytest.mark.parametrize("steps", [(0, 3), (5, 4)])
def test_steps_that_name_no_update_are_refused(steps):
    with pytest.raises(ValueError, match="names no update"):
        StepProfile(steps=steps)
