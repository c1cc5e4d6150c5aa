"""Runs with evaluations between steps: the same bits as without, also after kills."""

import json
import shutil
from pathlib import Path

import pytest

from trainrig.errors import ConfigError, DataError
from trainrig.train import checkpoint
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.evaluations import CheckpointScore, ScoredCheckpoint
from trainrig.train.run import metrics
from trainrig.train.run.checkpoint_scores import (
    check_evaluations,
    read_end,
    read_scores,
    scorecard_folder,
    write_scores,
)
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_report.sampled_answers import read_followed

STEPS = 8


def build_job(make_job, folder, task_file, decisions=None, **changes):
    quick = {"name": "quick", "tasks": (task_file,), "every": 2, "where": "workers"}
    training = {
        "steps": STEPS,
        "checkpoints": {"every": 4},
        "evaluations": (quick | changes,) if task_file else (),
    }
    return make_job(folder, training=training | (decisions or {}))


def run_attempt(ranks, job, world):
    folder = RunFolder(job.folder)
    newest, _ = find_newest_valid(folder)
    number = folder.take_attempt(newest.step if newest else 0)
    path = newest.path if newest else None
    return ranks(world, "train", job=job, attempt=number, resume_from=path)


def read_weights(job):
    newest, _ = find_newest_valid(RunFolder(job.folder))
    return checkpoint.open_model(newest.path).weights


def assert_same_run(one, other):
    return all((one[name] == other[name]).all() for name in one) and one.keys() == other.keys()


