"""Several sampled answers to each prompt, and rows of the best of them."""

import functools
import json
import logging

import pytest
from support.interruptions import interrupt_after

from trainrig import manifest
from trainrig.errors import ConfigError, DataError
from trainrig.posttrain.prompt_files import Prompt, read_prompt_set
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.posttrain.rewards import ExactAnswer
from trainrig.posttrain.rewards.reward_contract import Completion
from trainrig.posttrain.stages import sample_stage
from trainrig.posttrain.stages.prompted_run_files import AnswerSampling
from trainrig.posttrain.stages.sample_stage import (
    ScoredAnswer,
    choose_best,
    choose_pair,
    sample_answers,
)

REWARDS = (
    {"kind": "ExactAnswer"},
    {"kind": "PatternShape", "pattern": "[a-e]", "whole": False, "weight": 0.5},
)


@pytest.fixture(scope="module")
def make_sampling(fresh, problems):
    """Return `make_sampling(output, …)`, which makes a run file."""

    def make(output, **settings):
        given = {
            "checkpoint": fresh,
            "prompts": {"paths": (problems,), "template": "{{ question }}"},
            "prompt_tokens": 32,
            "maximum_tokens": 5,
            "rewards": REWARDS,
            "finished": False,
            "output": str(output),
            "workers": 0,
            "batch": 2,
            "shard_prompts": 4,
        }
        return AnswerSampling.model_validate(given | settings)

    return make


@pytest.fixture
def sampling(make_sampling, tmp_path):
    return functools.partial(make_sampling, tmp_path / "sampled")


@pytest.fixture(scope="module")
def whole(make_sampling, tmp_path_factory):
    """Return the folder of a stage that ran without a stop."""
    folder = tmp_path_factory.mktemp("whole") / "sampled"
    sample_answers(make_sampling(folder))
    return folder


def read_content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.jsonl"))}


def select_rows(folder, kind):
    lines = b"".join(p.read_bytes() for p in sorted((folder / kind).glob("*.jsonl"))).splitlines()
    return [json.loads(line) for line in lines]


def test_answers_to_conversations_become_rows_that_conversations_reads(
    make_sampling, encode_rows, encoder, tmp_path
):
    tools = [{"type": "function", "function": {"name": "g"}}]
    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": "is"}]
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps({"prompt": asked, "tools": tools, "answer": "e"}) + "\n")
    prompts = {"paths": (str(path),), "chat": True}
    files = make_sampling(tmp_path / "said", prompts=prompts).prompts
    (prompt,) = read_prompt_set(files, PromptEncoder(encoder), 400).prompts
    best, worst = (
        ScoredAnswer(prompt, n, Completion("", text, (1,), True, {}), 1.0 - n, {})
        for n, text in enumerate(("e", "now"))
    )
    rows = [sample_stage._build_row(best)]
    made = encode_rows(rows, sequence_length=400)
    assert (made.counts["train_conversations"], rows[0]["tools"]) == (1, tools)
    pair = sample_stage._build_pair(best, worst)
    made = encode_rows([pair], output="pairs", rows="pairs", sequence_length=400)
    assert (made.counts["train_pairs"], pair["prompt"]) == (1, asked)


def test_all_answers_are_kept_with_their_parts_and_the_best_become_rows(make_sampling, whole):
    made = sample_answers(make_sampling(whole))  # the result exists already
    samples = select_rows(whole, "samples")
    assert [(s["prompt_number"], s["sample"]) for s in samples] == [
        (number, sample) for number in (0, 1, 3, 4, *range(6, 11)) for sample in range(4)
    ]
    assert len({s["completion"] for s in samples}) > 20
    for sample in samples:
        exact = float(sample["completion"].strip() == "e")
        shape = float(any(letter in sample["completion"] for letter in "abcde"))
        assert sample["parts"] == {"exact": exact, "pattern": shape}
        assert sample["reward"] == exact + shape / 2
    rows, pairs = (select_rows(whole, kind) for kind in ("rows", "pairs"))
    for number in {s["prompt_number"] for s in samples}:
        group = [s for s in samples if s["prompt_number"] == number]
        said = [s for s in group if s["completion"].strip()]
        (row,) = (r for r in rows if r["prompt_number"] == number)
        assert row["reward"] == max(s["reward"] for s in said)
        assert row["completion"] == group[row["sample"]]["completion"]
        mine = [p for p in pairs if p["prompt_number"] == number]
        differ = len({s["reward"] for s in said}) > 1
        assert len(mine) == differ
        assert all(p["chosen_reward"] > p["rejected_reward"] for p in mine)
    assert made.counts["prompts"] == 9 and made.counts["prompts_left_out"] == 2
    assert made.counts["rows"] == len(rows) and made.counts["pairs"] == len(pairs) > 0
    mean = sum(s["reward"] for s in samples) / len(samples)
    assert made.counts["reward"] == pytest.approx(mean, abs=1e-6)
    assert made.counts["reward_best"] > made.counts["reward"]
    assert made == manifest.read_manifest(str(whole))


