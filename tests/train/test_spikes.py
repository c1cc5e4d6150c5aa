"""Outliers, spikes, and the rollback of a run with a spike."""

import dataclasses
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.compare_runs import read_step_losses

from trainrig import storage
from trainrig.errors import Diverged
from trainrig.train.checkpoint import find_newest_valid, list_committed, open_model
from trainrig.train.loss_table import Loss
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import read_trained_samples
from trainrig.train.spikes import DataRange, SpikeDetector, Spikes
from trainrig.train.step import StepFigures

FEW = Spikes(window=16, confirm=3, margin=2, longest=20)


def draw_calm_run(steps, seed=0, loss=3.0):
    """Return losses and gradient norms of a run that learns: falling, with realistic noise."""
    dice = random.Random(seed)
    for step in range(steps):
        level = loss + 6.0 * math.exp(-step / 300)
        yield level + dice.gauss(0, 0.06), math.exp(dice.gauss(-0.5, 0.25))


def detect_spikes(detector, series, first=0):
    """Return the outliers' data steps, and the first spike with its last step."""
    outliers = []
    for step, (loss, norm) in enumerate(series, first):
        if detector.observe(step, loss, norm):
            outliers.append(step)
        if spike := detector.find_spike():
            return outliers, spike, step
    return outliers, None, None


def make_series_with_window(begin, end, steps=60, loss=20.0):
    return [
        (loss, 1.0) if begin <= at < end else line for at, line in enumerate(draw_calm_run(steps))
    ]


def test_ten_thousand_clean_steps_raise_no_alarm():
    assert detect_spikes(SpikeDetector(Spikes()), draw_calm_run(10_000)) == ([], None, None)


@pytest.mark.parametrize("tail", [2.5, 3.0, 5.0])
def test_norms_of_a_heavy_tail_are_no_spike(tail):
    dice = random.Random(1)
    series = [(loss, norm * dice.paretovariate(tail)) for loss, norm in draw_calm_run(2_000)]
    outliers, spike, _ = detect_spikes(SpikeDetector(Spikes()), series)
    assert spike is None and len(outliers) <= 2


def test_losses_near_0_that_differ_by_factors_are_no_spike():
    dice = random.Random(2)
    known = [(0.001 * dice.lognormvariate(0, 1), math.exp(dice.gauss(-3, 1))) for _ in range(1_000)]
    assert detect_spikes(SpikeDetector(Spikes()), known) == ([], None, None)
    forgotten = known[:500] + [(2.0, 1.0)] * 3 + known[500:]
    assert detect_spikes(SpikeDetector(Spikes()), forgotten)[0] == [500, 501, 502]


@pytest.mark.parametrize("loss", [math.nan, math.inf, 30.0])
@pytest.mark.parametrize("count", [1, 2])
def test_fewer_outliers_than_confirm_a_spike_are_skipped_and_no_more(loss, count):
    series = make_series_with_window(40, 40 + count, loss=loss)
    assert detect_spikes(SpikeDetector(FEW), series) == (list(range(40, 40 + count)), None, None)


@given(st.integers(20, 30), st.integers(3, 12))
@settings(max_examples=20)
def test_the_range_covers_the_window_with_two_steps_to_spare(begin, count):
    outliers, spike, at = detect_spikes(
        SpikeDetector(FEW), make_series_with_window(begin, begin + count)
    )
    assert outliers == list(range(begin, begin + count))
    assert spike.skip == DataRange(begin - 2, begin + count + 2) and at == begin + count + 1


def test_a_gap_within_a_spike_does_not_end_it():
    series = make_series_with_window(30, 36)
    series[32] = (3.0 + 6.0 * math.exp(-32 / 300), 0.6)
    outliers, spike, _ = detect_spikes(SpikeDetector(FEW), series)
    assert outliers == [30, 31, 33, 34, 35]
    assert spike.skip == DataRange(28, 38)


def test_a_spike_that_does_not_end_is_cut_where_it_is_longest():
    _, spike, at = detect_spikes(SpikeDetector(FEW), make_series_with_window(30, 60))
    assert (at, spike.skip) == (49, DataRange(28, 52))


def test_at_the_same_place_again_the_range_begins_earlier_and_in_the_end_it_gives_up():
    ranges = [DataRange(100, 108)]
    for begin in (92, 68, None):
        detector = SpikeDetector(FEW, skipped=ranges)
        detect_spikes(detector, draw_calm_run(40), first=60)
        _, spike, _ = detect_spikes(detector, make_series_with_window(8, 12, 20), first=100)
        assert spike.first == 108
        assert detector.gives_up(spike) == (begin is None)
        if begin is not None:
            assert spike.skip == DataRange(108 - 2 * 4 ** len(ranges), 114)
            ranges.append(spike.skip)


