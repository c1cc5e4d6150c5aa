import dataclasses
import itertools
import math
import signal

import pytest
import torch
from support.waiting import wait_until
from torch.nn import functional

from trainrig.models.decoder import Decoder, initialise
from trainrig.optim.parameter_groups import group_by_decay
from trainrig.tokens.batches import IGNORE, TOKENS, read_local_batch
from trainrig.train.checkpoint import find_newest_valid, open_model
from trainrig.train.loop import LoopResult, train
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run.step_data import read_trained_samples

STEPS = 20  # steps of the undisturbed runs

# The metrics of a line that do not depend on clocks and attempts.
EXACT = ("train/loss", "train/grad_norm", "train/lr", "train/tokens")


def read_exact_metrics(job):
    return [
        (line["step"], *(line[name] for name in EXACT)) for line in metrics.read_series(job.folder)
    ]


def read_losses(job):
    return [line["train/loss"] for line in metrics.read_series(job.folder)]


def begin(world, ranks, job, **arguments):
    """Start a first attempt that is not meant to reach its end."""
    attempt = RunFolder(job.folder).take_attempt(0)
    return ranks.start(world, "train", job=job, attempt=attempt, **arguments)


# --- resuming


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_resuming_from_any_checkpoint_gives_the_run_that_never_stopped(
    world, straight, ranks, last_weights, tmp_path
):
    undisturbed = straight(world)
    for step in (4, 12, 16):
        job = dataclasses.replace(undisturbed, folder=str(tmp_path / f"from-{step}"))
        folder = RunFolder(job.folder)
        resume_from = f"{undisturbed.folder}/checkpoints/step_{step:08d}/attempt-0001"
        attempt = folder.take_attempt(step)
        assert ranks(world, "train", job=job, attempt=attempt, resume_from=resume_from) == (
            [STEPS] * world
        )
        assert read_exact_metrics(job) == read_exact_metrics(undisturbed)[step:]
        begun = [event["step"] for event in folder.read_events() if event["event"] == "first_step"]
        assert begun == [step + 1]
        assert last_weights(job) == last_weights(undisturbed)
        straight_samples = read_trained_samples(RunFolder(undisturbed.folder))
        assert read_trained_samples(folder) == {
            at: samples for at, samples in straight_samples.items() if at > step
        }


@pytest.mark.slow
def test_a_stop_after_any_number_of_steps_leaves_no_trace(alone, make_job, last_weights, tmp_path):
    def at_constant_rate(steps, folder):
        schedule = {"kind": "Constant", "warmup": 0}
        return make_job(folder, training={"steps": steps, "schedule": schedule})

    whole = at_constant_rate(6, tmp_path / "whole")
    train(whole, RunFolder(whole.folder).take_attempt(0), None)
    for stop in range(1, 6):
        folder = tmp_path / f"stopped-at-{stop}"
        for steps in (stop, 6):
            job = at_constant_rate(steps, folder)
            newest, _ = find_newest_valid(RunFolder(job.folder))
            attempt = RunFolder(job.folder).take_attempt(newest.step if newest else 0)
            train(job, attempt, newest.path if newest else None)
        assert read_exact_metrics(job) == read_exact_metrics(whole)
        assert last_weights(job) == last_weights(whole)


@pytest.mark.slow
def test_a_branch_of_a_longer_run_is_the_shorter_run_to_the_last_bit(
    alone, make_job, last_weights, tmp_path
):
    def job_of(steps, folder, **checkpoints):
        schedule = {"kind": "WarmupStableDecay", "warmup": 2, "decay": 0.5}
        settings = {"every": 100, **checkpoints}
        return make_job(
            folder, training={"steps": steps, "schedule": schedule, "checkpoints": settings}
        )

    def trained(job):
        train(job, RunFolder(job.folder).take_attempt(0), None)
        return job

    longer = trained(job_of(12, tmp_path / "longer", keep_at=(3,)))
    shorter = trained(job_of(6, tmp_path / "shorter"))
    at = f"{longer.folder}/checkpoints/step_00000003/attempt-0001"
    branch = dataclasses.replace(job_of(6, tmp_path / "branch"), branch_from=at)
    assert read_exact_metrics(trained(branch)) == read_exact_metrics(shorter)[3:]
    assert last_weights(branch) == last_weights(shorter)


