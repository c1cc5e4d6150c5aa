"""Wall time and memory of the quickstart at its full size."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.side_by_side import print_result

pytestmark = pytest.mark.bench
TRAINRIG = Path(sys.executable).with_name("trainrig")


def measure_memory(tree: psutil.Process) -> int:
    """Return the bytes of a process and its descendants; a page shared by n counts 1/n in each."""
    total = 0
    for process in [tree, *tree.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # a process may end meanwhile
            total += process.memory_full_info().pss
    return total


def test_the_whole_path_in_time_and_memory(tmp_path):
    began = time.monotonic()
    run = subprocess.Popen(
        [TRAINRIG, "quickstart", "--out", tmp_path / "q", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    tree = psutil.Process(run.pid)
    peak = 0
    while run.poll() is None:
        peak = max(peak, measure_memory(tree))
        time.sleep(0.5)
    summary = json.loads(run.stdout.read())
    print_result(
        benchmark="quickstart",
        wall_seconds=round(time.monotonic() - began, 1),
        peak_gib=round(peak / 2**30, 2),
        **{key: summary[key] for key in ("seconds", "loss_last", "bits_per_byte")},
    )
    assert run.returncode == 0
    assert peak < 6 * 2**30  # the limit that README promises for any machine