def test_rows_and_pairs_are_what_conversations_takes(whole, encode_rows):
    rows, pairs = (select_rows(whole, kind) for kind in ("rows", "pairs"))
    made = encode_rows(rows, "chats")
    assert made.counts["train_conversations"] == len(rows)
    made = encode_rows(pairs, "preferences", rows="pairs")
    assert made.counts["train_pairs"] == len(pairs)


@pytest.mark.slow
@pytest.mark.ray
def test_the_bytes_are_the_same_at_any_number_of_workers(sampling, whole, tmp_path):
    sample_answers(sampling(workers=2))
    found = read_content(tmp_path / "sampled")
    assert len(found) == 9 and found == read_content(whole)


@pytest.mark.slow
def test_a_stopped_stage_continues_with_the_rest(sampling, whole, tmp_path, monkeypatch):
    with interrupt_after(1, sample_stage, "write_rows"):
        sample_answers(sampling())
    answers = sample_stage.answer_all
    asked = []
    monkeypatch.setattr(
        sample_stage, "answer_all", lambda *given: asked.extend(given[4]) or answers(*given)
    )
    again = sample_answers(sampling())
    assert len(asked) == 5  # 9 prompts, and the first file existed
    assert read_content(tmp_path / "sampled") == read_content(whole)
    assert again.content == manifest.read_manifest(str(whole)).content


def test_a_row_that_a_reward_cannot_score_is_counted_and_ends_no_run(sampling, tmp_path):
    rows = [{"question": f"is {n}", "answer": [] if n == 1 else "e"} for n in range(4)]
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {"paths": (str(path),), "template": "{{ question }}"}
    made = sample_answers(sampling(prompts=asked, samples=2))
    assert made.counts["faults"] == {"exact/no_target": 2} and made.counts["prompts"] == 4
    of_row = [s for s in select_rows(tmp_path / "sampled", "samples") if s["prompt_number"] == 1]
    assert [s["parts"]["exact"] for s in of_row] == [0.0, 0.0]


def test_a_reward_that_raises_is_reported_with_its_row(sampling, tmp_path, monkeypatch):
    def is_right(settings, given, target):
        return 1 / (target != "zero")

    monkeypatch.setattr(ExactAnswer, "is_right", is_right)
    rows = [{"question": f"is {n}", "answer": "zero" if n == 2 else "e"} for n in range(4)]
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {"paths": (str(path),), "template": "{{ question }}"}
    message = "'exact' raised ZeroDivisionError: .* on the completion of row 2, prompt 'is 2'"
    with pytest.raises(DataError, match=message):
        sample_answers(sampling(prompts=asked, samples=2))


def make_answer(sample, text, reward, finished=True):
    prompt = Prompt(0, "is it", (1,), {})
    return ScoredAnswer(prompt, sample, Completion("is it", text, (1,), finished, {}), reward, {})


def test_the_best_are_chosen_by_reward_each_text_once(sampling):
    group = [
        make_answer(0, "no", 0.0),
        make_answer(1, "yes", 1.0),
        make_answer(2, " yes ", 1.0),
        make_answer(3, "", 5.0),
        make_answer(4, "cut off", 3.0, finished=False),
        make_answer(5, "maybe", 0.5),
    ]

    def kept(**settings):
        run = sampling(finished=True, **settings)
        pair = choose_pair(run, group)
        return [a.sample for a in choose_best(run, group)], pair and [a.sample for a in pair]

    assert kept() == ([1], [1, 0])
    assert kept(keep=9) == ([1, 5, 0], [1, 0])
    assert kept(keep=9, least=0.5, margin=1.0) == ([1, 5], [1, 0])
    assert kept(least=2.0, margin=1.5) == ([], None)
    assert [a.sample for a in choose_best(sampling(keep=2), group)] == [4, 1]
    assert choose_pair(sampling(), [make_answer(0, "a", 1.0), make_answer(1, "b", 1.0)]) is None


def test_invalid_settings_are_rejected_and_leave_nothing(sampling, tmp_path, problems, caplog):
    with pytest.raises(ConfigError, match=r"more than the model's 48 positions"):
        sample_answers(sampling(maximum_tokens=40))
    with pytest.raises(DataError, match=r"none of 11 rows.*no 'right'"):
        sample_answers(sampling(rewards=({"kind": "ExactAnswer", "column": "right"},)))
    with pytest.raises(DataError, match=r"none of 11 rows has .* 1 to 2 tokens"):
        sample_answers(sampling(prompt_tokens=2))
    assert not (tmp_path / "sampled").exists()
    with caplog.at_level(logging.WARNING):
        made = sample_answers(sampling(least=9.0))
    assert made.counts["rows"] == 0
    assert "none of 36 answers became a row" in caplog.text
