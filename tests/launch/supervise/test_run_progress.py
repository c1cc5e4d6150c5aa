import json
from pathlib import Path

import pytest

from trainrig import storage
from trainrig.launch.supervise.run_progress import RunProgress, Saved
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder


@pytest.fixture(params=["disk", "bucket"])
def output(request, tmp_path):
    return str(tmp_path / "out") if request.param == "disk" else request.getfixturevalue("s3")


def update(step, attempt=1):
    return {"train/loss": 1.0, "train/tokens": 10 * step}


def test_steps_are_followed_as_they_are_written(output):
    reached = RunProgress("pretrain", output)
    reached.look()
    assert reached.build_figures() == {"step": 0, "tokens": 0}
    writer = metrics.MetricsWriter(output, attempt=1, resumed_step=0)
    for step in (1, 2, 3):
        writer.write(step, update(step))
    writer.flush()
    reached.look()
    assert reached.build_figures() == {"step": 3, "tokens": 30}
    writer.write(3, {"eval/loss": 2.0})
    writer.write(4, update(4))
    writer.close()
    assert reached.measure_progress() == 4
    assert RunProgress("posttrain", output).measure_progress() == 4


def test_a_torn_line_is_passed_over(tmp_path):
    lines = [json.dumps({"step": 2, "train/loss": 1, "train/tokens": 5}), '{"step": 9, "trai', "{}"]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert RunProgress("pretrain", str(tmp_path)).measure_progress() == 2


def test_other_stages_get_on_by_whole_files(output):
    reached = RunProgress("curate", output)
    assert reached.measure_progress() == 0
    for number in range(3):
        storage.write(storage.join(output, "scratch", f"{number}.json"), b"{}")
    if not output.startswith("s3://"):
        Path(output, "scratch", ".3.json.77-aa").touch()  # is being written
    assert reached.measure_progress() == 3
    assert reached.build_figures() == {} and reached.find_saved() == Saved(None, None)


def test_progress_counts_the_newest_valid_checkpoint(tmp_path, ranks, make_job):
    job = make_job(tmp_path / "run", training={"steps": 6, "checkpoints": {"every": 4}})
    assert RunProgress("pretrain", job.folder).find_saved() == Saved(None, None)
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    reached = RunProgress("pretrain", job.folder)
    saved = reached.find_saved()
    assert saved.step == 6 and reached.measure_progress() == 6
    assert saved.tokens == metrics.read_series(job.folder)[-1]["train/tokens"]
    (newest,) = Path(job.folder, "checkpoints", "step_00000006").glob("*/manifest.json")
    newest.unlink()
    assert reached.find_saved() == Saved(4, metrics.read_series(job.folder)[3]["train/tokens"])
