"""Share of a run's workers that is busy, at the sizes that the run may shrink to.

A step takes as many rounds as the worker with the most micro-batches has; workers with fewer wait.
"""

from collections.abc import Iterable

WANTED = 0.95  # least share of the workers' time that raises no advice


def compute_busy_share(micro_batches: int, workers: int) -> float:
    """Return the share of their time that `workers` compute in a step of `micro_batches`."""
    turns = -(-micro_batches // workers)
    return micro_batches / (turns * workers)


def list_sizes_after_losses(workers: int, least: int, of_a_node: int) -> list[int]:
    """Return `workers`, and the sizes after the loss of one and of two nodes.

    Sizes below `least`, with which the run cannot continue, are left out.
    """
    found = [workers - lost * of_a_node for lost in range(3)]
    return [size for size in found if size >= least]


def describe_busy(
    global_batch: int,
    micro_batch: int,
    sizes: Iterable[int],
    unit: str = "workers",
) -> str:
    """Return the busy share at each of `sizes`, in words.

    If a share is below WANTED, the text names the largest micro-batch that raises all shares above
    it, if there is one. `unit` names what is counted, "workers" or "replicas".
    """
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
            return f"{said}; set batches.micro_batch = {smaller} for {best:.0%} or more"
    return f"{said}; no micro_batch keeps all at {WANTED:.0%} busy: set a larger global_batch"
