"""Report before a run on the layouts that it falls back to with fewer workers."""

from collections.abc import Callable

from trainrig.parallel.layout import describe_layout
from trainrig.train.run_file.training_settings import Training

GIB = 2**30


def describe_fallbacks(
    training: Training,
    workers: int | tuple[int, int],
    find_memory: Callable[[Training, int], float] | None = None,
) -> dict[str, str]:
    """Return a description of each fallback layout with the numbers of workers that it is for.

    `find_memory` gives the bytes of a device; they are reported for the fewest workers, which hold
    the most each. {} without fallback layouts.
    """
    found = dict[str, str]()
    sizes = training.bound_workers(workers).list_sizes()
    for number, laid_out in enumerate(training.layouts[1:], 1):
        least = sizes[number][0]
        most = sizes[number][-1]
        counts = f"{least} to {most} workers" if most > least else f"{least} workers"
        said = f"{describe_layout(laid_out.parallel)}; on {counts if most > 1 else '1 worker'}"
        if laid_out.recompute:
            said += f"; recompute {laid_out.recompute.kind}"
        if find_memory:
            said += f"; {find_memory(laid_out, least) / GIB:.3f} GiB per device"
        found[f"fallback_{number}"] = said
    return found
