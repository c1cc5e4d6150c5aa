"""A small model of crawled pages, tuned on published rows by a user's commands.

GSM8K is for answers, HH for preferences. The test claims no skill: `results/real_rows.json` has the
curves, samples and scores as measured.
"""

import subprocess
import sys

import pytest

from trainrig.evaluate.scorecards import read_scorecard
from trainrig.train.evaluations import read_views
from trainrig.train.run import metrics

pytestmark = [
    pytest.mark.soak,
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.data,
    pytest.mark.timeout(7200),
]
ARCHIVES = 4  # parts of the crawl
STEPS = {"base": 800, "tuned": 300, "adapted": 300, "reward": 200, "preferred": 120}
ASKED = 40  # rows of GSM8K's own test set
# The held-out metrics that are kept.
KEPT = ("step", "eval/loss", "eval/diagnostics/reward_accuracy")


@pytest.fixture
def trainrig(tmp_path):
    """Return a function that runs a command and returns its output.

    `trainrig("curate", "stage = …")` takes the text of a run file; `trainrig("export", None,
    "model", "folder")` takes arguments.
    """

    def run(verb, text, *arguments):
        if text is not None:
            file = tmp_path / f"{len(list(tmp_path.glob('*.toml')))}.toml"
            workers = "" if verb == "tokenizer" else "workers = 1\n"
            file.write_text(f'stage = "{verb}"\n{workers}{text}')
            arguments = (file.name, *arguments)
        command = [sys.executable, "-m", "trainrig", verb, *arguments]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert found.returncode == 0, (command, found.stderr[-3000:])
        return found.stdout

    return run


def write_tuning(name, checkpoint, rows, more, batch, lr):
    steps = STEPS[name]
    return f"""
        checkpoint = "{checkpoint}"
        conversations = "{rows}"
        output = "{name}"
        batches = {{ sequence_length = 256, global_batch = {batch}, micro_batch = {batch} }}
        comparison = {{ text = "tokens", prompts = 2, answer_tokens = 60, rows = 8 }}
        {more}
        [training]
        steps = {steps}
        checkpoints.every = {steps}
        held_out = {{ every = {steps // 4}, rows = 100 }}
        optimizer = {{ kind = "AdamW", lr = {lr}, weight_decay = 0.0 }}
    """


def read_curve(folder):
    """Return the held-out metrics over the steps of a run."""
    lines = metrics.read_held_out_series(str(folder))
    return [{name: line[name] for name in KEPT if name in line} for line in lines]


def read_views_of(folder):
    """Return the report page's text before and after tuning, and both models' answers."""
    views = read_views(str(folder))
    return [
        {
            "step": view.step,
            "losses_of_pages": view.losses,
            "said": [{"prompt": a.prompt[-200:], "answer": a.text} for a in view.answers],
        }
        for view in views
    ]


def test_a_model_made_here_is_tuned_on_gsm8k_and_hh(trainrig, test_data, tmp_path, write_result):
    crawl = test_data / "crawl"
    sets = test_data / "sets"
    pages = [str(path) for path in sorted(crawl.glob("*.warc.gz"))[:ARCHIVES]]
    trainrig("curate", f'output = "documents"\n[[sources]]\nname = "web"\npaths = {pages}\n')
    trainrig(
        "tokenizer",
        'documents = "documents"\noutput = "tokenizer"\n'
        'tokenizer = { kind = "ByteLevelBPE", vocabulary = 2048 }\n',
    )
    trainrig(
        "tokenize",
        'documents = "documents"\ntokenizer = "tokenizer"\noutput = "tokens"\nheld_out = 0.05\n',
    )
    trainrig(
        "pretrain",
        f"""
        tokens = "tokens"
        output = "base"
        model = {{ layers = 4, channels = 192, heads = 6, positions = 256, initial_std = 0.0456 }}
        batches = {{ sequence_length = 256, global_batch = 8, micro_batch = 8 }}
        [training]
        steps = {STEPS["base"]}
        checkpoints.every = {STEPS["base"]}
        held_out = {{ every = 200, rows = 32 }}
        optimizer = {{ kind = "AdamW", lr = 2e-3 }}
        """,
    )
    sums = 'columns = { prompt = "question", completion = "answer" }'
    trainrig(
        "conversations",
        f"""
        tokenizer = "base"
        output = "sums"
        sequence_length = 256
        [[sources]]
        paths = ["{sets}/gsm8k_train.jsonl"]
        source = "gsm8k"
        split = "train"
        {sums}
        [[sources]]
        paths = ["{sets}/gsm8k_test.jsonl"]
        source = "gsm8k"
        split = "held_out"
        {sums}
        """,
    )
    trainrig(
        "conversations",
        f"""
        tokenizer = "base"
        output = "pairs"
        rows = "pairs"
        sequence_length = 256
        held_out = 0.1
        too_long = "drop_turns"
        [[sources]]
        paths = ["{sets}/hh_harmless_base_test.jsonl.gz"]
        source = "hh"
        """,
    )
    lora = 'lora = { rank = 16, alpha = 32, targets = ["attention.*", "feedforward.*"] }'
    dpo = 'objective = { kind = "DPO", beta = 0.1 }'
    trainrig("posttrain", write_tuning("tuned", "base", "sums", "", 8, 1e-3))
    trainrig("posttrain", write_tuning("adapted", "base", "sums", lora, 8, 2e-3))
    trainrig(
        "posttrain", write_tuning("reward", "tuned", "pairs", 'objective.kind = "Reward"', 8, 2e-4)
    )
    trainrig("posttrain", write_tuning("preferred", "tuned", "pairs", dpo, 8, 5e-5))

    trainrig("export", None, "adapted", "peft", "--adapter")
    trainrig("import", None, "peft", "again", "--base", "base")
    trainrig("export", None, "adapted", "merged")
    trainrig("import", None, "merged", "whole")
    prompt = (
        "--chat",
        "--prompt",
        "How many clips are 3 boxes of 12 clips?",
        "--tokens",
        "40",
        "--temperature",
        "0",
    )
    said = {
        name: trainrig("generate", None, name, *prompt) for name in ("adapted", "again", "whole")
    }
    scores = {}
    for name in ("base", "tuned", "again", "preferred"):
        trainrig(
            "evaluate",
            f"""
            checkpoint = "{name}"
            task_rows = "{sets}"
            output = "scores-{name}"
            tasks = [{{ task = "gsm8k", limit = {ASKED}, few_shot = 0 }}]
            """,
        )
        score = read_scorecard(str(tmp_path / f"scores-{name}")).tasks["gsm8k"].headline
        scores[name] = {"exact_match": score.value, "standard_error": score.error}
    runs = {name: read_curve(tmp_path / name) for name in STEPS}
    found = {
        "steps": STEPS,
        "held_out": runs,
        "before_and_after": {
            name: read_views_of(tmp_path / name) for name in STEPS if name != "base"
        },
        "adapter_says": said,
        "gsm8k": scores,
    }
    write_result("real_rows.json", {"benchmark": "GSM8K and HH", **found})
    # The adapter alone, and the merged model, both imported again.
    assert len(set(said.values())) == 1
    for name in ("tuned", "adapted"):
        assert runs[name][-1]["eval/loss"] < runs[name][0]["eval/loss"], name
    for name in ("reward", "preferred"):
        assert 0 <= runs[name][-1]["eval/diagnostics/reward_accuracy"] <= 1, name
