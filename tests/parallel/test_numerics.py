import os

import pytest
import torch

from trainrig.models.architecture.attention_settings import TOGETHER
from trainrig.parallel import numerics
from trainrig.parallel.layer_compilation import Compile
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder


@pytest.fixture
def settings_put_back(monkeypatch):
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_the_fingerprint_tells_what_was_settled(settings_put_back):
    numerics.settle(threads=1, deterministic=True)
    one = numerics.describe_numerics()
    assert (one["threads"], one["deterministic"], one["torch"]) == ("1", "True", torch.__version__)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == numerics.CUBLAS_WORKSPACE
    assert numerics.describe_numerics() == one
    numerics.settle(threads=2, deterministic=False)
    other = numerics.describe_numerics()
    assert numerics.describe_changes(one, other) == "deterministic: True → False, threads: 1 → 2"
    assert numerics.describe_changes(one, one) == ""
    assert numerics.describe_changes(one, one | {"cuda": "13.0"}) == "cuda: none → 13.0"


def test_on_a_gpu_the_fingerprint_tells_of_what_chooses_kernels_there(
    settings_put_back, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    numerics.settle(threads=1, deterministic=True)
    found = numerics.describe_numerics(Compile())
    there = {"cuda", "cudnn", "driver", "triton", "nccl", "cublas_workspace"}
    assert found.keys() >= there
    assert (found["cudnn"], found["nccl"]) == ("91002", "2.27.5")
    assert found["cublas_workspace"] == numerics.CUBLAS_WORKSPACE
    assert (found["narrow_sums"], found["float16_sums"]) == ("False", "False")
    assert found["compiled"] == "inductor, by shape"
    other = numerics.describe_numerics(Compile(backend="aot_eager", dynamic=True))
    assert (
        numerics.describe_changes(found, other)
        == "compiled: inductor, by shape → aot_eager, any length"
    )


def list_events(job, name):
    return [event for event in RunFolder(job.folder).read_events() if event["event"] == name]


def test_a_resume_on_other_hardware_logs_that_bits_may_differ(ranks, make_job, tmp_path):
    job = make_job(tmp_path, training={"steps": 3})
    folder = RunFolder(job.folder)
    ranks(2, "train", job=job, attempt=folder.take_attempt(0), told=(0, "train", 3))
    assert list_events(job, "numerics_changed") == []
    (there,) = list_events(job, "numerics")
    # Pretend that the first attempt ran on another machine.
    elsewhere = there["found"] | {"instructions": "NEON"}
    folder.record("numerics", attempt=1, found=elsewhere)
    path = f"{job.folder}/checkpoints/step_00000001/attempt-0001"
    ranks(2, "train", job=job, attempt=folder.take_attempt(1), resume_from=path)
    (said,) = list_events(job, "numerics_changed")
    assert said["what"] == f"instructions: NEON → {there['found']['instructions']}"
    assert (said["attempt"], said["step"]) == (2, 1)
    steps = [line["step"] for line in metrics.read_series(job.folder)]
    assert steps == [1, 2, 3]  # the run continues


def test_the_kernel_of_attention_is_noted_and_another_on_resume_is_said(ranks, make_job, tmp_path):
    settings = {"steps": 3, "attention": {"kernel": "plain"}}
    job = make_job(tmp_path, training=settings)
    folder = RunFolder(job.folder)
    ranks(1, "train", job=job, attempt=folder.take_attempt(0))
    (there,) = list_events(job, "numerics")
    assert there["found"]["documents"] == "plain: products in blocks"
    other = make_job(tmp_path, training={"steps": 3})
    ranks(1, "train", job=other, attempt=folder.take_attempt(1))
    (said,) = list_events(job, "numerics_changed")
    apart = f"read apart in rows of more than {TOGETHER} bytes a channel"
    assert said["what"] == (
        f"documents: plain: products in blocks → {apart}, windows: plain: products in blocks → none"
    )
