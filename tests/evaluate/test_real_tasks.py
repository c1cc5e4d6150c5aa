"""Shipped tasks over their published rows, by an untrained model and one trained on the answers."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
import torch

from trainrig import manifest
from trainrig.corpus.curate import Curation
from trainrig.corpus.curation_settings import CurationSource
from trainrig.evaluate.engine.shards import TaskRun, load_questions
from trainrig.evaluate.evaluation import evaluate
from trainrig.evaluate.evaluation_run_file import Evaluation, TaskChoice
from trainrig.evaluate.scorecards import read_scorecard
from trainrig.evaluate.tasks.shipped import load_task
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.train.checkpoint import write_model

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.data]
CHOICES = ("arc_easy", "piqa", "boolq", "copa", "winogrande")
# Tasks with written or predicted answers, and the field of a row that has the right answer.
WRITTEN = {
    "gsm8k": "answer",
    "svamp": "answer",
    "lambada": "continuation",
    "simple_arithmetic": "continuation",
    "humaneval": "test",
}
# Rows of each task, and how often their answers are shuffled.
ASKED = 40
SHUFFLES = 3
SIZES = DecoderConfig(
    layers=2, channels=64, heads=4, positions=512, vocabulary=320, initial_std=0.05
)
TRAINED_ROWS = 40  # rows whose answers are trained on


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


def test_a_random_model_scores_in_the_band_of_shuffled_labels_on_every_task(
    tiny_encoder, test_data, write_result, tmp_path
):
    model = Decoder(SIZES)
    initialise(model, seed=3)
    found = evaluated(model.eval(), tiny_encoder, test_data, tmp_path, CHOICES, 200)
    result = {
        name: {"score": score.headline.value, "band": score.shuffled, "chance": score.chance}
        for name, score in found.items()
    }
    write_result("random_model.json", result)
    for name, score in found.items():
        low, high = score.shuffled
        assert low <= score.headline.value <= high, (name, result[name])


def shuffled_rows(path, field, seed):
    """Return the first rows of `path`, each with the answer of another row."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    rows = [json.loads(line) for line in lines[:ASKED]]
    # A rotation, so that no row keeps its own answer.
    order = [(n + 1 + seed) % len(rows) for n in range(len(rows))]
    return [row | {field: rows[other][field]} for row, other in zip(rows, order, strict=True)]


def test_a_random_model_scores_in_the_band_of_shuffled_answers_when_it_writes_them(
    tiny_encoder, test_data, write_result, tmp_path
):
    """Check that scores are inside a 99% interval.

    The interval is of as many rows whose chance of a right answer is that of rows with the answers
    of other rows.
    """
    model = Decoder(SIZES)
    initialise(model, seed=3)
    model.eval()
    result = {}
    for name, field in WRITTEN.items():
        tasks = (TaskChoice(task=name, limit=ASKED, few_shot=0),)
        source = test_data / "sets" / load_task(tasks[0], str(test_data / "sets"))[0].rows
        right = []
        for number in range(SHUFFLES + 1):
            folder = tmp_path / f"{name}-{number}"
            (folder / "rows").mkdir(parents=True)
            for path in source.parent.iterdir():
                (folder / "rows" / path.name).symlink_to(path)
            if number:
                place = folder / "rows" / source.name
                place.unlink()
                lines = "".join(
                    json.dumps(row) + "\n" for row in shuffled_rows(source, field, number)
                ).encode()
                place.write_bytes(gzip.compress(lines) if source.suffix == ".gz" else lines)
            write_model(str(folder / "run"), SIZES, tiny_encoder.text, model.state_dict())
            run = Evaluation(
                checkpoint=str(folder / "run"),
                output=str(folder / "card"),
                tasks=tasks,
                task_rows=str(folder / "rows"),
                run_code=name == "humaneval",
            )
            evaluate(run)
            (score,) = read_scorecard(run.output).tasks.values()
            assert score.rows == ASKED
            right.append(round(score.headline.value * ASKED))
        pooled = scipy.stats.binomtest(sum(right[1:]), SHUFFLES * ASKED).proportion_ci(0.99)
        band = scipy.stats.binom.ppf([0.005, 0.995], ASKED, [pooled.low, pooled.high])
        result[name] = {"right": right[0], "of_others": right[1:], "band": [int(n) for n in band]}
        print(name, result[name], flush=True)
    write_result("random_model_writes.json", {"rows": ASKED, **result})
    for name, found in result.items():
        low, high = found["band"]
        assert low <= found["right"] <= high, (name, found)


def test_training_on_answers_scores_above_chance_and_is_reported_as_contamination(
    tiny_encoder, test_data, write_result, tmp_path
):
    task, rows = load_task(TaskChoice(task="arc_easy", limit=TRAINED_ROWS), str(test_data / "sets"))
    texts = [
        q.prompt + task.delimiter + q.answers[q.gold]
        for q in load_questions(TaskRun(task, rows, TRAINED_ROWS))
    ]
    source = CurationSource(name="web", paths=("made-up.warc",))
    corpus = str(tmp_path / "corpus")
    stage = manifest.claim(corpus, Curation(output=corpus, workers=0, sources=(source,)), {})
    Path(stage.build_path("kept")).mkdir()
    name = "kept/web.parquet"
    pq.write_table(pa.Table.from_pylist([{"text": text} for text in texts]), stage.build_path(name))
    stage.finish({"kept": len(texts)}, {name: manifest.compute_file_sum(stage.build_path(name))})

    torch.manual_seed(0)
    model = Decoder(SIZES)
    initialise(model, seed=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ids = [
        [tiny_encoder.end_of_text, *map(int, token)] for token in tiny_encoder.encode_batch(texts)
    ]
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
        model.eval(), tiny_encoder, test_data, tmp_path, ("arc_easy",), TRAINED_ROWS, corpus=corpus
    )["arc_easy"]
    seen = found.contamination
    result = {"score": found.headline.value, "chance": found.chance, "loss": float(loss)}
    result |= {"band": found.shuffled, "rows_seen": seen.seen, "rows_looked_for": seen.looked_for}
    write_result("planted_answers.json", result)
    assert found.headline.value > found.shuffled[1] > found.chance, json.dumps(result)
    assert seen.seen == seen.looked_for > TRAINED_ROWS / 2
