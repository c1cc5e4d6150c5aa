"""Five tasks by lm-evaluation-harness and by trainrig: verdicts and log-likelihoods of each row.

The harness runs YAMLs over local files: on an exported folder by its own model, and on the
checkpoint by trainrig's. The tests are skipped where it is not installed: `pip install
-e '.[lm-eval]'`.
"""

import json
import os

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainrig.evaluate.engine.request_encoding import RequestEncoder
from trainrig.evaluate.engine.shards import Examination, TaskRun, load_questions
from trainrig.evaluate.evaluation_run_file import TaskChoice
from trainrig.evaluate.tasks.shipped import load_task
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint
from trainrig.tokens.special_tokens import SPECIAL_TOKENS
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.checkpoint import write_model

pytestmark = [pytest.mark.soak, pytest.mark.data, pytest.mark.slow]
CONFIG = DecoderConfig(
    layers=2, channels=64, heads=4, positions=2048, vocabulary=1024, initial_std=0.1
)
TASKS = ("arc_easy", "piqa", "boolq", "copa", "lambada")
ROWS = 60
NEAR = 1e-4  # nats by which two choices may differ and still tie
CHOICES = """task: ours_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{query}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
CONTINUATION = """task: ours_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: loglikelihood
test_split: test
doc_to_text: "{{{{query}}}}"
doc_to_target: "{{{{' ' + target}}}}"
metric_list: [{{metric: acc}}]
"""


@pytest.fixture(scope="module")
def checkpoint(test_data, tmp_path_factory):
    """Write a random model with a tokenizer of English and return its folder."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(test_data / "sets" / "tinyshakespeare.txt")], trainer)
    torch.set_num_threads(1)
    model = Decoder(CONFIG)
    initialise(model, seed=1)
    write_model(str(folder / "run"), CONFIG, str(tokenizer.to_str()), model.state_dict())
    export_checkpoint(str(folder / "run"), str(folder / "hf"), HubFolder())
    return folder, model.eval(), str(tokenizer.to_str())


def score_by_trainrig(name, checkpoint, test_data):
    """Return the questions of a task and its scored rows."""
    _, model, tokenizer = checkpoint
    task, rows = load_task(TaskChoice(task=name, few_shot=0), str(test_data / "sets"))
    questions = load_questions(TaskRun(task, rows, ROWS))
    assert task.delimiter == " " and not any(question.contexts for question in questions)
    encoder = RequestEncoder(Encoder(tokenizer), CONFIG.positions, document_start=False)
    return questions, Examination(model, encoder, task, 4096, chat=False).score_questions(questions)


def write_yaml(folder, name, questions):
    file = folder / f"{name}.jsonl"
    with file.open("w") as out:
        for question in questions:
            row = {"query": question.prompt}
            if question.gold is None:
                row["target"] = question.answers[0]
            else:
                row |= {"choices": list(question.answers), "gold": question.gold}
            out.write(json.dumps(row) + "\n")
    kind = CONTINUATION if questions[0].gold is None else CHOICES
    (folder / f"{name}.yaml").write_text(kind.format(name=name, file=file))


@pytest.mark.parametrize("kind", ["hf", "trainrig"])
def test_five_tasks_have_the_harness_verdicts_row_by_row(
    kind, checkpoint, test_data, tmp_path, monkeypatch, write_result
):
    evaluator = pytest.importorskip("lm_eval.evaluator")
    manager = pytest.importorskip("lm_eval.tasks").TaskManager
    from trainrig.evaluate.harness import model  # noqa: F401  # registers the model class

    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setitem(os.environ, variable, "1")
    folder = checkpoint[0]
    ours = {name: score_by_trainrig(name, checkpoint, test_data) for name in TASKS}
    for name, (questions, _) in ours.items():
        write_yaml(tmp_path, name, questions)
    arguments = {
        "hf": {"pretrained": str(folder / "hf"), "dtype": "float32"},
        "trainrig": {"checkpoint": str(folder / "run"), "document_start": False},
    }
    found = evaluator.simple_evaluate(
        model=kind,
        model_args=arguments[kind],
        tasks=[f"ours_{name}" for name in TASKS],
        task_manager=manager(include_path=str(tmp_path), include_defaults=False),
        batch_size=16,
        log_samples=True,
        bootstrap_iters=0,
        device="cpu",
    )
    worst = 0.0
    ties = []
    rows = 0
    for name, (_, scored) in ours.items():
        theirs = sorted(
            found["samples"][f"ours_{name}"], key=lambda answer_row: answer_row["doc_id"]
        )
        assert len(theirs) == len(scored) == ROWS
        for row, other in zip(scored, theirs, strict=True):
            nats = row.get("log_likelihoods") or [row["log_likelihood"]]
            peers = [float(response[0][0]) for response in other["resps"]]
            worst = max([worst, *(abs(a - b) for a, b in zip(nats, peers, strict=True))])
            rows += 1
            ordered = sorted(nats, reverse=True)
            if len(ordered) > 1 and ordered[0] - ordered[1] < NEAR:
                ties.append(f"{name} {row['row']}")
                continue
            for metric in ("acc", "acc_norm"):
                if metric in other:
                    assert row["scores"][metric] == float(other[metric]), (name, row["row"])
    result = {"rows": rows, "worst_log_likelihood": worst, "near_ties": ties}
    write_result(f"equal_tasks_{kind}.json", result)
    assert worst <= 1e-4 and len(ties) <= rows // 100
