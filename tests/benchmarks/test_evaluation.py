"""Requests per CPU second, compared with lm-evaluation-harness.

Both use one thread and the same model, rows and prompts. The peer is skipped where it is not
installed: `pip install -e '.[lm-eval]'`.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

pytestmark = [pytest.mark.bench, pytest.mark.data]
CONFIG = DecoderConfig(layers=4, channels=128, heads=4, positions=2048, vocabulary=4096)
# Least ratio of requests per CPU second, ours to theirs.
LEAST = {"arc_easy": 3.0, "lambada": 1.2}
ROWS = {"arc_easy": 60, "lambada": 200}
ROUNDS = 3


def make_tokenizer(texts: Path) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(texts)], trainer)
    return str(tokenizer.to_str())


@pytest.mark.parametrize("name", LEAST)
def test_requests_a_second_compared_with_the_harness(
    name: str,
    test_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_result: Callable[[str, dict[str, Any]], None],
) -> None:
    harness = pytest.importorskip("lm_eval.models.huggingface")
    instance = pytest.importorskip("lm_eval.api.instance").Instance
    monkeypatch.setattr(os, "environ", {**os.environ, "HF_HUB_OFFLINE": "1"})
    torch.set_num_threads(1)
    model = Decoder(CONFIG)
    initialise(model, seed=1)
    text = make_tokenizer(test_data / "sets" / "tinyshakespeare.txt")
    write_model(str(tmp_path / "run"), CONFIG, text, model.state_dict())
    export_checkpoint(str(tmp_path / "run"), str(tmp_path / "hf"), HubFolder())
    shots = 5 if name == "arc_easy" else 0
    task, rows = load_task(TaskChoice(task=name, few_shot=shots), str(test_data / "sets"))
    questions = load_questions(TaskRun(task, rows, ROWS[name]))

    encoder = RequestEncoder(Encoder(text), CONFIG.positions, document_start=False)
    examination = Examination(model.eval(), encoder, task, 4096, chat=False)
    peer = harness.HFLM(
        pretrained=str(tmp_path / "hf"), dtype="float32", device="cpu", batch_size=16
    )
    asked = []
    for question in questions:
        before = "".join(shot.prompt + shot.answer + "\n\n" for shot in question.shots)
        for answer in question.answers:
            pair = (before + question.prompt, task.delimiter + answer)
            asked.append(instance("loglikelihood", {}, pair, len(asked)))

    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(ROUNDS):  # alternate and count CPU time, as other processes use the machine too
        began = time.process_time()
        mine = examination.score_questions(questions)
        seconds["ours"].append(time.process_time() - began)
        began = time.process_time()
        other = peer.loglikelihood(asked, disable_tqdm=True)
        seconds["theirs"].append(time.process_time() - began)
    ours = min(seconds["ours"])
    theirs = min(seconds["theirs"])
    flat = [n for row in mine for n in row.get("log_likelihoods", [row.get("log_likelihood")])]
    worst = max(abs(n - o[0]) for n, o in zip(flat, other, strict=True))
    found = {
        "task": name,
        "requests": len(asked),
        "ours_per_cpu_second": round(len(asked) / ours, 1),
        "lm_eval_per_cpu_second": round(len(asked) / theirs, 1),
        "ratio": round(theirs / ours, 2),
        "ratios": [
            round(t / o, 2) for o, t in zip(seconds["ours"], seconds["theirs"], strict=True)
        ],
        "worst_log_likelihood": worst,
    }
    print(json.dumps(found))
    write_result(f"{name}-beside-lm-eval.json", found)
    assert worst < 1e-3
    assert theirs / ours >= LEAST[name]
