"""Partial rollouts: unfinished completions continue with later weights, complete and in time."""

import dataclasses
import itertools
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import rollout_runs
from support.rollout_runs import continue_run, start_samplers

from trainrig.config import to_toml
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.generation import Generation, Request, ScoredGeneration, generate_batch
from trainrig.models.token_sampling import Sampling
from trainrig.objectives.log_probabilities import read_tokens
from trainrig.posttrain.prompt_files import Prompt
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.rl.partial_batches import (
    BORN,
    COMPLETIONS,
    LENGTH,
    NEXT,
    OVER,
    PLACE,
    SAMPLE,
    PartialWaves,
    choose_groups,
    select_unit,
)
from trainrig.rl.reinforcement_run_file import Rollouts
from trainrig.rl.reinforcement_stage import prepare
from trainrig.rl.rollout_generation import Transcript, TranscriptSampler
from trainrig.rl.rollout_requests import name_rollouts_folder
from trainrig.tokens.batches import (
    BEHAVIOUR,
    ENTRIES,
    IGNORE,
    IMPORTANCE,
    IMPORTANCE_LIMIT,
    OLD,
    SAMPLED,
    STALENESS,
    TARGETS,
    UNFINISHED,
    WAVES,
)
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches
from trainrig.train.run_report.rollout_charts import draw_rollouts
from trainrig.train.run_report.run_page import read_report_data

STEPS = 6
LONGEST = 13
BUDGET = 3
LIMIT = 1.02
ADDED = {BEHAVIOUR, IMPORTANCE, IMPORTANCE_LIMIT, STALENESS, UNFINISHED, WAVES}


def run_of(make_run, output, partial, **rollouts):
    """Return a run file: some answers end at a vowel, others continue to the limit."""
    training = {"steps": STEPS, "checkpoints": {"every": 1, "keep": 9}}
    rewards = ({"kind": "PatternShape", "pattern": "[rst]", "whole": False},)
    given = {"maximum_tokens": LONGEST, "stop": ("a", "e", "o"), "importance_limit": LIMIT}
    given |= {"samples": 2, "micro_batch": 4, "partial": partial, **rollouts}
    return make_run(output, rollouts=given, training=training, rewards=rewards)


def train_with_partial_rollouts(make_run, output, **rollouts):
    return run_of(make_run, output, {"budget": BUDGET, "staleness": 2}, **rollouts)


def read_results(job):
    """Return the bytes of micro-batches, batch state and final weights, and the losses."""
    batches = {}
    for batch in list_stored_batches(RunFolder(job.folder)):
        for index, file in enumerate((*batch.files, batch.left)):
            data = (Path(batch.folder) / file["name"]).read_bytes()
            batches[batch.number, batch.waves, index] = data
    weights = checkpoint.open_model(job.folder).build().state_dict()
    losses = [(line["step"], line["train/loss"]) for line in metrics.read_series(job.folder)]
    return batches, losses, {name: value.numpy().tobytes() for name, value in weights.items()}


@pytest.fixture(scope="module")
def alone(ranks, make_run, tmp_path_factory):
    """Return a run whose single rank samples between its steps."""
    run = train_with_partial_rollouts(make_run, tmp_path_factory.mktemp("partial") / "run")
    job = continue_run(ranks, run, 1)
    Path(job.folder, "run.toml").write_text(to_toml(run))  # the stage does the same
    return job


