"""`make gpu` finds all tests that need a GPU, and needs little else than one."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
RUN = TESTS / "gpu" / "run.py"
# What our other tests import, and a machine with a GPU may lack.
MISSING = ("ray", "moto", "boto3", "hypothesis", "pyarrow", "scipy", "transformers")


def test_all_tests_that_need_a_gpu_lie_where_they_are_looked_for() -> None:
    marked = {path.parent for path in TESTS.rglob("test_*.py") if "mark.gpu" in path.read_text()}
    assert marked - {TESTS} == {TESTS / "gpu"}


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, str(RUN)], env=environment, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("make gpu: torch ") and ended.stderr.count("\n") == 1


def test_they_are_collected_where_there_is_no_ray(tmp_path: Path) -> None:
    for name in MISSING:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name} here')\n")
    run = runpy.run_path(str(RUN))
    environment = run["environment"]()
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    ended = subprocess.run(
        [*run["command"](), "--collect-only"],
        env=environment,
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "test_a_gpu_draws_the_same_bits[words]" in ended.stdout
