"""How much of a run's workers is at work, at the sizes that it may shrink to.

A step takes as many turns as the worker with the most micro-batches has; whoever has fewer waits.
In deterministic mode micro-batches are dealt by virtual workers, so one worker less than virtual
ones can double the turns.
"""

from collections.abc import Iterable

from trainrig.tokens.batches import assign_micro_batches

WANTED = 0.95  # share of the workers' time


def busy_share(micro_batches: int, virtual: int | None, workers: int) -> float:
    """The share of their time that `workers` compute for, of steps of so many `micro_batches`;
    `virtual`: as `tokens.batches.read_local_batch` takes it."""
    there = workers if virtual is None else min(virtual, micro_batches)
    turns = len(assign_micro_batches(micro_batches, there, 0, workers))
    return micro_batches / (turns * workers)


def sizes_after_losses(workers: int, least: int, of_a_node: int) -> list[int]:
    """`workers`, and what is left of them without one and without two nodes, while a run that needs
    `least` goes on."""
    found = [workers - lost * of_a_node for lost in range(3)]
    return [size for size in found if size >= least]


def describe_busy(
    global_batch: int,
    micro_batch: int,
    virtual: int | None,
    sizes: Iterable[int],
    unit: str = "workers",
) -> str:
    """The share at each of `sizes`, numbers of `unit`, in words; and if one is below WANTED, the
    largest micro-batch that brings all above, if any does."""
    sizes = list(sizes)
    micro_batches = global_batch // micro_batch
    shares = {size: busy_share(micro_batches, virtual, size) for size in sizes}
    said = ", ".join(f"{share:.0%} of {size} {unit}" for size, share in shares.items())
    if min(shares.values()) >= WANTED:
        return said
    for smaller in range(micro_batch, 0, -1):
        if global_batch % smaller:
            continue
        count = global_batch // smaller
        dealt = None if virtual is None else count
        best = min(busy_share(count, dealt, size) for size in sizes)
        if best >= WANTED:
            more = "" if virtual is None else f" and training.virtual_workers = {count}"
            return f"{said}; batches.micro_batch = {smaller}{more}: {best:.0%} and more"
    return f"{said}; no micro_batch brings all to {WANTED:.0%}: take a larger global_batch"
