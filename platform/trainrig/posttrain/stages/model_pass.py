"""Pass of a stage over its splits by workers that each hold a model."""

from collections.abc import Callable, Sequence
from typing import Any

from trainrig.manifest import SCRATCH, FileSum, Stage
from trainrig.ray_runtime.ray_session import connect
from trainrig.ray_runtime.split_processing import Progress, map_splits
from trainrig.splits import Phase, Split, Work, sum_counts
from trainrig.train import checkpoint


def map_with_model(
    stage: Stage,
    model: str,
    workers: int,
    make: Callable[[], Work],
    splits: Sequence[Split],
    title: str,
    progress: Progress | None,
) -> tuple[dict[str, Any], dict[str, FileSum]]:
    """Process `splits` by `workers` that each hold `model`; return the summed counts and the files.

    `make` returns the work of a worker. 0 workers: everything is done in this process.
    """
    memory = checkpoint.estimate_worker_memory(model)
    phase = Phase(stage.build_path(SCRATCH), make, title=title, memory=memory)
    if workers:
        connect(workers, "workers", models=True)
    map_splits(phase, splits, workers, progress, models=True)
    records = phase.read_results(splits)
    files = {name: entry for record in records for name, entry in record.files.items()}
    return sum_counts(record.counts for record in records), files
