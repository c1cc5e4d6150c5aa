"""A check before the start of a run that its gradients are added in one fixed order."""

import itertools
from collections.abc import Iterable, Sequence

from trainrig.errors import ConfigError
from trainrig.train.run_file.training import Training

# Numbers of workers to check per layout: the fewest, the most, and some between. Planning takes
# about 5 µs per micro-batch and rank that shares it.
SIZES_CHECKED = 32


def check_sums(
    training: Training, workers: int | tuple[int, int], micro_batches: Iterable[int]
) -> None:
    """Raise ConfigError if ranks would disagree on which partial sums of gradients they exchange.

    `micro_batches`: the numbers of micro-batches that a step of the run may have. Every layout of
    the run is checked, at the numbers of workers it may be used with. Without `deterministic`,
    nothing is checked: torch adds the gradients.
    """
    if not training.deterministic:
        return
    counts = sorted(set(micro_batches))
    sizes_by_layout = training.bound_workers(workers).list_sizes()
    for laid_out, sizes in zip(training.layouts, sizes_by_layout, strict=True):
        for size, count in itertools.product(_choose_sizes(sizes), counts):
            virtual = min(training.virtual_workers, count)
            for plan in laid_out.parallel.plan_sums(size, count, virtual):
                if fault := plan.find_fault():
                    raise ConfigError(
                        f"training.parallel: {count} micro-batches over {size} workers do not add "
                        f"up in one fixed order ({fault}). Set training.deterministic = false, or "
                        "use another batches.global_batch."
                    )


def _choose_sizes(sizes: Sequence[int]) -> list[int]:
    """Return up to SIZES_CHECKED of `sizes`, evenly spaced, with the first and the last."""
    last = len(sizes) - 1
    chosen = min(len(sizes), SIZES_CHECKED)
    return [sizes[last * number // max(chosen - 1, 1)] for number in range(chosen)]
