"""A run on nodes that die, join, and are drained."""

import dataclasses
import os
import signal

import numpy as np
import pytest
from support import faults, trouble

from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.elastic import trainer
from trainrig.train.run.run_folder import RunFolder

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]


def list_reasons(events):
    return [(event["why"], event["workers"]) for event in events.all("attempt_started")]


@pytest.mark.timeout(600)
def test_a_node_whose_rank_was_killed_is_not_used_again(several_raylets, undisturbed, tmp_path):
    straight = undisturbed(40)
    job = trouble.slowed(straight, str(tmp_path / "run"), seconds=0.05)
    settings = job.training.faults.model_copy(update={"quarantine_after": 1})
    job = dataclasses.replace(job, training=job.training.model_copy(update={"faults": settings}))
    events = faults.Events(job.folder)

    def disturb():
        events.wait_for_a_step()
        os.kill(events.ranks()[1], signal.SIGKILL)

    aside = faults.Aside(disturb)
    trainer.run(job, (1, 2))
    aside.end()
    (failed,) = events.all("attempt_failed")
    (quarantined,) = events.all("node_quarantined")
    assert quarantined["node"] == failed["node"]
    # Both nodes stay in the cluster throughout, but the run neither starts on that one nor grows
    # onto it.
    assert list_reasons(events) == [("start", 2), ("shrink", 1)]
    found = faults.read_results(job)
    wanted = faults.read_results(straight)
    assert found["updates"] == wanted["updates"]
    at = {event["rank"]: event["agent"] for event in events.all("worker_started")[:2]}
    (last,) = events.all("worker_started")[2:]
    assert last["agent"] != at[1]


@pytest.mark.timeout(600)
def test_nodes_that_die_come_and_are_drained_change_nothing_but_the_pace(
    several_raylets, undisturbed, ranks, tmp_path
):
    straight = undisturbed(60)
    job = trouble.slowed(straight, str(tmp_path / "run"), seconds=0.05)
    events = faults.Events(job.folder)
    outcome = []
    aside = faults.Aside(lambda: outcome.append(trainer.run(job, (1, 2))))
    # The main thread adds nodes, as Ray's helper ties their lifetime to it.
    events.wait("first_step", 1)
    several_raylets.die()
    events.wait("first_step", 2)
    several_raylets.come()
    events.wait("first_step", 3)
    several_raylets.drain()
    aside.end()
    assert list_reasons(events) == [("start", 2), ("shrink", 1), ("grow", 2), ("drain", 1)]
    (lost,) = events.all("attempt_failed")
    # Which of the signs is noticed first depends on chance.
    ways = ("its node is lost", "a node is gone", "its fork server or its machine")
    assert any(way in lost["problem"] for way in ways), lost
    stopped = {event["why"]: event["step"] for event in events.all("attempt_stopped")}
    resumed = [attempt.resumed_step for attempt in events.folder.read_attempts()]
    assert resumed[2:] == [stopped["grow"], stopped["drain"]]  # no step is repeated
    assert outcome[0].checkpoint.step == 60
    found = faults.read_results(job)
    wanted = faults.read_results(straight)
    for name in ("updates", "held out", "samples"):
        assert found[name] == wanted[name], name
    # One run was saved by one rank and the other by two: the whole tensors are equal.
    (mine,), (others,) = (
        ranks(1, "tensors", job=run, resume_from=find_newest_valid(RunFolder(run.folder))[0].path)
        for run in (job, straight)
    )
    assert mine.keys() == others.keys()
    assert all(np.array_equal(mine[name], others[name]) for name in mine)
