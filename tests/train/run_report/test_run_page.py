import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from trainrig.config import to_toml
from trainrig.errors import DataError, Unfinished
from trainrig.processes import lease
from trainrig.train import pretrain
from trainrig.train.evaluations import CheckpointScore, ScoredCheckpoint
from trainrig.train.run.metrics import MetricsWriter
from trainrig.train.run.planned_loss import Prediction, read_prediction
from trainrig.train.run.progress import Goodput
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_report.outcome_charts import draw_prediction
from trainrig.train.run_report.run_charts import RunReportData
from trainrig.train.run_report.run_page import (
    build_run_page,
    read_report_data,
    report_at_end,
    write_report,
)
from trainrig.train.run_report.sampled_answers import AnswerAt, FollowedPrompt

HOSTILE = "<script>alert(1)</script>"


def update(step, attempt=1, loss=None):
    return {
        "step": step,
        "attempt": attempt,
        "time": 100.0 + step,
        "train/loss": 5.0 / step if loss is None else loss,
        "train/grad_norm": 1.0 / step,
        "train/lr": 0.01 * min(step, 10),
        "train/tokens": 256 * step,
        "train/tokens_per_second": 1_000.0 + step,
        "train/step_seconds": 0.25,
        "cluster/workers": 2,
    }


def read_held_out(step, loss):
    return {
        "step": step,
        "attempt": 1,
        "time": 100.0,
        "eval/loss": loss,
        "eval/web/loss": loss + 1,
        f"eval/{HOSTILE}/loss": loss - 1,
    }


def make_event(name, time, **details):
    return {"event": name, "time": time, "pid": 1, "host": "here", **details}


def run_data(**changes):
    given = {
        "folder": "runs/one",
        "verb": "pretrain",
        "steps": 40,
        "updates": [update(step) for step in range(1, 41)],
        "thrown_away": [],
        "held_out": [read_held_out(20, 3.5), read_held_out(40, 3.25)],
        "events": [make_event("attempt_started", 90.0, attempt=1, step=0, workers=2, why="start")],
        "goodput": Goodput(productive=30.0, restart=10.0),
    }
    return RunReportData(**(given | changes))


def extract_text(page):
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL))


def test_a_page_says_how_the_run_went_and_where_its_time():
    page = extract_text(build_run_page(run_data()))
    assert "40 of 40 steps; held-out loss 3.250 nats per token." in page
    assert "Held-out loss 3.50 → 3.25 nats per token" in page
    assert "Hardest to predict: web, 4.25 nats per token" in page
    assert "Median throughput: 1,020 tokens/s" in page
    assert (
        "75.0\u00a0% of the time was spent on steps that count" in page or "75.0 % of the" in page
    )
    assert "trainrig generate runs/one --prompt TEXT" in page


def test_answers_of_checkpoints_are_below_their_scores():
    scored = [
        ScoredCheckpoint("quick", step, 1, {"sums": CheckpointScore(step / 40, 0.1, True)})
        for step in (20, 40)
    ]
    said = tuple(AnswerAt(score.step, f"{score.step}!", "acc", 0.0) for score in scored)
    followed = {"quick": [FollowedPrompt("sums, row 1", "1+1=", "2", said)]}
    page = extract_text(build_run_page(run_data(evaluated=[scored], followed=followed)))
    told = ("Benchmark scores", "quick: sums 0.500 → 1.000", "1+1=", "Step 20", "20!", "40!")
    places = [page.index(text) for text in told]
    assert places == sorted(places)


def test_a_followed_prompt_shows_changes_no_answers_and_the_ends_of_long_texts():
    scored = [ScoredCheckpoint("quick", 20, 1, {"sums": CheckpointScore(0.5, 0.1, True)})]
    texts = ("7", "7", "7", "2", " ", HOSTILE)
    said = tuple(AnswerAt(10 * n, text, "acc", float("2" in text)) for n, text in enumerate(texts))
    long = "a" + "b" * 5_000 + "c"
    followed = {"quick": [FollowedPrompt("sums, row 1", long, "2", said)]}
    html = build_run_page(run_data(evaluated=[scored], followed=followed))
    page = extract_text(html)
    assert 'class="group headed"' in html and HOSTILE not in html
    assert "sums, row 1 expected: 2 " + "a" + "b" * 299 + " […] " + "b" * 299 + "c" in page
    assert "Step 0 to 20, unchanged acc 0 7 Step 30 acc 1 2 Step 40 no answer; acc 0" in page