@pytest.mark.parametrize(
    ("whole", "born", "chosen"),
    [
        ([1, 1, 1], [5, 5, 5], [0, 1]),
        ([0, 1, 0, 1], [4, 5, 5, 5], [1, 3]),
        ([0, 1, 0, 0], [4, 5, 5, 5], None),  # too few
        ([0, 1, 1, 0], [3, 3, 5, 5], None),  # the first is due
        ([1, 1, 1, 0], [3, 3, 5, 5], [0, 1]),
        # Three groups are due in the next batch, which holds two.
        ([0, 1, 0, 1, 0], [4, 4, 4, 5, 4], None),
        ([0, 1, 0, 1], [4, 4, 4, 5], [1, 3]),
        ([1, 1, 0, 0, 0, 0, 0], [5, 5, 5, 5, 5, 5, 5], None),  # 5 are left for two batches
    ],
)
def test_a_batch_is_of_the_first_groups_that_are_whole_unless_others_would_be_late(
    whole, born, chosen
):
    """Batch 5 has two groups, and tokens may be at most two batches old."""
    found = choose_groups(np.array(whole, dtype=bool), np.array(born), 5, 2, 2)
    assert (found is None) if chosen is None else found.tolist() == chosen


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@example(prompts=2, samples=2, staleness=1, lengths=[14, 1, 1])
@given(
    prompts=st.integers(1, 4), samples=st.integers(1, 3), staleness=st.integers(1, 3),
    lengths=st.lists(st.sampled_from([1, 1, 2, 14]), min_size=1, max_size=17),
)  # fmt: skip
def test_every_group_is_trained_on_once_in_time_and_whole(prompts, samples, staleness, lengths):
    """Completion n has `lengths[n]` tokens, each of them the sample's number.

    A wave samples two tokens.
    """
    partial = {"budget": 2, "staleness": staleness}
    wanted = Rollouts(prompts=prompts, samples=samples, micro_batch=samples, partial=partial)
    batches = []
    left = {}

    def assemble(number, rows, waves, unfinished):
        batches.append((number, rows))
        return []

    for number in range(12):
        waves = PartialWaves(wanted, (), number, left, assemble)
        for _ in range(40):
            if waves.find_filled() is not None:
                break
            count, asked = waves.next()
            assert 1 <= len(asked[PLACE]) <= prompts * samples
            units = [select_unit(asked, index, samples) for index in range(count)]
            assert all(1 <= len(unit[PLACE]) <= samples for unit in units)
            waves.take([write_unit(unit, samples, lengths) for unit in units])
        else:
            raise AssertionError(f"batch {number} is never full")
        left = waves.list_left()
    begun = [int(p) for _, rows in batches for p in rows[PLACE][::samples]]
    waiting = left[PLACE][::samples].tolist()
    assert sorted(begun + waiting) == list(range(left[NEXT][0]))
    for number, rows in batches:
        assert len(rows[PLACE]) == prompts * samples and rows[OVER].all()
        assert (number - rows[BORN] <= staleness).all()
        numbers = rows[PLACE] * samples + rows[SAMPLE]
        for row, sample in enumerate(numbers):
            length = lengths[sample % len(lengths)]
            assert rows[LENGTH][row] == length
            assert rows[COMPLETIONS][row].tolist()[:length] == [sample] * length


def write_unit(unit, samples, lengths):
    numbers = unit[PLACE] * samples + unit[SAMPLE]
    most = np.array([lengths[n % len(lengths)] for n in numbers])
    length = np.minimum(most, unit[LENGTH] + 2)
    wide = np.where(np.arange(length.max()) < length[:, None], numbers[:, None], 0)
    same = {name: array for name, array in unit.items() if array.ndim == 1}
    later = {name: np.zeros(wide.shape) for name, array in unit.items() if array.ndim == 2}
    return same | later | {COMPLETIONS: wide, LENGTH: length, OVER: (length == most).astype(int)}


def test_a_continued_completion_equals_an_uninterrupted_one():
    model = Decoder(DecoderConfig(layers=2, channels=32, heads=4, positions=48, vocabulary=96))
    initialise(model, seed=3)
    prompt = (5, 6, 7)
    (whole,) = generate_batch(model, [Request(prompt, Sampling(seed=4, maximum_tokens=9))], stop=())
    ids = ()
    for count in (2, 4, 3):
        sampling = Sampling(seed=4, maximum_tokens=count)
        request = Request((*prompt, *ids), sampling, written=len(ids))
        ids += generate_batch(model, [request], stop=())[0].ids
    assert ids == whole.ids


