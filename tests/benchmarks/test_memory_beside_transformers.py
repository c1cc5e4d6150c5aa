"""Memory of a training step of 124M parameters beside Transformers' Llama of the same sizes."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench
ROUNDS = 3
SCRIPT = Path(__file__).with_name("step_memory_process.py")


def measure_process(side):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), side], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(1800)
def test_a_step_needs_little_more_than_that_of_a_plain_loop(write_result):
    """MiB of a process above what it holds once all is imported."""
    rounds = [
        {side: measure_process(side) for side in ("ours", "transformers")} for _ in range(ROUNDS)
    ]
    above = [{side: each["peak"] - each["before"] for side, each in r.items()} for r in rounds]
    ratios = sorted(each["ours"] / each["transformers"] for each in above)
    found = {
        "parameters": 124_000_000,
        "unit": "MiB",
        "rounds": rounds,
        "ratio": round(statistics.median(ratios), 3),
        "ratio_from_to": [round(ratios[0], 3), round(ratios[-1], 3)],
    }
    print(json.dumps(found))
    write_result("step-memory-beside-transformers.json", found)
    assert found["ratio"] < 1.15