def test_ranges_far_away_are_no_reason_to_give_up():
    detector = SpikeDetector(FEW, skipped=[DataRange(at, at + 6) for at in (5, 200, 300)])
    _, spike, _ = detect_spikes(detector, make_series_with_window(40, 44))
    assert spike.again == 0


def test_another_level_that_the_run_file_announces_is_none():
    series = [*draw_calm_run(40), *draw_calm_run(40, loss=9.0)]
    assert detect_spikes(SpikeDetector(FEW, new_levels=[40]), series) == ([], None, None)
    assert detect_spikes(SpikeDetector(FEW), series)[1] is not None


def test_nothing_is_judged_before_the_window_is_full_or_where_it_is_off():
    series = make_series_with_window(3, 9)
    assert detect_spikes(SpikeDetector(FEW), series[:16]) == ([], None, None)
    assert detect_spikes(SpikeDetector(None), make_series_with_window(20, 30)) == ([], None, None)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (3.0, math.nan)])
def test_a_step_before_the_window_is_full_makes_no_update_if_it_is_not_finite(loss, norm):
    series = list(draw_calm_run(40))
    detector = SpikeDetector(FEW)
    assert detector.observe(0, loss, norm) is None  # no outlier: there is no reference yet
    figures = StepFigures(Loss(loss, {}, {}), norm, rate=0.1, tokens=1, outlier=None)
    assert figures.why_skipped
    detect_spikes(detector, series, first=1)
    straight = SpikeDetector(FEW)
    detect_spikes(straight, series, first=1)
    assert detector.build_entries() == straight.build_entries()


@given(st.integers(0, 59))
@settings(max_examples=30)
def test_its_memory_survives_json_at_any_step(stop):
    series = make_series_with_window(30, 36)
    straight = SpikeDetector(FEW)
    expected = [(straight.observe(*at), straight.find_spike()) for at in number_lines(series)]
    detector = SpikeDetector(FEW)
    got = []
    for at in number_lines(series):
        if at[0] == stop:
            detector = SpikeDetector(FEW).restore(json.loads(json.dumps(detector.build_entries())))
        got.append((detector.observe(*at), detector.find_spike()))
    assert got == expected


def number_lines(series):
    return [(step, loss, norm) for step, (loss, norm) in enumerate(series)]


def test_the_rate_is_cut_after_data_that_was_skipped():
    cut = FEW.model_copy(update={"rate_cut": 0.5, "rate_cut_steps": 10})
    detector = SpikeDetector(cut, skipped=[DataRange(20, 24), DataRange(28, 30)])
    shares = [detector.compute_rate_share(at) for at in (19, 24, 29, 30, 33, 34, 39, 40)]
    assert shares == [1, 0.5, 0.5, 0.25, 0.25, 0.5, 0.5, 1]


# --- runs

STEPS = 40
BATCH = 8
WATCHFUL = {"window": 16, "confirm": 3, "margin": 2, "loss_deviations": 8, "norm_deviations": 50}


def build_job(make_job, folder, **training):
    usual = {
        "steps": STEPS,
        "held_out": {"rows": 0},
        "checkpoints": {"every": 5, "keep": 100},
        "spikes": WATCHFUL,
        "optimizer": {"kind": "AdamW", "lr": 0.002},
    }
    return make_job(folder, batches={"epochs": 9}, training=usual | training)


def poison(*data_steps):
    """Return the samples of one micro-batch of each of `data_steps`, whose loss is far too high."""
    return {step * BATCH + 4: "high" for step in data_steps}


def run_attempts(world, job, group, **arguments):
    """Run attempts to the end of the run, as the supervisor does, and return their number."""
    for count in range(1, 9):
        newest = find_newest_valid(RunFolder(job.folder))[0]
        attempt = RunFolder(job.folder).take_attempt(newest.step if newest else 0)
        path = newest.path if newest else None
        ends = group(world, "train", job=job, attempt=attempt, resume_from=path, **arguments)
        if set(ends) == {STEPS}:
            return count
    raise AssertionError("it goes back without end")


def read_result(job):
    """Return the weights of the last checkpoint, and its contents other than tensors."""
    path = find_newest_valid(RunFolder(job.folder))[0].path
    held = {name: tensor.numpy().tobytes() for name, tensor in open_model(path).weights.items()}
    entries = json.loads(storage.read(storage.join(path, "state.json")))
    return held, {name: entries[name] for name in ("step", "data_step", "tokens", "skipped")}


