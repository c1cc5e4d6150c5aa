"""The `evaluate` stage with tasks: its output, at any number of workers and with any stops."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainrig import manifest
from trainrig.corpus.curate import Curation
from trainrig.corpus.curation_settings import CurationSource
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate import evaluation
from trainrig.evaluate.engine import shards
from trainrig.evaluate.engine.request_encoding import encode_chat_prompt
from trainrig.evaluate.evaluation import evaluate
from trainrig.evaluate.evaluation_run_file import Evaluation, TaskChoice
from trainrig.evaluate.scorecards import read_scorecard, read_scored
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.checkpoint import write_model

DEFINITIONS = {
    "pick": """
prompt = "{{ query }}"
group = "passage"
[scoring]
kind = "MultipleChoice"
choices = "choices"
gold = "gold"
metric = "acc_mutual_info"
""",
    "write": """
prompt = "{{ query }}"
[scoring]
kind = "GeneratedAnswer"
targets = "choices[gold]"
maximum_tokens = 6
""",
    "follow": """
prompt = "{{ query }}"
[few_shot]
count = 2
[scoring]
kind = "Continuation"
target = "{{ choices[gold] }}"
""",
    "text": """
prompt = "{{ query }} {{ choices | join(' ') }}"
[scoring]
kind = "RollingText"
""",
    "code": """
