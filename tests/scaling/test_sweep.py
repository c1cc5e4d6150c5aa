"""A real sweep of tiny models on a Ray of this machine's own."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from trainrig import config
from trainrig.errors import ConfigError, DataError
from trainrig.scaling import sweep as sweeps
from trainrig.scaling.runs import RUNS_FILE, Runs
from trainrig.scaling.sweep import Sweep, sweep
from trainrig.train import metrics
from trainrig.train.run_folder import RunFolder

TIMES = ("seconds", "cost")  # the columns that differ from time to time


@pytest.fixture
def make_sweep(tokens, tmp_path):
    """`make_sweep("out", seeds=(0, 1))`: two sizes at two lengths, of seconds in all."""

    def make(output="sweep", **changes) -> Sweep:
        settings = {
            "stage": "sweep",
            "tokens": tokens,
            "output": str(tmp_path / output),
            "design": {
                "kind": "Rays",
                "parameters": (6_000, 12_000),
                "tokens_per_parameter": (0.3, 0.6),
            },
            "batches": {"sequence_length": 32, "micro_batch": 4, "epochs": 4},
            "training": {"fewest_steps": 6, "checkpoint_every": 5},
        }
        return config.build(Sweep, settings | changes, "sweep.toml")

    return make


def timeless(run: Sweep) -> bytes:
    """The bytes of the table of `run`, but for what differs from time to time."""
    table = pq.read_table(Path(run.output, RUNS_FILE)).drop_columns(list(TIMES))
    path = Path(run.output, "timeless.parquet")
    pq.write_table(table, path)
    return path.read_bytes()


@pytest.mark.ray
def test_a_sweep_gives_the_same_table_however_many_trials_run_at_once(local_ray, make_sweep):
    shown = []
    one = make_sweep("one", trials={"at_once": 1}, along=2)
    two = make_sweep("two", trials={"cpus": 0.5, "at_once": 2}, along=2)
    manifest = sweep(one)
    sweep(two, show=lambda done, of, rows: shown.append((done, of)))
    assert timeless(one) == timeless(two)
    assert shown[-1] == (4, 4)
    runs = Runs.read(one.output)
    ends = runs.select(runs.state == "end")
    assert ends.trial.tolist() == [name for name in ("n5968-s0", "n11920-s0") for _ in range(2)]
    assert (ends.loss < 5.5).all() and set(ends.losses) == {"books", "web"}
    assert (runs.state == "along").sum() == 4
    assert manifest.counts["points"] == 4 and manifest.counts["diverged"] == 0
    # It is finished: nothing of it is done again.
    attempts = [len(RunFolder(str(f)).attempts()) for f in Path(one.output).glob("trials/*/*")]
    assert attempts == [1] * 4
    assert sweep(one).counts == manifest.counts
