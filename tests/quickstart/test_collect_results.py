import json
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.shards import write_shard

from trainrig import config, manifest
from trainrig.corpus.curate import DROPPED, KEPT, Curation
from trainrig.corpus.curation_settings import PROSE, CurationSource
from trainrig.corpus.dedup.dedup_decisions import EXACT, NEAR
from trainrig.corpus.rewrite.pii_mask import PII
from trainrig.corpus.row_schema import build_row_schema
from trainrig.manifest import Manifest
from trainrig.models.decoder import DecoderConfig
from trainrig.quickstart import collect_results, quickstart_results
from trainrig.quickstart.folders import Folders
from trainrig.quickstart.injected_faults import KILLED
from trainrig.quickstart.site.site_plan import Kind, Plant
from trainrig.tokens.batches import IDS, MicroBatch
from trainrig.tokens.rows.pretraining import BatchSettings
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary
from trainrig.train.pretrain import open_batches
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run.step_data import SampleLog
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import Training


@pytest.fixture
def at(tmp_path: Path) -> Folders:
    """Return the folders of a quickstart without results."""
    return Folders(str(tmp_path))


# Restarts


def line(step: int, attempt: int, time: float = 0.0) -> dict[str, Any]:
    return {"step": step, "attempt": attempt, "time": time}


@pytest.fixture
def run(at: Folders) -> RunFolder:
    """Return the run folder of the model."""
    Path(at.model).mkdir()
    return RunFolder(at.model)


def record_kill(run: RunFolder, attempt: int, victim: int) -> float:
    run.record(KILLED, attempt=attempt, step=0, rank=0, target=victim)
    return float(list(run.read_events())[-1]["time"])


def test_a_restart_lasts_until_the_first_step_that_is_new(run: RunFolder) -> None:
    run.take_attempt(0)
    died = record_kill(run, attempt=1, victim=4711)
    run.take_attempt(8)
    lines = [
        *(line(step, 1, died - 13 + step) for step in range(1, 13)),
        *(line(step, 2, died + step) for step in range(9, 20)),
    ]
    (told,) = collect_results._find_restarts(run, lines)
    assert (told.killed_at, told.resumed_from, told.pid) == (12, 8, 4711)
    assert told.seconds == pytest.approx(13)  # steps 9 to 12 were repeated


def test_an_attempt_that_ended_normally_is_not_a_restart(run: RunFolder) -> None:
    run.take_attempt(0)
    run.record("attempt_failed", attempt=1)
    run.take_attempt(2)
    assert collect_results._find_restarts(run, [line(1, 1), line(2, 1), line(3, 2)]) == ()


def test_a_run_of_one_attempt_has_no_restarts(run: RunFolder) -> None:
    run.take_attempt(0)
    assert collect_results._find_restarts(run, [line(1, 1)]) == ()


def test_an_attempt_that_failed_on_the_way_back_hides_no_restart(run: RunFolder) -> None:
    run.take_attempt(0)
    died = record_kill(run, attempt=1, victim=5)
    run.take_attempt(8)
    run.take_attempt(8)
    lines = [line(10, 1), line(9, 2, died + 1), line(10, 3, died + 6), line(11, 3, died + 9)]
    (told,) = collect_results._find_restarts(run, lines)
    assert (told.killed_at, told.resumed_from) == (10, 8)
    assert told.seconds == pytest.approx(9)


# Removals


def write_documents(at: Folders, rows: list[dict[str, Any]], quarantined: int) -> Manifest:
    """Write a curated folder of unfiltered rows, and return its manifest."""
    source = CurationSource(name="any", paths=("any.warc",))
    curation = Curation(output=at.documents, workers=0, sources=(source,))
    stage = manifest.claim(at.documents, curation, {})
    for folder, kept in ((KEPT, True), (DROPPED, False)):
        chosen = [row for row in rows if (row["dropped_by"] is None) == kept]
        Path(stage.build_path(folder)).mkdir()
        pq.write_table(
            pa.Table.from_pylist(chosen, build_row_schema(curation)),
            stage.build_path(folder, "any-00000.parquet"),
        )
    reasons = [row["dropped_by"] for row in rows if row["dropped_by"]]
    dropped_by = {reason: reasons.count(reason) for reason in reasons}
    return stage.finish({"dropped_by": dropped_by, "quarantined": {"not_text": quarantined}}, {})


