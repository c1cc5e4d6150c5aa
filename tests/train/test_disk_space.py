import dataclasses
import shutil
from types import SimpleNamespace

import pytest

from trainrig.errors import ConfigError
from trainrig.models.decoder import count_parameters
from trainrig.train.elastic import trainer
from trainrig.train.pretrain import pretrain
from trainrig.train.run_start import check_disk_space


@pytest.fixture
def disk_with(monkeypatch):
    def free(count):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=count))

    return free


def test_a_run_without_room_for_one_checkpoint_is_refused_before_workers_start(
    make_run, monkeypatch, tmp_path
):
    monkeypatch.setattr(trainer, "check_fit", lambda *_: pytest.fail("workers were asked for"))
    # Petabytes, more than any disk.
    run = make_run(tmp_path / "run", model={"channels": 2**20, "layers": 100, "positions": 48})
    message = r"run: \S+\s\S+B free; a checkpoint of \S+ parameters takes \S+\s\S+B \(12 bytes"
    with pytest.raises(ConfigError, match=message):
        pretrain(run)
    assert not (tmp_path / "run").exists()


def test_room_is_12_bytes_a_parameter(make_job, disk_with, caplog, tmp_path):
    job = make_job(tmp_path, training={"checkpoints": {"keep": 2}})
    one = 12 * count_parameters(job.model).total
    disk_with(one - 1)
    with pytest.raises(ConfigError, match="choose another `output`"):
        check_disk_space(job)
    disk_with(one)
    check_disk_space(job)
    assert "up to 3 exist at a time: the disk may become full" in caplog.text
    caplog.clear()
    disk_with(3 * one)
    check_disk_space(job)
    assert caplog.text == ""


def test_checkpoints_that_are_there_count_as_room_for_those_that_replace_them(
    make_job, disk_with, caplog, tmp_path
):
    job = make_job(tmp_path, training={"checkpoints": {"keep": 2}})
    one = 12 * count_parameters(job.model).total
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "old").write_bytes(bytes(2 * one))
    disk_with(one)
    check_disk_space(job)
    assert caplog.text == ""


def test_a_bucket_has_room(make_job, disk_with, tmp_path):
    disk_with(0)
    check_disk_space(dataclasses.replace(make_job(tmp_path), folder="s3://bucket/run"))
