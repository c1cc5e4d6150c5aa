"""Memory of a step of 124M parameters, compared with Transformers' Llama of equal sizes."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench
ROUNDS = 3
VIRTUAL = (1, 8)  # 8 is the default
SCRIPT = Path(__file__).with_name("step_memory_process.py")


def measure_process(side):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), side], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(1800)
def test_a_step_needs_little_more_memory_than_a_plain_loop(write_result):
    """Compare the MiB above the memory after imports, by number of virtual workers."""
    sides = ("transformers", *map(str, VIRTUAL))
    rounds = [{side: measure_process(side) for side in sides} for _ in range(ROUNDS)]
    above = [
        {side: bytes_of["peak"] - bytes_of["before"] for side, bytes_of in r.items()}
        for r in rounds
    ]
    ratios = {
        virtual: sorted(peaks[str(virtual)] / peaks["transformers"] for peaks in above)
        for virtual in VIRTUAL
    }
    found = {
        "unit": "MiB",
        "rounds": rounds,
        "ratios": {n: round(statistics.median(values), 3) for n, values in ratios.items()},
        "ratios_from_to": {n: [round(e[0], 3), round(e[-1], 3)] for n, e in ratios.items()},
    }
    print(json.dumps(found))
    write_result("step-memory-beside-transformers.json", found)
    assert found["ratios"][1] < 1.15
    assert found["ratios"][8] < 1.3
