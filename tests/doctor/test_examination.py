"""`trainrig doctor` as a command: its table, its JSON, its exit codes and its imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainrig import cli
from trainrig.doctor import examination, machine_checks
from trainrig.doctor.diagnosis import Diagnosis

SUBJECTS = ["python", "packages", "gpu", "torch", "nccl", "ray", "disk"]
IMPORTS = """
import sys
from trainrig.doctor.examination import examine
examine()
print(*{"torch", "numpy", "pandas"} & set(sys.modules))
import ray
print(ray.is_initialized())
"""


@pytest.fixture
def wrong_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Diagnosis("loopback", "problem", "it is down", "bring it up")
    monkeypatch.setitem(machine_checks.MACHINE_CHECKS, "loopback", lambda: wrong)


def call(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", *options])
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


@pytest.mark.usefixtures("wrong_limit")
def test_a_problem_gives_exit_code_1_and_its_advice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out = call(capsys, "--bucket", str(tmp_path))
    lines = out.splitlines()
    row = next(number for number, line in enumerate(lines) if line.startswith("problem loopback"))
    assert lines[row].endswith("it is down")
    assert lines[row + 1].strip() == "→ bring it up"
    assert lines[-2].startswith("ok      bucket")
    assert code == 1


def test_the_json_has_every_check_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = call(capsys, "--json")
    found = json.loads(out)
    subjects = [check["subject"] for check in found["checks"]]
    assert subjects == [*SUBJECTS, *machine_checks.MACHINE_CHECKS]
    assert code == int(found["problems"] > 0)
    assert out.count("\n") == 1


def test_an_error_of_a_check_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Diagnosis:
        raise PermissionError(13, "Permission denied", "/proc/meminfo")

    monkeypatch.setitem(machine_checks.MACHINE_CHECKS, "memory", fail)
    (found,) = [one for one in examination.examine() if one.subject == "memory"]
    assert (found.severity, found.found) == ("problem", "/proc/meminfo: Permission denied")


@pytest.mark.slow
def test_nothing_starts_ray_and_torch_is_left_alone_without_gpus() -> None:
    if examination.gpu_checks.survey_gpus().gpus:
        pytest.skip("this machine has GPUs, on which torch is tried in another process")
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "\nFalse\n"