prompt = "{{ query }}"
[scoring]
kind = "ProgramTests"
maximum_tokens = 4
program = "# {{ completion | replace('\\\\n', ' ') }}\\ndef find(): return {{ gold }}"
tests = "assert find() == 0"
""",
}
WORDS = ["sea", "grey", "mirror", "Question", "because"]


@pytest.fixture
def ask(tmp_path, tiny_model, tiny_encoder):
    """Return a function that makes run files.

    `ask("card", "pick", "write", limit=5)` returns the run file of an evaluation.
    """
    write_model(
        str(tmp_path / "run"), tiny_model.config, tiny_encoder.text, tiny_model.state_dict()
    )
    dice = np.random.default_rng(0)
    rows = [
        {
            "query": f"the {' '.join(dice.choice(WORDS, 3))} {n}",
            "choices": [str(w) for w in dice.permutation(WORDS)[:3]],
            "gold": int(dice.integers(3)),
            "passage": n // 2,
        }
        for n in range(24)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in DEFINITIONS.items():
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\nrows = "rows.jsonl"\n{text}')

    def make(output, *names, **settings):
        chosen = {key: settings.pop(key) for key in ("limit", "chat") if key in settings}
        return Evaluation(
            checkpoint=str(tmp_path / "run"),
            tasks=tuple(TaskChoice(task=str(tmp_path / f"{n}.toml"), **chosen) for n in names),
            task_rows=str(tmp_path),
            output=str(tmp_path / output),
            shard_rows=settings.pop("shard_rows", 7),
            **settings,
        )

    return make


def files_of(run):
    root = Path(run.output)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in ("manifest.json", "stage.json")
    }


ALL = ("pick", "write", "follow", "text")


@pytest.mark.slow
def test_a_scorecards_scores_equal_its_rows(ask):
    run = ask("card", *ALL)
    done = evaluate(run)
    card = read_scorecard(run.output)
    assert list(card.tasks) == list(ALL) and card.step == 0
    for name, score in card.tasks.items():
        rows = read_scored(run.output, name)
        assert [row["row"] for row in rows] == list(range(1, 25)) and score.rows == 24
        if name != "text":
            right = [row["scores"][score.metric] for row in rows]
            assert score.headline.value == pytest.approx(np.mean(right))
        assert done.counts["tasks"][name] == score.headline.value
    pick = card.tasks["pick"]
    assert (pick.metric, pick.groups, pick.chance) == ("acc_mutual_info", 12, pytest.approx(1 / 3))
    assert pick.shuffled[0] <= pick.headline.value <= pick.shuffled[1]  # the model is random
    for row in read_scored(run.output, "pick"):
        nats = np.array(row["log_likelihoods"])
        alone = np.array(row["unconditional"])
        lengths = [len(choice) for choice in row["choices"]]
        assert row["chosen"]["acc"] == nats.argmax()
        assert row["chosen"]["acc_norm"] == (nats / lengths).argmax()
        assert row["chosen"]["acc_mutual_info"] == (nats - alone).argmax()
        assert row["given"] == row["choices"][row["chosen"]["acc_mutual_info"]]
    page = (Path(run.output) / "report.html").read_text()
    for said in ("acc_mutual_info", "rows that are wrong", "is not better than chance"):
        assert said in page


@pytest.mark.slow
def test_a_stopped_evaluation_resumes_and_writes_the_same_bytes(ask, monkeypatch):
    whole = ask("whole", *ALL)
    evaluate(whole)
    run = ask("stopped", *ALL)
    done = []
    score = shards.TaskPlan._do

    def stop(self, opened, given):
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(given)
        return score(self, opened, given)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shards.TaskPlan, "_do", stop)
        evaluate(run)
    again = []
    monkeypatch.setattr(
        shards.TaskPlan, "_do", lambda *given: again.append(given[-1]) or score(*given)
    )
    evaluate(run)
    assert files_of(run) == files_of(whole)
    assert len(again) == 4 * 4 - 5 and not [given for given in again if given in done]


@pytest.mark.ray
@pytest.mark.slow
def test_any_number_of_workers_writes_the_same_bytes(ask):
    files = []
    for workers in (0, 1, 2):
        run = ask(f"by-{workers}", *ALL, workers=workers)
        evaluate(run)
        files.append(files_of(run))
    assert files[0] == files[1] == files[2]


def test_programs_run_only_with_consent(ask):
    run = ask("card", "code", limit=4)
    with pytest.raises(ConfigError, match=r"'code' runs programs.*run_code"):
        evaluate(run)
    assert not Path(run.output).exists()
    run = run.model_copy(update={"run_code": True})
    evaluate(run)
    rows = read_scored(run.output, "code")
    golds = [
        json.loads(line)["gold"]
        for line in Path(run.task_rows, "rows.jsonl").read_text().splitlines()
    ][:4]
    assert [row["outcome"] for row in rows] == ["failed" if g else "passed" for g in golds]


def test_a_chat_task_asks_in_the_format_of_conversations(ask):
    run = ask("card", "follow", "write", chat=True, limit=3)
    evaluate(run)
    assert all(score.chat for score in read_scorecard(run.output).tasks.values())


def test_a_chat_task_needs_a_tokenizer_with_turns(ask, tmp_path, tiny_model, tiny_encoder):
    text = tiny_encoder.text.replace("<|user|>", "<|somebody|>")
    write_model(str(tmp_path / "base"), tiny_model.config, text, tiny_model.state_dict())
    run = ask("card", "follow", chat=True).model_copy(update={"checkpoint": str(tmp_path / "base")})
    with pytest.raises(DataError, match="role 'user'"):
        evaluate(run)
    assert not Path(run.output).exists()


def test_a_chat_task_asks_by_the_template_of_an_imported_model(
    ask, tmp_path, tiny_model, tiny_encoder
):
    """Use a tokenizer with its own template, without the special tokens of trainrig's."""
    text = tiny_encoder.text.replace("<|user|>", "<|im_start|>")
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{{ '<|end_of_turn|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    files = {"chat_template.jinja": template}
    base = str(tmp_path / "base")
    weights = tiny_model.state_dict()
    path = write_model(base, tiny_model.config, text, weights, files)
    run = ask("card", "follow", "write", chat=True, limit=3)
    evaluate(run.model_copy(update={"checkpoint": base}))
    assert all(score.chat for score in read_scorecard(run.output).tasks.values())
    encoder = Encoder(text, path, files)
    turns = [("user", "is it"), ("assistant", "sea"), ("user", "grey")]
    asked = encoder.decode(encode_chat_prompt(encoder, turns))
    assert asked == (
        "<|im_start|>user\nis it<|end_of_turn|><|im_start|>assistant\nsea<|end_of_turn|>"
        "<|im_start|>user\ngrey<|end_of_turn|><|im_start|>assistant\n"
    )


def test_long_prompts_are_cut_and_counted(ask, tmp_path):
    rows = [
        {"query": "sea " * 200, "choices": ["grey", "is"], "gold": 0, "passage": n} for n in (1, 2)
    ]
    rows.append({"query": "sea", "choices": ["grey", "is"], "gold": 0, "passage": 3})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = ask("card", "pick")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluate(run)
    assert read_scorecard(run.output).tasks["pick"].truncated == 2
    assert "2 of 3 prompts are longer than" in (Path(run.output) / "report.html").read_text()


@pytest.mark.slow
def test_contaminated_rows_are_scored_separately(ask, tmp_path):
    run = ask("card", "pick")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").open()]
    for row in rows:
        row["query"] = " ".join(f"word{row['passage']}x{n}{row['query'][-2:]}" for n in range(12))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    injected = [0, 3, 4, 9]
    source = CurationSource(name="web", paths=("made-up.warc",))
    corpus = str(tmp_path / "corpus")
    stage = manifest.claim(corpus, Curation(output=corpus, workers=0, sources=(source,)), {})
    texts = [
        f"before {rows[n]['query']} {rows[n]['choices'][rows[n]['gold']]} after" for n in injected
    ]
    (tmp_path / "corpus" / "kept").mkdir()
    pq.write_table(
        pa.Table.from_pylist([{"text": text} for text in [*texts, "nothing of it"]]),
        stage.build_path("kept", "web.parquet"),
    )
    stage.finish(
        {"kept": 5},
        {"kept/web.parquet": manifest.compute_file_sum(stage.build_path("kept/web.parquet"))},
    )
    run = run.model_copy(update={"corpus": corpus})
    evaluate(run)
    found = read_scorecard(run.output).tasks["pick"].contamination
    assert (found.looked_for, found.seen) == (24, 4)
    fresh = [
        row["scores"]["acc_mutual_info"]
        for row in read_scored(run.output, "pick")
        if row["row"] - 1 not in injected
    ]
    assert found.without.value == pytest.approx(np.mean(fresh))
    assert "contains 4 of the 24 rows" in (Path(run.output) / "report.html").read_text()


def test_nothing_to_score_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing to evaluate"):
        Evaluation(checkpoint="x", output="y")
    with pytest.raises(ValueError, match="`sequence_length` is missing"):
        Evaluation(checkpoint="x", output="y", tokens="z")
    with pytest.raises(ValueError, match="'copa' is listed 2 times"):
        Evaluation(checkpoint="x", output="y", tasks=(TaskChoice(task="copa"),) * 2)


def test_the_operations_of_a_tuned_model_include_those_of_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model
) -> None:
    monkeypatch.setattr(evaluation, "read_entries", lambda path: {"tokens": tokens[path]})
    checkpoints = {}
    for name, base in (("base", ""), ("tuned", "base"), ("aligned", "tuned"), ("other", "gone")):
        run = tmp_path / name
        checkpoints[name] = write_model(str(run), tiny_model.config, "{}", tiny_model.state_dict())
        (run / "run.toml").write_text(f'checkpoint = "{tmp_path}/{base}"' if base else "")
    tokens = dict(zip(checkpoints.values(), (1_000, 100, 10, 10), strict=True))
    flops = {
        name: evaluation._compute_training_flops(path, {"tokens": tokens[path]})
        for name, path in checkpoints.items()
    }
    unit = flops["base"] / 1_000
    assert flops == {
        "base": 1_000 * unit,
        "tuned": pytest.approx(1_100 * unit),
        "aligned": pytest.approx(1_110 * unit),
        "other": None,
    }