def test_an_unfinished_run_shows_how_to_continue():
    page = extract_text(build_run_page(run_data(steps=50)))
    assert "40 of 50 steps" in page and "has not reached its last step" in page
    assert "trainrig pretrain runs/one/run.toml" in page and "generate" not in page


def test_a_live_run_is_running_with_its_remaining_time():
    page = extract_text(build_run_page(run_data(steps=50, running=True, seconds_left=130.0)))
    assert "running 40 of 50 steps; held-out loss 3.250 nats per token; about 2" in page
    assert "has not reached its last step" not in page and "trainrig watch runs/one" in page


def test_a_held_folder_is_a_live_run_but_not_in_the_report_of_its_own_end(tmp_path):
    folder = str(tmp_path)
    (tmp_path / "run.toml").write_text('stage = "pretrain"\ntraining.steps = 50\n')
    writer = MetricsWriter(folder, 1, 0)
    for step in range(1, 41):
        writer.write(step, {name: value for name, value in update(step).items() if "/" in name})
    writer.close()
    with lease.hold_lease(folder):
        found = read_report_data(folder)
        assert found.running and found.seconds_left is not None
        assert "running" in extract_text(Path(write_report(folder)).read_text())[:400]
        write_report(folder, live=False)
        assert "Run the same command to continue" in (tmp_path / "report.html").read_text()
    assert not read_report_data(folder).running


def test_failures_are_among_the_events_and_the_warnings():
    events = [
        make_event("attempt_started", 90.0, attempt=1, step=0, workers=2, why="start"),
        make_event("worker_started", 91.0, attempt=1, rank=0),
        make_event("attempt_failed", 100.0, attempt=1, problem=f"rank 0 said {HOSTILE}"),
        make_event("attempt_started", 101.0, attempt=2, step=20, workers=1, why="fault"),
        make_event("step_skipped", 105.0, attempt=2, step=30, data_step=30, what="the loss is NaN"),
        make_event("numerics_changed", 106.0, attempt=2, step=20, what="torch 1 → 2"),
    ]
    dead = [update(21, 1, 9.0), update(22, 1, 9.5)]
    html = build_run_page(run_data(events=events, thrown_away=[dead]))
    page = extract_text(html)
    assert "1 global batch was skipped" in page
    assert "machine or libraries changed" in page
    assert ", 2 attempts" in page
    assert "attempt failed" in page and "worker started" not in page
    assert "what: the loss is NaN" in page
    assert HOSTILE not in html and "&lt;script&gt;" in html


@pytest.mark.parametrize("loss", [None, 3.0])
def test_a_run_without_held_out_loss_or_with_a_loss_that_is_no_number_has_a_page(loss):
    updates = [*run_data().updates[:-1], update(40) | {"train/loss": loss}]
    page = extract_text(build_run_page(run_data(held_out=[], updates=updates)))
    assert "eval" not in page and "Training loss 5.00 →" in page


def test_a_run_of_one_step_and_of_many_sources_has_a_page():
    many = read_held_out(1, 3.0) | {f"eval/source-{n}/loss": 2.0 + n / 10 for n in range(9)}
    page = extract_text(
        build_run_page(run_data(updates=[update(1)], held_out=[many], goodput=Goodput()))
    )
    assert "The 4 sources with the highest loss are drawn." in page and "source-0" in page
    assert "of the time was spent" not in page


@pytest.mark.slow
def test_the_same_story_gives_the_same_bytes():
    assert build_run_page(run_data()) == build_run_page(run_data())


@pytest.mark.slow
def test_a_real_run_is_drawn_from_its_folder(straight, make_run):
    folder = straight(1).folder
    Path(folder, "run.toml").write_text(to_toml(make_run(folder, training={"steps": 20})))
    told = read_report_data(folder)
    assert (told.verb, told.steps, len(told.updates), told.thrown_away) == ("pretrain", 20, 20, [])
    assert write_report(folder) == f"{folder}/report.html"
    assert Path(folder, "report.html").read_text() == build_run_page(told)


