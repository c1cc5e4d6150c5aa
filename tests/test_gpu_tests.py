"""`make gpu` finds all tests that need a GPU, and needs little else."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu import run

TESTS = Path(__file__).parent
RUN = TESTS / "gpu" / "run.py"
# Imports of other tests that a machine with a GPU may lack.
MISSING = ("ray", "moto", "boto3", "hypothesis", "pyarrow", "scipy", "transformers")


def test_all_tests_that_need_a_gpu_lie_where_they_are_looked_for() -> None:
    marked = {path.parent for path in TESTS.rglob("test_*.py") if "mark.gpu" in path.read_text()}
    assert marked - {TESTS} == {TESTS / "gpu"}


@pytest.mark.slow
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, str(RUN)], env=environment, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("make gpu: torch ") and ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_gpu_tests_are_collected_without_ray(tmp_path: Path) -> None:
    for name in MISSING:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name} here')\n")
    environment = run.environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    ended = subprocess.run(
        [*run.command(), "--collect-only"],
        env=environment,
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "test_a_gpu_draws_the_same_bits[draw_words]" in ended.stdout


def measure_table(folder: Path, name: str, *options: str) -> tuple[dict[str, Any], str]:
    """Run one of the tables on a CPU without these packages, and return its results and output."""
    for missing in MISSING:
        (folder / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no {missing} here')\n")
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    table = [sys.executable, str(RUN.with_name(f"{name}_table.py")), "--device", "cpu"]
    ended = subprocess.run(
        [*table, *options, "--out", str(folder / "out")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (path,) = (folder / "out").glob(f"{name}-table-*.json")
    return json.loads(path.read_text()), ended.stdout


def test_a_kernel_of_attention_is_measured_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from gpu import attention_table
    from gpu.attention_table import Row, measure_row

    monkeypatch.setattr(attention_table, "WARM", 0)
    monkeypatch.setattr(attention_table, "TIMED", 2)
    try:
        plain = measure_row(Row("tiny", "cap and sinks", 16, "plain"), "cpu")
        flash = measure_row(Row("tiny", "documents", 64, "flash"), "cpu")
    finally:
        torch.use_deterministic_algorithms(False)
    assert plain["is_right"] and plain["same_bits_again"] and plain["error"] < 1e-5
    assert plain["forward_ms_from_to"][0] <= plain["forward_ms"] <= plain["forward_ms_from_to"][1]
    assert flash["cannot"] == "it needs a GPU, but the device is a CPU"
    timed = {"forward_ms": 1.0, "backward_ms": 2.0, "is_right": True, "same_bits_again": True}
    rows = [
        {"feature": "documents", "length": 16, "kernel": "flex", **timed},
        {"feature": "documents", "length": 16, "kernel": "plain", **timed, "backward_ms": 5.0},
        {"feature": "documents", "length": 16, "kernel": "wrong", **timed, "is_right": False},
        {"feature": "documents", "length": 16, "kernel": "flash", "cannot": "it has no card"},
    ]
    assert attention_table.name_fastest(rows) == {"documents, 16": "flex"}


@pytest.mark.slow
def test_kernels_of_attention_are_measured_side_by_side(tmp_path: Path) -> None:
    found, printed = measure_table(tmp_path, "attention", "--sizes", "tiny")
    rows = found["rows"]
    assert len(rows) == 3 * 2 * 4
    ran = [row for row in rows if "cannot" not in row]
    assert {row["kernel"] for row in ran} == {"flex", "plain"}
    assert all(row["is_right"] and row["same_bits_again"] for row in ran)
    assert len(found["fastest"]) == 6 and "fastest that is right" in printed


@pytest.mark.slow
def test_a_rank_of_each_layout_is_measured_alone(tmp_path: Path) -> None:
    found, printed = measure_table(tmp_path, "layout", "--size", "tiny")
    rows = {row["layout"]: row for row in found["rows"]}
    assert len(rows) == 12 and found["world"] == 8
    for name, row in rows.items():
        assert row["updated"] and name in printed  # the optimizer is in its seconds
        assert row["tokens_per_second_a_device"] * row["step_seconds"] == pytest.approx(2 * 64)


@pytest.mark.slow
def test_the_table_of_a_tiny_model_is_measured_where_there_is_no_ray(tmp_path: Path) -> None:
    found, printed = measure_table(tmp_path, "step", "--sizes", "tiny")
    loops = {row["loop"]: row for row in found["rows"]}
    assert list(loops) == ["deterministic", "fast", "fast, fused", "llama", "nanogpt"]
    assert loops["deterministic"]["same_bits_again"] is True
    for name, row in loops.items():
        assert row["tokens_per_second"] * row["step_seconds"] == pytest.approx(2 * 2 * 64)
        assert row["share_of_matmul"] > 0 and row["peak_gib"] > 0
        assert f"tiny  {name}" in printed
    assert 0 < sum(loops["fast"]["split"].values()) <= 1.01
    # Products of the Llama equal trainrig's; nanoGPT by hand: two layers of 12 C^2, and a head.
    flops = {name: row["flops_per_second"] * row["step_seconds"] for name, row in loops.items()}
    assert flops["llama"] == pytest.approx(flops["fast"])
    of_a_token = 2 * (2 * 12 * 64**2 + 512 * 64) + 2 * 4 * 64 * (64 + 1) / 2
    assert flops["nanogpt"] == pytest.approx(3 * of_a_token * 2 * 2 * 64)