@pytest.mark.chaos
@pytest.mark.parametrize(("world", "victim"), [(1, 0), (2, 0), (2, 1)])
def test_a_run_with_a_killed_rank_gives_the_undisturbed_result(
    world, victim, straight, mortal_ranks, go_on, last_weights, tmp_path
):
    undisturbed = straight(world)
    job = dataclasses.replace(undisturbed, folder=str(tmp_path / "run"))
    # The rank hangs on the data of its eleventh step until it is killed, two steps after a
    # checkpoint.
    processes = begin(world, mortal_ranks, job, fault=(victim, "stall", 10))
    # A thread saves it, which a busy machine may delay.
    saved = tmp_path / "run" / "checkpoints" / "step_00000008" / "attempt-0001" / "manifest.json"
    wait_until(lambda: len(read_losses(job)) == 10 and saved.exists(), process=processes[victim])
    processes[victim].send_signal(signal.SIGKILL)
    processes[victim].wait()
    newest, damages = find_newest_valid(RunFolder(job.folder))
    assert (newest.step, damages) == (8, [])
    go_on(world, job)
    assert [a.resumed_step for a in RunFolder(job.folder).read_attempts()] == [0, 8]
    assert read_exact_metrics(job) == read_exact_metrics(undisturbed)
    assert last_weights(job) == last_weights(undisturbed)
    assert read_trained_samples(RunFolder(job.folder)) == read_trained_samples(
        RunFolder(undisturbed.folder)
    )


@pytest.mark.chaos
def test_a_checkpoint_cut_short_by_a_kill_does_not_count(
    straight, mortal_ranks, go_on, last_weights, tmp_path
):
    undisturbed = straight(2)
    job = dataclasses.replace(undisturbed, folder=str(tmp_path / "run"))
    processes = begin(2, mortal_ranks, job, fault=(0, "die in save", 12))
    assert processes[0].wait() == -signal.SIGKILL
    half_written = tmp_path / "run" / "checkpoints" / "step_00000012" / "attempt-0001"
    assert len(list(half_written.iterdir())) == 4  # all but the manifest
    newest, damages = find_newest_valid(RunFolder(job.folder))
    assert (newest.step, damages) == (8, [])
    go_on(2, job)
    assert read_exact_metrics(job) == read_exact_metrics(undisturbed)
    assert last_weights(job) == last_weights(undisturbed)


# --- any number of ranks (see also test_any_world.py)


@pytest.mark.parametrize("world", [2, 3])
def test_every_step_says_how_many_ranks_took_it(world, straight):
    job = straight(world)
    workers = {line["cluster/workers"] for line in metrics.read_series(job.folder)}
    assert len(read_losses(job)) == STEPS and workers == {world}


@pytest.mark.slow
def test_more_ranks_than_micro_batches_give_the_same_losses_too(ranks, make_job, tmp_path):
    few = {"global_batch": 4, "micro_batch": 2}
    jobs = [make_job(tmp_path / str(world), batches=few) for world in (1, 3)]
    for world, job in zip((1, 3), jobs, strict=True):
        ranks(world, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    assert read_exact_metrics(jobs[1]) == read_exact_metrics(jobs[0])


@pytest.mark.slow
def test_a_run_resumes_on_another_number_of_ranks(straight, ranks, tmp_path):
    one = straight(1)
    job = dataclasses.replace(one, folder=str(tmp_path))
    path = f"{straight(2).folder}/checkpoints/step_00000008/attempt-0001"
    attempt = RunFolder(job.folder).take_attempt(8)
    ranks(3, "train", job=job, attempt=attempt, resume_from=path)
    assert read_exact_metrics(job) == read_exact_metrics(one)[8:]


def test_a_rank_reads_its_own_micro_batches_alone(make_job, tmp_path):
    batches = make_job(tmp_path).make_batches()
    read = []
    micro_batch = batches.micro_batch
    batches.micro_batch = lambda step, index: read.append((step, index)) or micro_batch(step, index)
    share = read_local_batch(batches, 1, 3, 5)
    # Its own row, and an empty one to join the others' second round.
    assert read == [(5, 1), (5, 0)]
    assert [real for _, real in share.assigned] == [True, False]
    assert share.denominators == {TOKENS: batches.targets(5)}


# --- results of a step


@pytest.mark.slow
def test_micro_batches_of_any_size_give_the_same_losses(alone, make_job, tmp_path):
    series = {}
    for size in (1, 2, 4, 8):
        job = make_job(tmp_path / str(size), batches={"micro_batch": size})
        train(job, RunFolder(job.folder).take_attempt(0), None)
        series[size] = read_losses(job)
    for size in (1, 2, 4):
        assert series[size] == pytest.approx(series[8], rel=1e-5)


@pytest.mark.slow
def test_reading_ahead_changes_nothing(alone, make_job, straight, tmp_path):
    for ahead in (0, 1):
        training = {"steps": STEPS, "prefetch_steps": ahead}
        job = make_job(tmp_path / str(ahead), training=training)
        train(job, RunFolder(job.folder).take_attempt(0), None)
        assert read_exact_metrics(job) == read_exact_metrics(straight(1))


@pytest.mark.slow
def test_attention_stays_in_its_document_where_the_run_file_says_so(alone, make_job, tmp_path):
    job = make_job(tmp_path / "document", batches={"attend": "document"})
    across = make_job(tmp_path / "window")
    for run in (job, across):
        train(run, RunFolder(run.folder).take_attempt(0), None)
    plain = list(compute_plain_losses(job, make_fresh_model(job), 12))
    assert read_losses(job) == pytest.approx([loss for loss, _ in plain], rel=1e-5)
    assert read_losses(job) != pytest.approx(read_losses(across), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, {"size": 40}])