def test_a_text_that_ends_it_is_found_across_what_was_left_off(make_run, encoder, tmp_path):
    run = train_with_partial_rollouts(make_run, tmp_path / "run", stop=("stop",))
    text = list(b"go on: st") + list(b"op there")  # three tokens at a time: "go ", …, " st", "op "
    ids = [int(encoder.encode_batch([chr(character)])[0][0]) for character in text]

    def generate(model, requests, stop, entries):
        (request,) = requests
        said = []
        for drawn in ids[request.written : request.written + request.sampling.maximum_tokens]:
            said.append(drawn)
            if request.listen(drawn):
                return [ScoredGeneration(Generation(tuple(said), "stop"), (-1.0,) * len(said))]
        return [ScoredGeneration(Generation(tuple(said), "length"), (-1.0,) * len(said))]

    run = run.model_copy(update={"rollouts": run.rollouts.model_copy(update=LONG)})
    sampler = TranscriptSampler(run, PromptEncoder(encoder), None, generate)
    transcript = Transcript(Prompt(0, "", (5,), {}), 0)
    for _ in range(9):
        if transcript.over:
            break
        sampler.go_on(None, [transcript], BUDGET)
        transcript = dataclasses.replace(transcript)  # a copy, as if it were read from disk
    assert transcript.text == "go on: " and transcript.finished
    assert transcript.ids == ids[:11] and len(transcript.log_probabilities) == 11


LONG = {"maximum_tokens": 40}


@pytest.mark.slow
def test_by_the_same_weights_a_completion_is_the_same_however_often_it_is_left_off(
    alone, make_run, fresh, tmp_path
):
    stop = ("a", "e", "th", "in")
    plain = prepare(run_of(make_run, tmp_path / "a", None, stop=stop))[0].make_batches()
    maker = prepare(train_with_partial_rollouts(make_run, tmp_path / "b", stop=stop))[
        0
    ].make_batches()
    model = checkpoint.open_model(fresh).build()
    expected = [
        row[row != IGNORE].tolist()
        for number, index in itertools.product(range(4), range(2))
        for row in plain.sample(model, number, index)[TARGETS]
    ]
    found = []
    left = {}
    for number in range(3):
        waves = maker.begin(number, left)
        while (filled := waves.find_filled()) is None:
            count, asked = waves.next()
            with torch.no_grad():
                waves.take([maker.sample(model, number, index, asked) for index in range(count)])
        rows = [row for batch in filled for row in batch[TARGETS]]
        found += [row[row != IGNORE].tolist() for row in rows]
        left = waves.list_left()
    assert any(1 < len(row) < LONGEST for row in found)
    assert any(len(row) == LONGEST for row in found)
    for said in map(tuple, found):
        expected.remove(list(said))


@pytest.mark.slow
def test_with_a_budget_that_none_needs_nothing_is_other_than_without(ranks, make_run, tmp_path):
    whole = continue_run(ranks, run_of(make_run, tmp_path / "whole", None), 1)
    roomy = {"budget": LONGEST, "staleness": 1}
    found = continue_run(ranks, run_of(make_run, tmp_path / "roomy", roomy), 1)
    assert rollout_runs.read_results(found) == rollout_runs.read_results(whole)
    for ours, theirs in zip(
        *(list_stored_batches(RunFolder(job.folder)) for job in (found, whole)), strict=True
    ):
        assert ours.waves == 1 and ours.denominators == theirs.denominators
        for index in range(2):
            mine = ours.read_micro_batch(index)
            other = theirs.read_micro_batch(index)
            assert mine.arrays.keys() == other.arrays.keys() | ADDED
            for name, array in other.arrays.items():
                np.testing.assert_array_equal(mine.arrays[name], array, err_msg=name, strict=True)
            np.testing.assert_array_equal(mine.pieces, other.pieces)
            assert (mine.arrays[IMPORTANCE] == (mine.targets != IGNORE)).all()
            assert not (mine.arrays[STALENESS].any() or mine.arrays[UNFINISHED].any())