def row(name: str, dropped_by: str | None, **more: Any) -> dict[str, Any]:
    url = f"http://a/{name}"
    return {"id": name, "url": url, "text": f"Text {name}.", "dropped_by": dropped_by, **more}


def test_removals_are_listed_by_rule_in_the_order_of_the_rules(at: Folders) -> None:
    documents = write_documents(
        at,
        [
            row("twin", EXACT),
            *(row(f"short-{n}", f"Length.too_{('short', 'long')[n % 2]}") for n in range(5)),
            row("kept", None),
        ],
        quarantined=4,
    )
    dropped, pairs = collect_results._count_dropped(at, documents)
    assert [(fell.reason, fell.documents) for fell in dropped] == [
        (collect_results.REASONS["quarantined"], 4),
        (collect_results.REASONS["Length"], 5),
        (collect_results.REASONS[EXACT], 1),
    ]
    examples = {fell.reason: fell.examples for fell in dropped}
    assert examples[collect_results.REASONS["quarantined"]] == ()
    assert examples[collect_results.REASONS["Length"]] == (
        "Length.too_short: Text short-0.",
        "Length.too_long: Text short-1.",
        "Length.too_short: Text short-2.",
    )
    assert pairs == ()


def test_the_least_similar_near_duplicates_are_shown_with_their_originals(at: Folders) -> None:
    near = [
        row(f"near-{n}", NEAR, duplicate_of=f"kept-{n % 2}", similarity=0.8 + n / 100)
        for n in reversed(range(collect_results.PAIRS + 3))
    ]
    kept = [row("kept-0", None), row("kept-1", None)]
    _, pairs = collect_results._count_dropped(
        at, write_documents(at, [*near, *kept], quarantined=0)
    )
    assert pairs == tuple(
        quickstart_results.NearDuplicate(
            f"http://a/near-{n}", f"http://a/kept-{n % 2}", 0.8 + n / 100
        )
        for n in range(collect_results.PAIRS)
    )


def test_every_reason_there_can_be_has_its_words() -> None:
    filters = {type(rule).__name__ for rule in PROSE}
    assert set(collect_results.REASONS) == {"quarantined", *filters, PII.__name__, EXACT, NEAR}
    copies = {kind for kind in typing.get_args(Kind) if kind != "personal_data"}
    # The quickstart injects none of these.
    assert set(collect_results.KINDS) == copies | set(PII().kinds) - {"KEY", "SSN", "NATIONAL_ID"}


def test_injected_pages_are_counted_by_kind_and_add_up() -> None:
    found = {
        Plant("personal_data", "http://a/1", what="EMAIL", value="a@b.example"): "caught",
        Plant("personal_data", "http://a/2", what="EMAIL", value="c@b.example"): "missed",
        Plant("personal_data", "http://a/3", what="EMAIL", value="d@b.example"): "gone",
        Plant("foreign_language", "http://a/4", language="de"): "caught",
    }
    assert collect_results._count_planted(found) == (
        quickstart_results.Planted(
            collect_results.KINDS["foreign_language"], 1, caught=1, missed=0, gone=0
        ),
        quickstart_results.Planted(collect_results.KINDS["EMAIL"], 3, caught=1, missed=1, gone=1),
    )


def test_preference_accuracy_is_shown_by_step_and_for_held_out_pairs(at: Folders) -> None:
    def diagnostics(where: str, right: float, wrong: float, accuracy: float) -> dict[str, float]:
        told = {"chosen_reward": right, "rejected_reward": wrong, "reward_accuracy": accuracy}
        return {f"{where}/diagnostics/{name}": value for name, value in told.items()}

    drifts = {"eval/diagnostics/chosen_drift": 1.5, "eval/diagnostics/rejected_drift": -4.0}
    lines = [
        {"step": 1, "attempt": 1, "train/loss": 0.7} | diagnostics("train", 0.0, 0.0, 0.4),
        {"step": 1, "attempt": 1, "eval/loss": 0.7} | diagnostics("eval", 9.0, 9.0, 0.9) | drifts,
        {"step": 2, "attempt": 1, "train/loss": 0.6} | diagnostics("train", 0.2, -0.1, 0.7),
        {"step": 2, "attempt": 1, "eval/loss": 0.6} | diagnostics("eval", 0.3, -0.4, 0.8) | drifts,
    ]
    Path(at.aligned).mkdir()
    Path(at.aligned, "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    assert collect_results._read_preferences(at, 7) == quickstart_results.Preferences(
        steps=(
            quickstart_results.PreferencePoint(1, 0.0, 0.0, 0.4),
            quickstart_results.PreferencePoint(2, 0.2, -0.1, 0.7),
        ),
        held_out=quickstart_results.PreferencePoint(2, 0.3, -0.4, 0.8),
        held_out_pairs=7,
        right_drift=1.5,
        wrong_drift=-4.0,
    )