def test_long_rows_of_documents_leave_the_same_bits_on_any_number_of_ranks(
    ranks, make_job, tmp_path, window
):
    """A CPU computes such rows by document: see models/kernels/cpu_attention.py."""
    batches = {"sequence_length": 160, "global_batch": 6, "micro_batch": 2, "attend": "document"}
    model = {"positions": 160, "attention": {"window": window}}
    job = make_job(tmp_path, 3, batches=batches, model=model)
    found = [answer for n in (1, 2, 3) for answer in ranks(n, "steps", job=job, count=3)]
    assert len({answer["digest"] for answer in found}) == 1


def make_fresh_model(job):
    model = Decoder(job.model)
    initialise(model, job.training.seed)
    return model


def compute_plain_losses(job, model, steps):
    """Return the losses of the run without FSDP and micro-batches, in plain torch."""
    training = job.training
    optimizer = torch.optim.AdamW(
        group_by_decay(model.named_parameters(), training.optimizer.weight_decay),
        betas=training.optimizer.betas,
        eps=training.optimizer.epsilon,
    )
    batches = job.make_batches()
    for step in range(steps):
        ids, targets, positions = (
            None
            if getattr(batches.at(step)[0], name) is None
            else torch.cat([torch.from_numpy(getattr(m, name)) for m in batches.at(step)])
            for name in ("ids", "targets", "positions")
        )
        logits = model(ids, positions_BT=positions).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = training.optimizer.lr * compute_cosine(step, training)
        optimizer.step()
        yield loss.item(), norm.item()


def compute_cosine(step, training):
    """Compute a warm-up of two steps, then half a cosine down to a tenth."""
    if step < 2:
        return (step + 1) / 2
    fallen = (step - 1) / (training.steps - 2)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * fallen))


def test_the_loop_does_what_a_plain_torch_loop_does(straight):
    job = straight(1)
    plain = list(compute_plain_losses(job, make_fresh_model(job), STEPS))
    assert read_losses(job) == pytest.approx([loss for loss, _ in plain], rel=1e-5)
    norms = [line["train/grad_norm"] for line in metrics.read_series(job.folder)]
    assert norms == pytest.approx([norm for _, norm in plain], rel=1e-4)
    clipped = [norm > job.training.clip_norm for norm in norms]
    assert any(clipped) and not all(clipped)  # otherwise one of the two cases is not tested


def test_the_learning_rate_follows_the_schedule(straight):
    job = straight(1)
    rates = [line["train/lr"] for line in metrics.read_series(job.folder)]
    expected = [0.01 * compute_cosine(step, job.training) for step in range(STEPS)]
    assert rates == pytest.approx(expected, rel=1e-12)
    assert rates[:3] == pytest.approx([0.005, 0.01, 0.01], rel=0.01)
    assert rates[-1] == pytest.approx(0.001)


def test_the_targets_of_a_step_are_counted_once(straight):
    job = straight(3)
    batches = job.make_batches()
    assert batches.targets(0) == 8 * 32
    assert sum(int((micro.targets != IGNORE).sum()) for micro in batches.at(0)) == 8 * 32
    assert [line["train/tokens"] for line in metrics.read_series(job.folder)] == list(
        itertools.accumulate([8 * 32] * STEPS)
    )


def test_training_lowers_the_loss(straight):
    first, *_, last = read_losses(straight(1))
    assert first == pytest.approx(math.log(320), rel=0.02)  # untrained weights
    assert last < 0.6 * first


def test_a_run_at_its_end_takes_no_further_step(alone, straight, last_weights, tmp_path):
    finished = straight(1)
    job = dataclasses.replace(finished, folder=str(tmp_path))
    resume_from = find_newest_valid(RunFolder(finished.folder))[0].path
    assert train(job, TrainingAttempt(1, STEPS), resume_from) == LoopResult(STEPS, stopped=False)
    assert read_losses(job) == [] and not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_a_run_may_start_from_the_weights_of_another(alone, straight, make_job, tmp_path):
    """Counters, the schedule and the optimizer's state begin again."""
    trained = find_newest_valid(RunFolder(straight(2).folder))[0].path
    job = dataclasses.replace(make_job(tmp_path), initial_weights=trained)
    train(job, RunFolder(job.folder).take_attempt(0), None)
    plain = list(compute_plain_losses(job, open_model(trained).build(), job.training.steps))
    assert read_losses(job) == pytest.approx([loss for loss, _ in plain], rel=1e-5)
    assert read_losses(job)[0] < 1.2 * read_losses(straight(1))[-1]
    first = metrics.read_series(job.folder)[0]
    assert (first["step"], first["train/tokens"]) == (1, 8 * 32)