@pytest.mark.slow
def test_each_token_keeps_what_the_weights_of_its_time_gave_it(alone, fresh):
    """Compute each segment again with the checkpoint that sampled it."""
    batches = list_stored_batches(RunFolder(alone.folder))
    models = [checkpoint.open_model(fresh).build()]
    for step in range(1, STEPS):
        models.append(checkpoint.open_model(f"{alone.folder}/checkpoints/step_{step:08d}").build())
    oldest = []
    partial = 0
    for batch, index in itertools.product(batches, range(2)):
        micro = batch.read_micro_batch(index)
        arrays = micro.arrays
        there = micro.targets != IGNORE
        stale = arrays[STALENESS]
        expected = np.zeros(stale.shape, dtype=np.float32)
        for behind in np.unique(stale[there]):
            of = models[batch.number - behind]
            ids = torch.from_numpy(micro.ids)
            targets = torch.from_numpy(micro.targets)
            with torch.no_grad():
                read = read_tokens(of, ids, targets, 1.0, int(arrays[ENTRIES][0]))
            segment = there & (stale == behind)
            expected[segment] = read.log_probabilities_BT.numpy()[segment]
        np.testing.assert_allclose(arrays[BEHAVIOUR], expected, atol=1e-5)
        assert np.abs(arrays[SAMPLED] - arrays[BEHAVIOUR]).max() < 1e-4
        fresh_BT = there & (stale == 0)
        np.testing.assert_array_equal(arrays[BEHAVIOUR][fresh_BT], arrays[OLD][fresh_BT])
        weights = np.minimum(np.exp(arrays[OLD] - arrays[BEHAVIOUR]), LIMIT) * there
        np.testing.assert_allclose(arrays[IMPORTANCE], weights, atol=1e-6)
        assert (arrays[IMPORTANCE][fresh_BT] == 1).all()
        for row in range(len(stale)):
            segments = stale[row][there[row]]
            assert (np.diff(segments) <= 0).all()  # later tokens come from later weights
            partial += segments[0] > segments[-1]
        oldest.append(stale.max())
    assert max(oldest) == 2 and partial > 4


@pytest.mark.slow
def test_metrics_say_how_much_was_taken_over_and_how_old_it_is(alone):
    for batch, line in zip(
        list_stored_batches(RunFolder(alone.folder)), metrics.read_series(alone.folder), strict=True
    ):
        micros = [batch.read_micro_batch(index) for index in range(2)]
        there = [micro.targets != IGNORE for micro in micros]
        rows = [
            micro.arrays[STALENESS][row][mask[row]]
            for micro, mask in zip(micros, there, strict=True)
            for row in range(4)
        ]
        tokens = np.concatenate(rows)
        of = {name: line[f"train/diagnostics/{name}"] for name in EXPECTED}
        left = batch.read_left()
        assert of == {
            "staleness": pytest.approx(tokens.mean()),
            "stale_tokens": pytest.approx((tokens > 0).mean()),
            "partial": pytest.approx(np.mean([row.min() < row.max() for row in rows])),
            "unfinished": pytest.approx((left[OVER] == 0).sum() / 8),
            "waves": batch.waves,
        }


EXPECTED = ("staleness", "stale_tokens", "partial", "unfinished", "waves")


def test_the_report_shows_how_much_was_taken_over(alone):
    lines = metrics.read_series(alone.folder)
    found = draw_rollouts(read_report_data(alone.folder))["staleness"]
    shares = [line["train/diagnostics/stale_tokens"] for line in lines]
    assert [row[1] for row in found["rows"]] == shares
    assert found["last"]["train/diagnostics/stale_tokens"] == pytest.approx(np.mean(shares[-3:]))


