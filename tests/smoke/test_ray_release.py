"""The same stages on another release of Ray give the same bytes.

`make other-ray` installs that release into a folder, names it in TRAINRIG_OTHER_RAY, and also runs
tests of faults, sweeps and submitted runs on it.
"""

import os
import subprocess
import sys
from pathlib import Path

import golden
import pyarrow.parquet as pq
import pytest

from trainrig.scaling.laws.runs_table import RUNS_FILE

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1_200)]

OTHER_RAY = "TRAINRIG_OTHER_RAY"
TREE = Path(golden.__file__).parents[1]
SWEEP = """stage = "sweep"
tokens = "tokens-1"
output = "sweep"
[design]
kind = "Grid"
parameters = [5_200, 20_000]
tokens = [4_000, 8_000]
[batches]
sequence_length = 32
[training]
fewest_steps = 12
"""


@pytest.fixture
def other_ray() -> Path:
    """Return the folder with the other release of Ray."""
    folder = os.environ.get(OTHER_RAY)
    if not folder:
        pytest.skip(f"{OTHER_RAY} is not set; `make other-ray` sets it")
    return Path(folder)


def hash_stages(folder: Path, ray: Path | None) -> dict[str, str]:
    """Run stages on Ray in `folder`, and return the hashes of their results."""
    folder.mkdir()
    golden.write_inputs(folder)
    chain = golden.Chain(TREE, folder, ray=ray)
    chain.record_files("documents", chain.run_stage(golden.CURATE, workers=2))
    (folder / "documents-2").rename(folder / "documents-1")
    chain.run_stage(golden.TOKENIZER)
    chain.record_files("tokens", chain.run_stage(golden.TOKENIZE, workers=2))
    (folder / "tokens-2").rename(folder / "tokens-1")
    model = chain.run_stage(golden.PRETRAIN, workers=2, model="", training="", optimizer="AdamW")
    chain.record_run("pretrain", model)
    runs = pq.read_table(chain.run_stage(SWEEP) / RUNS_FILE)
    chain.record("sweep", runs.drop_columns(["seconds", "cost"]).to_pylist())
    return chain.hashes


def read_release(packages: Path | None) -> str:
    """Return the release of Ray that stages use with `packages` first on their path."""
    environment = os.environ | {"PYTHONPATH": str(packages or "")}
    command = [sys.executable, "-c", "import ray; print(ray.__version__)"]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_another_release_of_ray_gives_the_same_bytes(other_ray: Path, tmp_path: Path) -> None:
    assert read_release(other_ray) != read_release(None)
    assert hash_stages(tmp_path / "other", other_ray) == hash_stages(tmp_path / "installed", None)
