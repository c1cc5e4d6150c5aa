"""Shipped tasks over their published rows: what knows nothing, what has learnt the answers."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from trainrig import manifest
from trainrig.corpus.curate import Curation
from trainrig.corpus.run_file import CurationSource
from trainrig.evaluate.engine.shards import TaskRun, questions_of
from trainrig.evaluate.run_file import Evaluation, TaskChoice
from trainrig.evaluate.scorecard import evaluate
from trainrig.evaluate.scores.card import read_scorecard
from trainrig.evaluate.tasks.shipped import load_task
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.train.checkpoint import write_model

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.data]
CHOICES = ("arc_easy", "piqa", "boolq", "copa", "winogrande")
SIZES = DecoderConfig(
    layers=2, channels=64, heads=4, positions=512, vocabulary=320, initial_std=0.05
)
PLANTED = 40  # rows whose answers are trained on


def evaluated(model, encoder, test_data, folder, tasks, limit, **more):
    write_model(str(folder / "run"), model.config, encoder.text, model.state_dict())
    run = Evaluation(
        checkpoint=str(folder / "run"),
        output=str(folder / "card"),
        tasks=tuple(TaskChoice(task=name, limit=limit) for name in tasks),
        task_rows=str(test_data / "sets"),
        **more,
    )
    evaluate(run)
    return read_scorecard(run.output).tasks


def test_a_random_model_lies_in_the_band_of_shuffled_labels_on_every_task(
    tiny_encoder, test_data, write_result, tmp_path
):
    model = Decoder(SIZES)
    initialise(model, seed=3)
    found = evaluated(model.eval(), tiny_encoder, test_data, tmp_path, CHOICES, 200)
    told = {
        name: {"score": score.headline.value, "band": score.shuffled, "chance": score.chance}
        for name, score in found.items()
    }
    write_result("random_model.json", told)
    for name, score in found.items():
        low, high = score.shuffled
        assert low <= score.headline.value <= high, (name, told[name])


def test_answers_that_were_trained_on_score_above_chance_and_the_corpus_says_so(
    tiny_encoder, test_data, write_result, tmp_path
):
    task, rows = load_task(TaskChoice(task="arc_easy", limit=PLANTED), str(test_data / "sets"))
    texts = [
        q.prompt + task.delimiter + q.answers[q.gold]
        for q in questions_of(TaskRun(task, rows, PLANTED))
    ]
    source = CurationSource(name="web", paths=("made-up.warc",))
    corpus = str(tmp_path / "corpus")
    stage = manifest.claim(corpus, Curation(output=corpus, workers=0, sources=(source,)), {})
    Path(stage.path("kept")).mkdir()
    name = "kept/web.parquet"
    pq.write_table(pa.Table.from_pylist([{"text": text} for text in texts]), stage.path(name))
    stage.finish({"kept": len(texts)}, {name: manifest.file_sum(stage.path(name))})

    torch.manual_seed(0)
    model = Decoder(SIZES)
    initialise(model, seed=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ids = [[tiny_encoder.end_of_text, *map(int, each)] for each in tiny_encoder.encode_batch(texts)]
    for step in range(400):
        chosen = [ids[(step * 8 + n) % len(ids)][: SIZES.positions] for n in range(8)]
        width = max(map(len, chosen))
        whole_BT = torch.tensor([row + [0] * (width - len(row)) for row in chosen])
        targets = whole_BT[:, 1:].clone()
        for row, own in enumerate(chosen):
            targets[row, len(own) - 1 :] = -100
        logits = model(whole_BT[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = evaluated(
        model.eval(), tiny_encoder, test_data, tmp_path, ("arc_easy",), PLANTED, corpus=corpus
    )["arc_easy"]
    seen = found.contamination
    told = {"score": found.headline.value, "chance": found.chance, "loss": float(loss)}
    told |= {"band": found.shuffled, "rows_seen": seen.seen, "rows_looked_for": seen.looked_for}
    write_result("planted_answers.json", told)
    assert found.headline.value > found.shuffled[1] > found.chance, json.dumps(told)
    assert seen.seen == seen.looked_for > PLANTED / 2
