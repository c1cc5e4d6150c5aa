import dataclasses
import logging
import math

import numpy as np
import pytest

from trainrig.config import build
from trainrig.errors import ConfigError
from trainrig.evaluate.evaluation_run_file import Evaluation
from trainrig.evaluate.held_out_perplexity import score, score_source
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.shards.token_shards import HELD_OUT, TokenShards
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.checkpoint import find_newest_valid, open_model
from trainrig.train.held_out_loss import HeldOutSets, HeldOutSettings, RowSizes, open_held_out
from trainrig.train.pretrain import prepare
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

SIZES = RowSizes(rows=5, length=32, micro_batch=2, by_document=False)


@pytest.fixture(scope="session")
def shards(tokens):
    return TokenShards.open(f"{tokens}/{HELD_OUT}")


def select_rows(sets: HeldOutSets, source: str):
    for micro in sets.batches:
        if sets.sources[micro.sources[0]] == source:
            yield from zip(micro.samples.tolist(), micro.ids, micro.targets, strict=True)


@pytest.mark.parametrize("rows", [1, 5, 10_000])
def test_rows_are_windows_of_one_source_spread_over_all_of_it(shards, rows):
    sets = open_held_out(shards, RowSizes(rows, 32, 2, by_document=False))
    assert sets.sources == shards.sources == ("books", "web")
    for source in sets.sources:
        held = shards.read_window(source, 0, shards.tokens(source)).astype(np.int64)
        windows = math.ceil((len(held) - 1) / 32)
        found = list(select_rows(sets, source))
        numbers = [number for number, *_ in found]
        assert numbers == [n * windows // min(rows, windows) for n in range(min(rows, windows))]
        for number, ids, targets in found:
            there = held[number * 32 : number * 32 + 33]
            np.testing.assert_array_equal(ids[: len(there) - 1], there[:-1])
            np.testing.assert_array_equal(targets[: len(there) - 1], there[1:])
            assert set(targets[len(there) - 1 :].tolist()) <= {IGNORE}
    assert all(len(set(micro.sources.tolist())) == 1 for micro in sets.batches)


class Rotation:
    """A corruption that rotates the ids of each row by one."""

    def apply(self, micro, step):
        ids = np.roll(micro.ids, 1, axis=1)
        return dataclasses.replace(micro, arrays={**micro.arrays, "ids": ids})


def test_corruption_reaches_the_remembered_rows(shards):
    sets = open_held_out(shards, RowSizes(2, 32, 2, by_document=False))
    corrupted = dataclasses.replace(sets, remembered=sets).corrupt(Rotation())
    assert corrupted.remembered is not None
    for both in zip(corrupted.batches, corrupted.remembered.batches, sets.batches, strict=True):
        own, remembered, plain = both
        np.testing.assert_array_equal(own.ids, np.roll(plain.ids, 1, axis=1))
        np.testing.assert_array_equal(remembered.ids, own.ids)


@pytest.mark.parametrize(("rows", "micro_batch"), [(3, 2), (10_000, 5)])
def test_pieces_and_positions_say_where_documents_begin(shards, rows, micro_batch):
    sets = open_held_out(shards, RowSizes(rows, 32, micro_batch, by_document=True))
    for micro in sets.batches:
        source = sets.sources[micro.sources[0]]
        for row, sample in enumerate(micro.samples.tolist()):
            start = sample * 32
            length = min(32, shards.tokens(source) - 1 - start)
            numbers = shards.find_document_numbers(source, np.arange(start, start + length))
            places = np.arange(length)
            begins = np.array([np.flatnonzero(numbers == n)[0] for n in numbers])
            np.testing.assert_array_equal(micro.positions[row, :length], places - begins)
            mine = micro.pieces[micro.pieces[:, 0] == row]
            assert mine[:, 2].tolist() == sorted(set(numbers.tolist()))
            assert mine[:, 1].tolist() == sorted(set(begins.tolist()))


@pytest.mark.slow
def test_the_loss_has_the_same_bits_at_any_number_of_workers(ranks, make_job, tmp_path):
    # Four micro-batches: of three ranks the first two have one, and join one more round without
    # any.
    job = make_job(tmp_path, training={"held_out": {"rows": 3}})
    (alone,) = ranks(1, "held_out_loss", job=job)
    assert set(alone.by_source) == {"books", "web"}
    for world in (2, 3):
        assert ranks(world, "held_out_loss", job=job) == [alone] * world


@pytest.mark.slow
def test_the_loss_is_that_of_trainrig_evaluate(ranks, make_job, tokens, tmp_path):
    job = make_job(tmp_path, training={"held_out": {"every": 3, "rows": 10_000}})
    ranks(2, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    newest, _ = find_newest_valid(RunFolder(job.folder))
    run = Evaluation(checkpoint=newest.path, tokens=tokens, output="unused", sequence_length=32)
    opened = open_model(newest.path)
    model = opened.build()
    encoder = Encoder(opened.tokenizer)
    scores = {name: score_source(run, model, encoder, name) for name in ("books", "web")}
    last = metrics.read_held_out_series(job.folder)[-1]
    for source, scored in scores.items():
        assert last[f"eval/{source}/loss"] == pytest.approx(scored.loss, rel=1e-6)
    nats = sum(scored.loss * scored.tokens for scored in scores.values())
    targets = sum(scored.tokens for scored in scores.values())
    assert last["eval/loss"] == pytest.approx(nats / targets, rel=1e-6)


@pytest.mark.slow
def test_by_document_the_loss_is_that_of_each_piece_alone(ranks, make_job, shards, tmp_path):
    training = {"held_out": {"every": 12, "rows": 4}}
    job = make_job(tmp_path, batches={"attend": "document"}, training=training)
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    opened = open_model(job.folder)
    lengths = Encoder(opened.tokenizer).byte_lengths
    sets = open_held_out(shards, RowSizes(4, 32, 2, by_document=True))
    pieces = []
    for micro in sets.batches:
        for row, (ids, targets) in enumerate(zip(micro.ids, micro.targets, strict=True)):
            begins = micro.pieces[micro.pieces[:, 0] == row][1:, 1]
            parts = zip(np.split(ids, begins), np.split(targets, begins), strict=True)
            pieces += [(i[None], t[None]) for i, t in parts]
    assert len(pieces) > sum(len(micro.ids) for micro in sets.batches)
    scored = score(opened.build(), pieces, lengths)
    last = metrics.read_held_out_series(job.folder)[-1]
    assert last["eval/loss"] == pytest.approx(scored.loss, rel=1e-6)


def test_an_evaluation_that_all_agree_to_stop_gives_no_loss(ranks, make_job, tmp_path):
    job = make_job(tmp_path, training={"held_out": {"rows": 8}})
    assert ranks(2, "held_out_loss", job=job, stop_before=0) == [None, None]
    assert ranks(2, "held_out_loss", job=job, stop_before=3) == [None, None]


SECONDS = "train/held_out_seconds"


def fit_held_out(folder):
    return [
        {name: value for name, value in line.items() if name not in ("attempt", "time", SECONDS)}
        for line in metrics.read_held_out_series(folder)
    ]


@pytest.mark.slow
def test_held_out_loss_is_measured_at_its_cadence_and_after_the_last_step(
    ranks, make_job, tmp_path
):
    job = make_job(tmp_path, training={"held_out": {"every": 5, "rows": 2}})
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    lines = fit_held_out(job.folder)
    assert [line["step"] for line in lines] == [5, 10, 12]
    assert all(
        set(line) == {"step", "eval/loss", "eval/books/loss", "eval/web/loss"} for line in lines
    )
    assert lines[-1]["eval/loss"] < lines[0]["eval/loss"]
    assert all(line[SECONDS] > 0 for line in metrics.read_held_out_series(job.folder))
    assert len(metrics.read_series(job.folder)) == 12  # updates have separate lines


@pytest.mark.slow
def test_measuring_changes_nothing_of_the_training(ranks, make_job, last_weights, tmp_path):
    made = []
    for name, held_out in (("with", {"every": 2}), ("without", {"rows": 0})):
        job = make_job(tmp_path / name, training={"held_out": held_out})
        ranks(2, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        made.append(
            (last_weights(job), [line["train/loss"] for line in metrics.read_series(job.folder)])
        )
    assert made[0] == made[1]
    assert metrics.read_held_out_series(job.folder) == []


@pytest.mark.slow
def test_a_resume_leaves_the_series_as_it_would_have_been(ranks, make_job, go_on, tmp_path):
    training = {
        "held_out": {"every": 4, "rows": 3},
        "checkpoints": {"every": 4, "keep": 9},
        # So that the first steps do not depend on the run's length.
        "schedule": {"kind": "Constant", "warmup": 0},
    }
    straight = make_job(tmp_path / "straight", training=training)
    ranks(2, "train", job=straight, attempt=RunFolder(straight.folder).take_attempt(0))
    # Ended after its save at step 4 or 8, as by a kill or a stop, before or after the measurement.
    for steps, lose in ((4, False), (8, True)):
        job = make_job(tmp_path / f"to-{steps}", training=training)
        short = make_job(job.folder, training=training | {"steps": steps})
        ranks(1, "train", job=short, attempt=RunFolder(job.folder).take_attempt(0))
        if lose:
            path = tmp_path / f"to-{steps}" / metrics.METRICS
            kept = [
                line for line in path.open() if not ('"eval/loss"' in line and '"step": 8' in line)
            ]
            path.write_text("".join(kept))
        go_on(2, job)
        assert fit_held_out(job.folder) == fit_held_out(straight.folder)
        raw = [at for at in metrics._read_all_lines(job.folder) if "eval/loss" in at]
        assert len(raw) == 3  # none is measured twice


@pytest.mark.slow
def test_missing_held_out_tokens_are_logged_and_the_run_continues(
    ranks, make_run, make_tokens, caplog, tmp_path
):
    other = make_tokens(tmp_path, held_out=0.0)
    run = make_run(tmp_path / "run").model_copy(update={"tokens": other})
    (tmp_path / "run").mkdir()
    with caplog.at_level(logging.WARNING):
        job = prepare(run)
    assert "nothing is held out, so no held-out loss will be measured" in caplog.text
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    assert metrics.read_held_out_series(job.folder) == []


@pytest.mark.slow
def test_a_run_without_held_out_loss_logs_nothing_about_it(make_run, make_tokens, caplog, tmp_path):
    other = make_tokens(tmp_path, held_out=0.0)
    run = make_run(tmp_path / "run", training={"held_out": {"rows": 0}})
    assert prepare(run.model_copy(update={"tokens": other})).make_held_out() is None
    assert caplog.text == ""


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"every.*equal to 1"):
        build(HeldOutSettings, {"every": 0}, "run.toml")


def test_held_out_loss_is_due_every_so_many_steps_and_at_the_end():
    due = [step for step in range(1, 12) if HeldOutSettings(every=4).due(step, 11)]
    assert due == [4, 8, 11]
    assert not any(HeldOutSettings(every=4, rows=0).due(step, 11) for step in range(1, 12))


@pytest.mark.slow
def test_rows_give_the_score_of_the_same_rows(ranks, make_job, shards, tmp_path):
    job = make_job(tmp_path, training={"held_out": {"every": 12, "rows": 5}})
    ranks(3, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    opened = open_model(job.folder)
    last = metrics.read_held_out_series(job.folder)[-1]
    sets = open_held_out(shards, SIZES)
    lengths = Encoder(opened.tokenizer).byte_lengths
    for source in sets.sources:
        rows = [(ids[None], targets[None]) for _, ids, targets in select_rows(sets, source)]
        scored = score(opened.build(), rows, lengths)
        assert last[f"eval/{source}/loss"] == pytest.approx(scored.loss, rel=1e-6)