# Samples

STEPS = 5
SEQUENCES = 4
Plan = dict[int, list[list[int]]]  # step → the samples of each rank


def write_plan(at: Folders) -> Plan:
    """Write tokens and a run file, and return the samples of each of two ranks at each step."""
    ids = np.arange(1, 200, dtype=np.uint32)
    document = EncodedDocument("a", "web", "http://a/1", ids, 100, "a.parquet", 0)
    write_shard(f"{at.tokens}/train", "documents-00000", ShardVocabulary(300, "f" * 64), [document])
    run = Pretraining(
        tokens=at.tokens,
        output=at.model,
        model=DecoderConfig(layers=1, channels=8, heads=1, positions=8),
        batches=BatchSettings(sequence_length=8, global_batch=SEQUENCES, micro_batch=2),
        training=Training(steps=STEPS),
    )
    Path(at.model).mkdir()
    Path(at.model, "run.toml").write_text(config.to_toml(run))
    batches = open_batches(at.tokens, run.batches)
    return {
        step: [micro.samples.tolist() for micro in batches.at(step - 1)]
        for step in range(1, STEPS + 1)
    }


def train(at: Folders, resumed_step: int, plan: Plan) -> None:
    """Write the files of an attempt that trained by `plan`."""
    attempt = RunFolder(at.model).take_attempt(resumed_step)
    for rank in range(2):
        log = SampleLog(at.model, attempt.number, rank)
        for step, samples in plan.items():
            ids = np.zeros((len(samples[rank]), 8), np.int64)
            pieces = np.zeros((0, 3), np.int64)
            numbers = np.array(samples[rank], np.int64)
            log.write(step, [MicroBatch({IDS: ids}, numbers, np.zeros_like(numbers), pieces)])
        log.close()


def test_samples_trained_as_prescribed_are_neither_lost_nor_repeated(at: Folders) -> None:
    plan = write_plan(at)
    train(at, 0, plan)
    assert collect_results._check_samples(at, STEPS) == (STEPS * SEQUENCES, 0, 0)


def test_steps_taken_again_after_a_restart_count_once(at: Folders) -> None:
    plan = write_plan(at)
    train(at, 0, {step: plan[step] for step in range(1, 5)})
    train(at, 2, {step: plan[step] for step in range(3, STEPS + 1)})
    assert collect_results._check_samples(at, STEPS) == (STEPS * SEQUENCES, 0, 0)


def test_which_rank_trained_on_a_sample_does_not_matter(at: Folders) -> None:
    plan = write_plan(at)
    train(at, 0, {step: ranks[::-1] for step, ranks in plan.items()})
    assert collect_results._check_samples(at, STEPS) == (STEPS * SEQUENCES, 0, 0)


def test_lost_and_repeated_samples_are_counted(at: Folders) -> None:
    plan = write_plan(at)
    plan[2][0][1] = plan[2][0][0]  # one sample lost, its neighbour trained twice
    plan[3][1].append(plan[3][0][0])  # a sample of rank 0 trained by both ranks
    plan[4][1].pop()  # a sample lost
    train(at, 0, {step: ranks for step, ranks in plan.items() if step < STEPS})  # one step short
    assert collect_results._check_samples(at, STEPS) == (STEPS * SEQUENCES, 2 + SEQUENCES, 2)


# Folders


def test_the_first_checkpoint_and_each_model_are_scored(at: Folders) -> None:
    for step in (20, 5, 100):
        checkpoint = Path(at.model, "checkpoints", f"step_{step:08d}", "attempt-0001")
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}")
    # An incomplete checkpoint.
    Path(at.model, "checkpoints", "step_00000001", "attempt-0001").mkdir(parents=True)
    assert at.list_scored() == {
        f"{at.model}/checkpoints/step_00000005/attempt-0001": at.scores_early,
        at.model: at.scores_model,
        at.tuned: at.scores_tuned,
        at.aligned: at.scores_aligned,
    }