@pytest.mark.slow
def test_two_ranks_continue_unfinished_completions(alone, ranks, make_run, tmp_path):
    """They continue from the fourth batch, which was not sampled yet."""
    shutil.copytree(alone.folder, tmp_path / "run")
    for gone in ("checkpoints/step_0000000[4-6]*", "online/batch_0000000[345]*"):
        for path in list(tmp_path.glob(f"run/{gone}")):
            shutil.rmtree(path)
    assert list_stored_batches(RunFolder(str(tmp_path / "run")))[-1].read_left()[PLACE].size
    job = continue_run(ranks, train_with_partial_rollouts(make_run, tmp_path / "run"), 2)
    assert read_results(job) == read_results(alone)


def test_lost_unfinished_completions_are_requested_again(alone, ranks, make_run, tmp_path):
    shutil.copytree(alone.folder, tmp_path / "run")
    for gone in ("checkpoints/step_0000000[4-6]*", "online/batch_0000000[2345]*"):
        for path in list(tmp_path.glob(f"run/{gone}")):
            shutil.rmtree(path)
    with pytest.raises(AssertionError, match="batch 3 continues"):
        continue_run(ranks, train_with_partial_rollouts(make_run, tmp_path / "run"), 1)


@pytest.mark.chaos
@pytest.mark.parametrize(("world", "actors"), [(3, 0), (2, 1), (1, 3)])
def test_completions_do_not_depend_on_the_process_that_continues_them(
    world, actors, alone, ranks, revived_ranks, make_run, tmp_path
):
    run = train_with_partial_rollouts(make_run, tmp_path / "run", actors=actors)
    with start_samplers(revived_ranks, run, actors):
        job = continue_run(ranks, run, world)
    assert read_results(job) == read_results(alone)
    assert not list(Path(name_rollouts_folder(RunFolder(job.folder))).rglob("*.npz"))


@pytest.mark.chaos
def test_a_run_that_is_killed_loses_nothing_that_was_left_off(
    alone, ranks, revived_ranks, mortal_ranks, make_run, tmp_path
):
    run = train_with_partial_rollouts(make_run, tmp_path / "run", actors=1)
    job, _, _ = prepare(run)
    fault = (0, "die before training", 3)
    with start_samplers(revived_ranks, run, 1):
        attempt = RunFolder(job.folder).take_attempt(0)
        (process,) = mortal_ranks.start(1, "train", job=job, attempt=attempt, fault=fault)
        assert process.wait() == -signal.SIGKILL
    with start_samplers(revived_ranks, run, 1):
        continue_run(ranks, run, 2)
    assert read_results(job) == read_results(alone)


@pytest.mark.slow
def test_a_critic_and_whole_ratios_learn_of_what_was_left_off(ranks, make_run, tmp_path):
    for kind in ("PPO", "RLOO"):
        rollouts = {"samples": 2, "micro_batch": 4, "maximum_tokens": LONGEST}
        partial = {"partial": {"budget": BUDGET, "staleness": 1}}
        run = make_run(
            tmp_path / kind, rollouts=rollouts | partial, objective={"kind": kind},
            training={"steps": 3},
        )  # fmt: skip
        job = continue_run(ranks, run, 2)
        lines = metrics.read_series(job.folder)
        assert all(np.isfinite(line["train/loss"]) for line in lines)
        assert json.dumps(lines[-1]) and len(lines) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rollouts": {"waves": 2}}, r"waves: with \[rollouts.partial\]"),
        ({"rollouts": {"redraws": 1}}, "partial and redraws"),
        ({"rollouts": {"lag": 1}}, "partial and lag"),
        ({"training": {"spikes": {}}}, r"rollouts.partial and training.spikes"),
        ({"environment": {"kind": "Calculator"}}, r"rollouts.partial and \[environment\]"),
    ],
)
def test_partial_rollouts_that_cannot_be_are_refused(changes, said, make_run, tmp_path):
    rollouts = {"partial": {"budget": 2}, **changes.pop("rollouts", {})}
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path / "run", rollouts=rollouts, **changes)