def find_event(job, name):
    return [event for event in RunFolder(job.folder).read_events() if event["event"] == name]


@pytest.fixture(scope="module")
def by_hand(ranks, make_job, tmp_path_factory):
    """Return a run with settings that skip the bad window and two steps on either side of it."""
    job = build_job(make_job, tmp_path_factory.mktemp("by-hand"), skip_data=((24, 32),))
    assert run_attempts(1, job, ranks, poison=poison(26, 27, 28, 29)) == 1
    return job


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_a_bad_window_gives_the_result_of_a_run_that_skips_it(
    world, by_hand, ranks, make_job, tmp_path
):
    job = build_job(make_job, tmp_path)
    assert run_attempts(world, job, ranks, poison=poison(26, 27, 28, 29)) == 2
    (spike,) = find_event(job, "spike")
    assert [spike[name] for name in ("first", "last", "skip", "back_to")] == [26, 29, [24, 32], 20]
    assert read_result(job) == read_result(by_hand)
    assert read_step_losses(job) == read_step_losses(by_hand)
    assert read_trained_samples(RunFolder(job.folder)) == read_trained_samples(
        RunFolder(by_hand.folder)
    )
    assert read_result(job)[1]["skipped"] == [[24, 32]]


@pytest.mark.slow
def test_stops_and_other_checkpoints_change_nothing_of_it(by_hand, ranks, make_job, tmp_path):
    job = build_job(make_job, tmp_path, checkpoints={"every": 13, "keep": 100})
    poisoned = poison(26, 27, 28, 29)
    for rank, heartbeats in ((1, 9), (0, 37)):
        newest = find_newest_valid(RunFolder(job.folder))[0]
        attempt = RunFolder(job.folder).take_attempt(newest.step if newest else 0)
        ranks(
            2,
            "train",
            job=job,
            attempt=attempt,
            resume_from=newest.path if newest else None,
            poison=poisoned,
            told=(rank, "train", heartbeats),
        )
    run_attempts(1, job, ranks, poison=poisoned)
    assert read_result(job) == read_result(by_hand)
    assert read_step_losses(job) == read_step_losses(by_hand)


@pytest.mark.slow
def test_a_run_without_a_checkpoint_yet_goes_back_to_its_beginning(ranks, make_job, tmp_path):
    early, told = (
        build_job(make_job, tmp_path / name, checkpoints={"every": 30, "keep": 9}, skip_data=skip)
        for name, skip in (("early", ()), ("told", ((16, 25),)))
    )
    poisoned = poison(18, 19, 21, 22)
    assert run_attempts(1, early, ranks, poison=poisoned) == 2
    assert find_event(early, "spike")[0]["back_to"] == 0
    run_attempts(1, told, ranks, poison=poisoned)
    assert read_result(early) == read_result(told)


@pytest.mark.slow
def test_without_an_old_checkpoint_the_run_skips_only_the_outliers(ranks, make_job, tmp_path):
    job = build_job(make_job, tmp_path, checkpoints={"every": 1, "keep": 2})
    assert run_attempts(1, job, ranks, poison=poison(26, 27, 28)) == 1
    (spike,) = find_event(job, "spike")
    assert spike["back_to"] is None and "no checkpoint" in spike["what"]
    assert read_result(job)[1]["skipped"] == [[26, 29]]


@pytest.mark.slow
def test_a_branch_goes_back_to_the_checkpoint_that_it_started_from(
    by_hand, ranks, make_job, tmp_path
):
    folder = RunFolder(by_hand.folder)
    start = next(path for path, step, _ in list_committed(folder, folder.checkpoints) if step == 20)
    job = build_job(make_job, tmp_path, checkpoints={"every": 5, "keep": 100})
    job = dataclasses.replace(job, branch_from=start)
    assert run_attempts(1, job, ranks, poison=poison(26, 27, 28, 29)) == 2
    assert find_event(job, "spike")[0]["back_to"] == 0
    assert read_result(job) == read_result(by_hand)


@pytest.mark.slow
def test_a_spike_that_comes_back_ends_the_run_on_every_rank(alone, ranks, make_job, tmp_path):
    job = build_job(make_job, tmp_path, spikes=WATCHFUL | {"rollbacks": 0})
    with pytest.raises(AssertionError, match=Diverged.__name__):
        run_attempts(2, job, ranks, poison=poison(26, 27, 28))
