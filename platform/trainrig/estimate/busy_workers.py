"""How much of a run's workers is at work, at the sizes that it may shrink to.

A step takes as many turns as the worker with the most micro-batches has; whoever has fewer waits.
"""

from collections.abc import Iterable

WANTED = 0.95  # share of the workers' time


def compute_busy_share(micro_batches: int, workers: int) -> float:
    """The share of their time that `workers` compute for, of steps of so many `micro_batches`."""
    turns = -(-micro_batches // workers)
    return micro_batches / (turns * workers)


def list_sizes_after_losses(workers: int, least: int, of_a_node: int) -> list[int]:
    """`workers`, and what is left of them without one and without two nodes, while a run that needs
    `least` goes on."""
    found = [workers - lost * of_a_node for lost in range(3)]
    return [size for size in found if size >= least]


def describe_busy(
    global_batch: int,
    micro_batch: int,
    sizes: Iterable[int],
    unit: str = "workers",
) -> str:
    """The share at each of `sizes`, numbers of `unit`, in words; and if one is below WANTED, the
    largest micro-batch that brings all above, if any does."""
    sizes = list(sizes)
    micro_batches = global_batch // micro_batch
    shares = {size: compute_busy_share(micro_batches, size) for size in sizes}
    said = ", ".join(
        f"{share:.0%} of {size} {unit if size > 1 else unit.removesuffix('s')}"
        for size, share in shares.items()
    )
    if min(shares.values()) >= WANTED:
        return said
    for smaller in range(micro_batch, 0, -1):
        if global_batch % smaller:
            continue
        count = global_batch // smaller
        best = min(compute_busy_share(count, size) for size in sizes)
        if best >= WANTED:
            return f"{said}; batches.micro_batch = {smaller}: {best:.0%} and more"
    return f"{said}; no micro_batch brings all to {WANTED:.0%}: take a larger global_batch"