@pytest.fixture(scope="module")
def without(ranks, make_job, tmp_path_factory):
    job = build_job(make_job, tmp_path_factory.mktemp("without"), None)
    run_attempt(ranks, job, 1)
    return job


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_a_run_that_is_evaluated_has_the_same_weights_and_the_same_scores_by_any_workers(
    ranks, make_job, tmp_path, task_file, without, world
):
    job = build_job(make_job, tmp_path / "run", task_file)
    run_attempt(ranks, job, world)
    assert assert_same_run(read_weights(job), read_weights(without))
    folder = RunFolder(job.folder)
    scored = read_scores(folder, "quick")
    assert [score.step for score in scored] == [2, 4, 6, 8]
    assert set(scored[0].scores) >= {"words", "words/acc", "words/acc_norm"}
    rows = [
        Path(job.folder, f"evaluations/quick/step_{n:08d}/attempt-0001/rows/words/00000.jsonl")
        for n in (2, 8)
    ]
    assert rows[0].read_bytes() != rows[1].read_bytes()  # the model has learnt in between
    text = Path(job.folder, "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    joined = [line for line in lines if "scores/quick/words/acc" in line]
    assert [line["step"] for line in joined] == [2, 4, 6, 8]
    assert list(Path(job.folder, "tensorboard", "quick").iterdir())
    there = sorted(path.name for path in Path(job.folder, "checkpoints").iterdir())
    assert there == ["step_00000004", "step_00000008"]  # steps in between were kept until scored
    again = Path(tmp_path.parent, f"rows-of-{task_file.replace('/', '-')}")
    found = b"".join(path.read_bytes() for path in rows)
    if again.exists():
        assert again.read_bytes() == found
    again.write_bytes(found)


@pytest.mark.slow
def test_a_run_shows_what_its_checkpoints_said_to_the_same_prompts(
    ranks, make_job, tmp_path, task_file
):
    written = tmp_path / "going-on.toml"
    written.write_text(
        f'name = "going-on"\nrows = "{Path(task_file).parent}/rows.jsonl"\n'
        'prompt = "{{ query }}"\n[scoring]\nkind = "GeneratedAnswer"\n'
        'targets = "choices[0]"\nmaximum_tokens = 6\n'
    )
    job = build_job(make_job, tmp_path / "run", task_file, tasks=(str(written), task_file))
    run_attempt(ranks, job, 1)
    folder = RunFolder(job.folder)
    followed = read_followed(folder, read_scores(folder, "quick"))
    sources = [f"{task}, row {n}" for task in ("going-on", "words") for n in (1, 2, 3)]
    assert [followed_prompt.source for followed_prompt in followed] == sources
    kept = "evaluations/quick/step_{:08d}/attempt-0001/rows/{}/00000.jsonl"
    for prompt in followed:
        task, number = prompt.source.split(", row ")
        rows = [
            json.loads(
                Path(job.folder, kept.format(step, task)).read_text().split("\n")[int(number) - 1]
            )
            for step in (2, 4, 6, 8)
        ]
        assert {prompt.prompt} == {row["prompt"] for row in rows}
        said = [(answer.step, answer.text) for answer in prompt.answers]
        told = [row.get("written", row["given"]) for row in rows]
        assert said == list(zip((2, 4, 6, 8), told, strict=True))
    assert len({answer.text for prompt in followed[:3] for answer in prompt.answers}) > 1
    shutil.rmtree(scorecard_folder(folder, "quick", 4, 1))  # deleted to free disk space
    less = read_followed(folder, read_scores(folder, "quick"))
    assert [[answer.step for answer in prompt.answers] for prompt in less] == [[2, 6, 8]] * 6


@pytest.mark.slow
def test_a_run_ends_where_its_scores_say_so_and_is_at_its_end_then(
    ranks, make_job, tmp_path, task_file, without
):
    decisions = {
        "stop_if": {
            "evaluation": "quick",
            "score": "words/acc",
            "comparison": "above",
            "value": -1.0,
            "patience": 2,
            "lag": 1,
        },
        "best": {"evaluation": "quick", "score": "words/perplexity"},
    }
    with pytest.raises(AssertionError, match="no score 'words/perplexity'"):
        run_attempt(ranks, build_job(make_job, tmp_path / "wrong", task_file, decisions), 1)
    decisions["best"] = {"evaluation": "quick", "score": "words"}
    job = build_job(make_job, tmp_path / "run", task_file, decisions)
    run_attempt(ranks, job, 2)
    folder = RunFolder(job.folder)
    end = read_end(folder)
    assert end.step == 5  # the second score is of step 4, and its decision is one step later
    assert "up to step 4, above -1" in end.why
    assert find_newest_valid(folder)[0].step == 5
    assert [line["step"] for line in metrics.read_series(job.folder)][-1] == 5
    losses = {line["step"]: line["train/loss"] for line in metrics.read_series(without.folder)}
    assert all(
        line["train/loss"] == losses[line["step"]] for line in metrics.read_series(job.folder)
    )


def test_a_rollback_withdraws_scores_and_what_they_decided(tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.take_attempt(0)
    for step in (2, 4, 6):
        write_scores(
            folder, ScoredCheckpoint("quick", step, 1, {"a": CheckpointScore(0.5, 0.1, True)})
        )
    write_scores(
        folder, ScoredCheckpoint("quick", 6, 1, {"a": CheckpointScore(0.9, 0.1, True)})
    )  # only once
    (Path(folder.path) / "evaluations" / "ended.json").write_text(
        json.dumps({"step": 6, "attempt": 1, "why": "it was good enough"})
    )
    assert [score.step for score in read_scores(folder, "quick")] == [2, 4, 6]
    assert read_scores(folder, "quick")[-1].scores["a"].value == 0.5
    assert read_end(folder).step == 6
    folder.take_attempt(4, skip=(4, 6))  # a spike after step 4
    assert [score.step for score in read_scores(folder, "quick")] == [2, 4]
    assert read_end(folder) is None
    folder.take_attempt(4)
    write_scores(folder, ScoredCheckpoint("quick", 6, 3, {"a": CheckpointScore(0.7, 0.1, True)}))
    assert read_scores(folder, "quick")[-1].scores["a"].value == 0.7


@pytest.mark.parametrize(
    ("changes", "decisions", "said"),
    [
        ({"tasks": ("no_such",)}, {}, "'no_such' is neither"),
        ({"tasks": ("copa",)}, {}, r"set `task_rows`.*folder"),
        ({"tasks": ("copa",), "task_rows": "/nowhere"}, {}, "/nowhere"),
        ({"tasks": (), "task_list": "/nowhere.toml"}, {}, "/nowhere.toml"),
        (
            {},
            {"best": {"evaluation": "quick", "score": "arc_easy/acc"}},
            r"'quick'.*no score 'arc_easy/acc'",
        ),
    ],
)
def test_impossible_evaluations_are_rejected_before_training(
    make_job, tmp_path, task_file, changes, decisions, said
):
    job = build_job(make_job, tmp_path, task_file, decisions, **changes)
    with pytest.raises((ConfigError, DataError), match=said):
        check_evaluations(job.training)
