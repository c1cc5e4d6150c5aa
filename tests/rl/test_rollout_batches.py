"""Batches that a model samples itself: their contents, which depend on the weights alone."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from support.rollout_runs import read_stored_batches, train_run

from trainrig.config import to_toml
from trainrig.errors import ConfigError, DataError
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.generation import Request, generate_batch, generate_scored
from trainrig.models.token_sampling import Sampling
from trainrig.objectives.log_probabilities import read_tokens
from trainrig.posttrain.prompt_files import read_prompt_set
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.rl.reinforcement_stage import prepare
from trainrig.runs.step_trace import trace
from trainrig.tokens.batches import (
    ADVANTAGES,
    DISTINCT,
    ENTRIES,
    FINISHED,
    FLAT,
    IGNORE,
    OLD,
    REFERENCE_TOKENS,
    REWARD_PART,
    REWARDS,
    SAMPLED,
    SHARED,
    TOKENS,
)
from trainrig.train import checkpoint
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import list_stored_batches
from trainrig.train.run_report.rollout_charts import REWARD, draw_rollouts
from trainrig.train.run_report.run_page import build_run_page, read_report_data
from trainrig.train.run_report.sampled_answers import (
    BatchAnswers,
    StoredAnswer,
)

HELD = {"kind": "GRPO", "reference": {"weight": 0.1}}


@pytest.fixture(scope="module")
def whole(ranks, make_run, tmp_path_factory):
    """Return a run of one rank."""
    output = tmp_path_factory.mktemp("rl") / "run"
    run = make_run(output, objective=HELD)
    job = train_run(ranks, run, 1)
    (output / "run.toml").write_text(to_toml(run))  # the stage does the same
    return job


def read_tensors(job):
    """Return the bytes of the final weights."""
    opened = checkpoint.open_model(job.folder)
    return {name: t.numpy().tobytes() for name, t in opened.build().state_dict().items()}


def test_log_probabilities_are_those_of_a_pass_over_the_whole():
    config = DecoderConfig(layers=2, channels=32, heads=4, positions=48, vocabulary=96)
    model = Decoder(config)
    initialise(model, seed=3)
    requests = [
        Request(prompt, Sampling(seed=seed, maximum_tokens=9, temperature=0.8))
        for seed, prompt in enumerate([(5, 6, 7), (9,), tuple(range(11))])
    ]
    stop = set(range(0, 96, 7))
    scored = generate_scored(model, requests, stop, entries=90)
    assert [one.generation for one in scored] == generate_batch(model, requests, stop, entries=90)
    assert {one.generation.stopped for one in scored} == {"end", "length"}
    for request, one in zip(requests, scored, strict=True):
        ends = () if one.generation.stop_id is None else (one.generation.stop_id,)
        ids = torch.tensor([(*request.prompt, *one.generation.ids, *ends)])
        targets = ids[:, 1:].clone()
        targets[:, : len(request.prompt) - 1] = IGNORE
        read = read_tokens(model, ids[:, :-1], targets, 0.8, 90)
        found = read.log_probabilities_BT[targets != IGNORE]
        np.testing.assert_allclose(found.detach(), one.log_probabilities, atol=2e-5)


@pytest.mark.slow
def test_a_batch_has_what_was_said_and_what_it_is_worth(whole, fresh):
    encoder = load_checkpoint_encoder(fresh)
    first, *_ = list_stored_batches(RunFolder(whole.folder))
    assert len(first.files) == 2
    model = checkpoint.open_model(fresh).build()
    for index in range(2):
        micro = first.read_micro_batch(index)
        there = micro.targets != IGNORE
        for row, reward in enumerate(micro.arrays[REWARDS]):
            ids = micro.targets[row][there[row]].tolist()
            ended = ids[-1] in encoder.special_tokens.stop_ids
            said = encoder.decode(ids[:-1] if ended else ids)
            exact = float(said.strip() == "e")
            shape = float("e" in said)
            assert micro.arrays[f"{REWARD_PART}exact"][row] == exact
            assert reward == exact + shape / 2
            assert micro.arrays[FINISHED][row] == ended
        groups = micro.arrays[REWARDS].reshape(2, 4)
        spread = groups.std(1, ddof=1, keepdims=True) + 1e-4
        expected = (groups - groups.mean(1, keepdims=True)) / spread
        np.testing.assert_allclose(micro.arrays[ADVANTAGES].reshape(2, 4), expected, atol=1e-5)
        assert (micro.arrays[FLAT].reshape(2, 4)[:, 0] == (np.ptp(groups, axis=1) == 0)).all()
        answers = [micro.targets[row][there[row]].tolist() for row in range(8)]
        for row, answer in enumerate(answers):
            own = answers[row // 4 * 4 :][:4]
            others = answers[4:] if row < 4 else answers[:4]
            different = sum(own[n] not in own[:n] for n in range(4))
            assert micro.arrays[DISTINCT][row] == different / 4
            assert micro.arrays[SHARED][row] == others.count(answer) / 4
        gap = np.abs(micro.arrays[SAMPLED] - micro.arrays[OLD])
        assert gap.max() < 1e-4
        # The policy began as its reference, and training gives the same values as a plain pass.
        np.testing.assert_array_equal(micro.arrays[REFERENCE_TOKENS], micro.arrays[OLD])
        ids = torch.from_numpy(micro.ids)
        targets = torch.from_numpy(micro.targets)
        with torch.no_grad():
            read = read_tokens(model, ids, targets, 1.0, int(micro.arrays[ENTRIES][0]))
        np.testing.assert_allclose(read.log_probabilities_BT, micro.arrays[OLD], atol=1e-5)
    assert first.denominators[TOKENS] == sum(
        int((first.read_micro_batch(i).targets != IGNORE).sum()) for i in range(2)
    )


@pytest.mark.slow
def test_trace_shows_each_completion_with_its_reward(whole):
    traced = trace(whole.folder, 2)
    assert traced.log == "agrees"
    batch = list_stored_batches(RunFolder(whole.folder))[1]
    assert [sequence.sample for sequence in traced.sequences] == list(range(16, 32))
    for sequence, text in zip(traced.sequences, traced.render_texts(None), strict=True):
        micro = batch.read_micro_batch(sequence.micro_batch)
        assert f"reward {micro.arrays[REWARDS][sequence.row]:g}, advantage" in text.plain
        assert f"prompt {micro.pieces[sequence.row, 2]}: " in text.plain


def load_checkpoint_encoder(path):
    from trainrig.tokens.tokenizers.encode import Encoder

    return Encoder.of(checkpoint.read_tokenizer_files(checkpoint.resolve(path)))


def test_each_prompt_is_asked_once_before_any_comes_again(whole, make_run, problems):
    asked = [
        number
        for batch in list_stored_batches(RunFolder(whole.folder))
        for index in range(len(batch.files))
        for number in batch.read_micro_batch(index).pieces[::4, 2].tolist()
    ]
    can_be = {0, 1, 3, 4, 6, 7, 8}  # rows 2 and 5 are unusable
    assert set(asked[:7]) == can_be and len(asked) == 12
    samples = [
        s
        for b in list_stored_batches(RunFolder(whole.folder))
        for s in b.read_micro_batch(1).samples
    ]
    assert samples == [*range(8, 16), *range(24, 32), *range(40, 48)]


@pytest.mark.slow
def test_rollouts_and_weights_are_the_same_at_any_number_of_ranks(whole, ranks, make_run, tmp_path):
    job = train_run(ranks, make_run(tmp_path / "run", objective=HELD), 2)
    assert read_stored_batches(job) == read_stored_batches(whole)
    assert (
        metrics.read_series(job.folder)[-1]["train/loss"]
        == (metrics.read_series(whole.folder)[-1]["train/loss"])
    )
    assert read_tensors(job) == read_tensors(whole)


@pytest.mark.slow
@pytest.mark.parametrize("gone", [False, True], ids=["stored", "to-be-sampled"])
def test_a_run_that_resumes_has_the_same_rollouts_and_weights(
    gone, ranks, make_run, whole, tmp_path
):
    run = make_run(
        tmp_path / "run", objective=HELD, training={"steps": 3, "checkpoints": {"every": 2}}
    )
    job = train_run(ranks, run, 2)
    shutil.rmtree(tmp_path / "run/checkpoints/step_00000003")
    if gone:
        (last,) = (tmp_path / "run/online").glob("batch_00000002-*")
        shutil.rmtree(last)
    train_run(ranks, run, 1, resume=True)
    attempts = [batch.attempt for batch in list_stored_batches(RunFolder(job.folder))]
    assert attempts == [1, 1, 2 if gone else 1]
    assert read_stored_batches(job) == read_stored_batches(whole)
    assert read_tensors(job) == read_tensors(whole)


@pytest.mark.slow
def test_a_reward_that_can_be_had_is_learnt(ranks, make_run, tmp_path):
    """On equal prompts, the share of answers with an e rises well above its start."""
    run = make_run(
        tmp_path / "run",
        rollouts={"updates": 2},
        rewards=({"kind": "PatternShape", "pattern": "e", "whole": False},),
        training={"steps": 40, "optimizer": {"kind": "AdamW", "lr": 2e-2}},
    )
    job = train_run(ranks, run, 1)
    rewards = [line["train/diagnostics/reward"] for line in metrics.read_series(job.folder)]
    assert len(list_stored_batches(RunFolder(job.folder))) == 20
    assert np.mean(rewards[-6:]) > np.mean(rewards[:6]) + 0.4
    assert rewards == [
        line["train/diagnostics/reward_pattern"] for line in metrics.read_series(job.folder)
    ]


@pytest.mark.slow
def test_prompts_without_a_signal_are_redrawn(ranks, make_run, tmp_path):
    kept, drawn = (
        train_run(
            ranks, make_run(tmp_path / str(n), rollouts={"redraws": n}, training={"steps": 1}), 1
        )
        for n in (0, 6)
    )
    flat = [
        [
            list_stored_batches(RunFolder(j.folder))[0].read_micro_batch(i).arrays[FLAT].sum()
            for i in (0, 1)
        ]
        for j in (kept, drawn)
    ]
    assert sum(flat[1]) < sum(flat[0])


def test_sampling_from_another_model_than_is_trained_ends_the_run(ranks, make_run, tmp_path):
    with pytest.raises(AssertionError, match=r"more than rollouts.largest_gap = 1e-12"):
        train_run(ranks, make_run(tmp_path / "run", rollouts={"largest_gap": 1e-12}), 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rollouts": {"prompt_tokens": 44}},
            r"prompt_tokens \(44\).*maximum_tokens \(5\) add up",
        ),
        ({"prompts": {"paths": ("nowhere.jsonl",)}}, "nowhere.jsonl"),
        (
            {"rewards": ({"kind": "ExactAnswer"}, {"kind": "ExactAnswer"})},
            "2 have the name 'exact'",
        ),
        (
            {"rewards": ({"kind": "ExactAnswer", "column": "gold"},)},
            "none of 9 rows",
        ),
    ],
)
def test_invalid_settings_are_rejected_before_anything_starts(changes, said, make_run, tmp_path):
    with pytest.raises((ConfigError, DataError), match=said):
        prepare(make_run(tmp_path / "run", **changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rollouts": {"micro_batch": 6}}, r"multiple of samples \(4\).* nearest above: 8"),
        ({"rollouts": {"prompts": 3}}, "multiple of micro_batch"),
        ({"lora": {"rank": 2, "dropout": 0.1}}, "lora.dropout: log-probabilities"),
        ({"rewards": ()}, "rewards"),
        ({"training": {"compile": {}}}, "training.compile: sampling calls"),
        ({"prompts": {"paths": ("a",), "template": "{{ x"}}, "invalid template"),
        ({"rollouts": {"actors": -1}}, r"should be 1 or more, or \[fewest, most\].*; 0 for none"),
        ({"rollouts": {"lag": -1}}, "greater than or equal to 0"),
        ({"rollouts": {"importance_limit": 0.5}}, "greater than or equal to 1"),
        (
            {"rollouts": {"lag": 1}, "training": {"spikes": {}}},
            r"rollouts.lag.*training.spikes: skipping data",
        ),
        ({"rollouts": {"lag": 1}, "training": {"skip_data": ((1, 2),)}}, "training.skip_data"),
        ({"rollouts": {"waves": 2, "redraws": 1}}, "redraws: both replace prompts"),
        ({"rollouts": {"waves": 2, "lag": 1}}, "waves and lag: with a lag"),
        ({"rollouts": {"waves": 2}, "training": {"spikes": {}}}, r"rollouts.waves and training.sp"),
        ({"rollouts": {"waves": 2, "samples": 1, "micro_batch": 4}}, "compares the completions"),
        (
            {
                "rollouts": {"waves": 2, "samples": 1, "micro_batch": 4},
                "objective": {"kind": "PPO"},
            },
            r"rollouts.waves: a single completion",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, said, make_run, tmp_path):
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path / "run", **changes)


def test_rows_that_cannot_be_asked_are_left_out_and_counted(fresh, make_run, tmp_path, caplog):
    encoder = PromptEncoder(load_checkpoint_encoder(fresh))
    run = make_run(tmp_path / "run")
    found = read_prompt_set(run.prompts, encoder, 32, ("answer",))
    assert found.left_out == {"no 'answer'": 1, "the prompt does not have 1 to 32 tokens": 1}
    assert "left out: 1 (no 'answer'); the first" in caplog.text and "line 3" in caplog.text
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"question": "a", "answer": "e"}) + "\n{torn\n")
    files = run.prompts.model_copy(update={"paths": (str(bad),)})
    with pytest.raises(DataError, match=r"bad.jsonl, line 2: not JSON"):
        read_prompt_set(files, encoder, 32)


@pytest.mark.slow
def test_adapters_learn_of_rollouts_too(ranks, make_run, tmp_path):
    run = make_run(tmp_path / "run", lora={"rank": 2}, objective=HELD)
    job, _, counted = prepare(run)
    checkpoint.keep_base(job.adapter, job.folder)
    assert counted["prompts"] == 7 and counted["prompts_left_out"] == 2
    train_run(ranks, run, 2)
    line = metrics.read_series(job.folder)[-1]
    assert line["train/diagnostics/reference_divergence"] > 0


def test_the_report_shows_rewards_their_parts_and_the_gap(whole):
    run_data = read_report_data(whole.folder)
    charts = draw_rollouts(run_data)
    assert list(charts) == ["reward", "exploration", "price", "gap"]
    reward, exploration, price, gap = charts.values()
    assert reward["columns"] == ("step", "reward", "exact", "pattern")
    lines = metrics.read_series(whole.folder)
    rewards = [line["train/diagnostics/reward"] for line in lines]
    assert [row[1] for row in reward["rows"]] == rewards
    away = [line["train/diagnostics/completion_divergence"] for line in lines]
    assert [row[1:] for row in price["rows"]] == list(zip(away, rewards, strict=True))
    gaps = [line["train/diagnostics/sampler_gap"] for line in lines]
    assert exploration["columns"][2] == "from the reference" and gap["most"] == max(gaps)
    assert [row[1] for row in gap["rows"]] == gaps
    page = build_run_page(run_data)
    assert f"Mean reward of completions {rewards[-1]:.3g}; at first {rewards[0]:.3g}" in page
    assert f"for a reward of {rewards[-1]:.3g}" in page and f"{max(gaps):.2g} nats" in page


@pytest.mark.slow
def test_the_report_shows_the_worst_and_the_best_of_what_was_said(whole):
    run_data = read_report_data(whole.folder)
    assert [batch.step for batch in run_data.answers] == [0, 1, 2]
    last = list_stored_batches(RunFolder(whole.folder))[-1]
    rewards = np.concatenate([last.read_micro_batch(i).arrays[REWARDS] for i in (0, 1)])
    said = run_data.answers[-1]
    assert [answer.reward for answer in said.answers] == rewards.tolist()
    assert all("is " in answer.prompt for answer in said.answers)
    assert all(("e" in answer.text) == (answer.parts["pattern"] == 1) for answer in said.answers)
    (worst, lowest), (best, highest) = said.pick_ends()
    assert (worst, lowest[0].reward) == ("Among the worst", rewards.min())
    assert (best, highest[0].reward) == ("Among the best", rewards.max())
    page = build_run_page(run_data)
    assert "Among the worst" in page and "after 1 update<" in page
    assert f"3 of 3 steps; reward {metrics.read_series(whole.folder)[-1][REWARD]:.3g}, at" in page


def make_fooled_line(step):
    """Return a metrics line of a run whose reward rises while the true score falls."""
    true = 0.6 - 0.05 * step
    trained = 0.1 + 0.1 * step
    named = {"reward": trained, "reward_model": trained, "reward_exact": true, "flat": 0.0}
    named |= {"entropy": 0.1, "sampler_gap": 1e-6}
    return {"step": step, **{f"train/diagnostics/{name}": value for name, value in named.items()}}


@pytest.mark.parametrize("measured", [("exact",), ()])
def test_a_reward_that_is_fooled_is_seen_by_what_is_only_measured(whole, measured):
    run_data = dataclasses.replace(
        read_report_data(whole.folder), updates=[make_fooled_line(step) for step in range(6)],
        measured=measured,
    )  # fmt: skip
    liked = StoredAnswer("1+1=", "3", 0.9, 1.0, {"model": 0.9, "exact": 0.0})
    right = StoredAnswer("1+1=", "2", 0.2, -1.0, {"model": 0.2, "exact": 1.0})
    run_data = dataclasses.replace(run_data, answers=[BatchAnswers(0, (right, liked))])
    hacked = [found.get("hacked") for found in draw_rollouts(run_data).values()]
    assert (True in hacked) == bool(measured)
    # Means of three steps at either end: the true score falls by .15, the reward rises by .3.
    expected = "Possible reward hacking: the reward rose by 0.3, but 'exact' fell by 0.15"
    steady = read_report_data(whole.folder).updates
    updates = [line | made for line, made in zip(steady * 2, run_data.updates, strict=True)]
    html = build_run_page(dataclasses.replace(run_data, updates=updates))
    assert (expected in html) == ("Overrated" in html) == bool(measured)
    assert run_data.answers[0].find_overrated("exact") == (2, [liked])


@pytest.mark.slow
def test_parts_without_a_weight_are_known_to_the_report(ranks, make_run, tmp_path):
    rewards = (
        {"kind": "PatternShape", "pattern": "e", "whole": False},
        {"kind": "ExactAnswer", "weight": 0.0},
    )
    run = make_run(tmp_path / "run", rewards=rewards, training={"steps": 2})
    job = train_run(ranks, run, 1)
    (tmp_path / "run/run.toml").write_text(to_toml(run))
    run_data = read_report_data(job.folder)
    assert run_data.measured == ["exact"]
    assert "verifier exact" in draw_rollouts(run_data)