def test_repeated_updates_are_marked(tmp_path):
    (tmp_path / "run.toml").write_text('stage = "pretrain"\n[training]\nsteps = 6\n')
    for attempt, first, past in ((1, 1, 5), (2, 3, 7)):
        writer = MetricsWriter(str(tmp_path), attempt, first - 1)
        for step in range(first, past):
            names = {n: v for n, v in update(step).items() if "/" in n}
            writer.write(step, names | {"train/loss": float(attempt)})
        writer.close()
    told = read_report_data(str(tmp_path))
    assert [line["train/loss"] for line in told.updates] == [1, 1, 2, 2, 2, 2]
    assert [[line["step"] for line in lines] for lines in told.thrown_away] == [[3, 4]]


def test_a_folder_without_a_run_or_without_an_update_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no run.toml"):
        write_report(str(tmp_path))
    (tmp_path / "run.toml").write_text('stage = "pretrain"\n')
    with pytest.raises(DataError, match="run has no update"):
        write_report(str(tmp_path))


def test_a_run_is_reported_however_its_driving_ends(straight, make_run, tmp_path):
    folder = shutil.copytree(straight(1).folder, tmp_path / "run")
    (folder / "run.toml").write_text(to_toml(make_run(folder, training={"steps": 40})))
    (folder / "report.html").unlink(missing_ok=True)
    with pytest.raises(Unfinished), report_at_end(str(folder)):
        raise Unfinished("stopped")
    assert "20 of 40 steps" in extract_text((folder / "report.html").read_text())


def test_a_run_that_ends_before_its_first_update_has_no_report(tmp_path):
    with pytest.raises(Unfinished), report_at_end(str(tmp_path)):
        raise Unfinished("stopped")
    assert not list(tmp_path.iterdir())


def make_prediction(low: float = 1.9) -> Prediction:
    tokens = np.array([1.0, 1e12])
    return Prediction("besiroglu", tokens, np.array([2.0, 2.0]), tokens * 0 + low, tokens * 0 + 2.1)


def test_a_planned_run_is_compared_with_what_the_law_said():
    page = extract_text(build_run_page(run_data(prediction=make_prediction())))
    assert "Held-out loss 3.250; law besiroglu predicted 2.000 [1.900, 2.100]: +62.5%" in page
    assert "Predicted loss 2.000 nats per token 3.250 measured, +62.5%" in page
    assert "besiroglu" not in build_run_page(run_data())


def test_the_prediction_is_read_from_the_plan_in_the_run_folder(tmp_path):
    assert read_prediction(str(tmp_path)) is None
    points = [
        {"tokens": 10.0, "loss": 4.0, "low": None, "high": None},
        {"tokens": 1000.0, "loss": 2.0, "low": None, "high": None},
    ]
    (tmp_path / "plan.json").write_text(json.dumps({"law": "x", "curve": points, "more": 1}))
    found = read_prediction(str(tmp_path))
    assert found is not None
    loss, low, _ = found.interpolate(100.0)
    assert loss == pytest.approx(3.0)
    assert np.isnan(low)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(DataError, match=r"plan\.json: not a plan"):
        read_prediction(str(tmp_path))


def test_the_overlay_draws_both_losses():
    said, actual, band = draw_prediction(run_data(), make_prediction())["plot"].marks
    assert (said.x.tolist(), said.y.tolist()) == ([1.0, 1e12], [2.0, 2.0])
    assert (actual.x.tolist(), actual.y.tolist()) == ([256 * 20.0, 256 * 40.0], [3.5, 3.25])
    assert band.low.tolist() == [1.9, 1.9]


@pytest.mark.slow
def test_a_file_that_is_no_plan_is_refused_before_the_run_begins(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"law": "x"}')
    run = Pretraining.model_construct(plan=str(path))  # type: ignore[call-arg]
    with pytest.raises(DataError, match=r"other\.json: not a plan"):
        pretrain._read_plan(run, str(tmp_path))
