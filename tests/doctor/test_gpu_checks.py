"""`trainrig doctor` on machines with GPUs, by stand-ins for the driver's program and PCI bus."""

import os
from pathlib import Path

import pytest

from trainrig.doctor import gpu_checks
from trainrig.doctor.gpu_checks import Gpu, GpuSurvey, TorchTrial

ONE = GpuSurvey((Gpu("NVIDIA H200", "570.1", 143_771, 0),), 1)
TWO = GpuSurvey(ONE.gpus * 2, 2)
RIGHT = TorchTrial(True, 2, "2.28.3", "")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a program that the checks take for `nvidia-smi`, on an empty PCI bus."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(gpu_checks, "DEVICES", tmp_path / "bus")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "nvidia-smi"


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def plug(device: Path, vendor: str, kind: str) -> None:
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")


def test_gpus_are_those_that_the_driver_lists(driver: Path) -> None:
    lines = "NVIDIA H200, 570.1, 143771, 4\\nNVIDIA H200, 570.1, 143771, 90000"
    write_program(driver, f"printf '{lines}\\n'")
    survey = gpu_checks.survey_gpus()
    assert [gpu.used for gpu in survey.gpus] == [4, 90_000]
    found = gpu_checks.check_gpus(survey)
    assert found.severity == "warning"
    assert "2 × NVIDIA H200, 143,771 MiB, driver 570.1; memory is in use on GPU 1" in found.found


def test_a_plugged_gpu_without_its_driver_is_a_problem(driver: Path) -> None:
    plug(driver.with_name("bus") / "0", "0x10de", "0x030200")
    plug(driver.with_name("bus") / "1", "0x10de", "0x040300")  # its sound
    plug(driver.with_name("bus") / "2", "0x1234", "0x030000")
    write_program(driver, "echo 'Driver/library version mismatch'; exit 18")
    survey = gpu_checks.survey_gpus()
    assert (survey.gpus, survey.plugged) == ((), 1)
    found = gpu_checks.check_gpus(survey)
    assert found.severity == "problem"
    assert "Driver/library version mismatch" in found.found


def test_an_answer_that_lists_no_gpus_is_told_as_it_is(driver: Path) -> None:
    plug(driver.with_name("bus") / "0", "0x10de", "0x030200")
    write_program(driver, "echo 'No devices were found'")
    found = gpu_checks.check_gpus(gpu_checks.survey_gpus())
    assert (found.severity, "No devices were found" in found.found) == ("problem", True)
    driver.write_text("no program")
    assert "cannot be started" in gpu_checks.survey_gpus().failure
    write_program(driver, "echo 'Card, with a comma, 570.1, 143771, 4'")
    assert gpu_checks.survey_gpus().gpus == (Gpu("Card, with a comma", "570.1", 143_771, 4),)


def test_a_machine_without_gpus_is_fine(driver: Path) -> None:
    write_program(driver, "echo 'No devices were found'; exit 6")
    assert gpu_checks.check_gpus(gpu_checks.survey_gpus()).severity == "ok"


def test_hidden_gpus_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "hides all" in gpu_checks.check_gpus(ONE).found
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpu_checks.check_gpus(ONE).severity == "ok"


@pytest.mark.parametrize(
    ("line", "build"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ('cuda = "12.8"', "12.8"),
        ("cuda: Optional[str] = None", None),
    ],
)
def test_the_build_is_the_cuda_version_of_torchs_own_file(line: str, build: str | None) -> None:
    text = f"__all__ = ['cuda', 'hip']\n__version__ = '2.13.0'\n{line}\nhip: Optional[str] = '6'\n"
    assert gpu_checks.parse_cuda_build(text) == build


FAILED = TorchTrial(False, 0, None, "RuntimeError: The NVIDIA driver on your system is too old")


@pytest.mark.parametrize(
    ("survey", "build", "trial", "torch", "nccl"),
    [
        (GpuSurvey(), None, None, "ok", "ok"),
        (GpuSurvey(), "13.0", None, "ok", "ok"),
        (ONE, None, None, "problem", "ok"),
        (ONE, "13.0", TorchTrial(True, 1, "2.28.3", ""), "ok", "ok"),
        (ONE, "13.0", FAILED, "problem", "ok"),
        (TWO, "13.0", RIGHT, "ok", "ok"),
        (TWO, "13.0", FAILED, "problem", "problem"),
        (TWO, "13.0", TorchTrial(True, 2, None, ""), "ok", "problem"),
        (
            TWO,
            "13.0",
            TorchTrial(True, 2, "2.28.3", "AssertionError: a sum is wrong"),
            *["problem"] * 2,
        ),
    ],
)
def test_torch_and_nccl_must_fit_the_gpus(
    survey: GpuSurvey, build: str | None, trial: TorchTrial | None, torch: str, nccl: str
) -> None:
    found = gpu_checks.check_torch(survey, build, trial)
    assert (found.severity, gpu_checks.check_nccl(survey, trial).severity) == (torch, nccl)
    assert bool(found.advice) == (torch == "problem")


@pytest.mark.slow
def test_torch_is_tried_and_its_build_is_read_without_an_import() -> None:
    import torch

    assert gpu_checks.read_cuda_build() == torch.version.cuda
    trial = gpu_checks.try_torch()
    assert trial.available == torch.cuda.is_available()
    assert bool(trial.error) != trial.available  # it says why it sees no GPU


def test_a_trial_that_dies_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "PROBE", "import os; os.abort()")
    assert gpu_checks.try_torch().error == "torch ended with -6"
    monkeypatch.setattr(gpu_checks, "PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(gpu_checks, "TRIAL", 0.2)
    assert gpu_checks.try_torch().error == "torch did not finish within 0.2 s"
