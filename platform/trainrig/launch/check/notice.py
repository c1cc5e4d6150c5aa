"""Whether a checkpoint fits into the time that a cloud gives before it takes a machine back."""

from collections.abc import Sequence

from trainrig.launch.check.pools import PricedPool

# s from the notice to the end, at best. AWS: spot interruption notice. Google: ACPI off to forced
# off. Kubernetes: what GKE leaves pods on spot machines; other services give what their nodes get.
SECONDS = {"aws": 120.0, "gcp": 30.0, "kubernetes": 15.0}
# s of it that are gone before the first byte is written: the agent's look (5 s apart on AWS), Ray's
# answer, and the end of the step under way.
BEFORE = 10.0


def notice_warnings(
    provider: str,
    pools: Sequence[PricedPool],
    checkpoint_seconds: float,
    grace: float | None = None,
) -> list[str]:
    """What to know of pools on spot when a checkpoint takes so long. `grace`: of the pods, s."""
    notice = grace if grace is not None else SECONDS.get(provider)
    spot = [pool.name for pool in pools if pool.market == "spot"]
    if notice is None or not spot or checkpoint_seconds + BEFORE <= notice:
        return []
    return [
        f"a checkpoint takes {checkpoint_seconds:g} s, and {notice:g} s after the notice a machine "
        f"of {', '.join(spot)} is gone, {BEFORE:g} s of which pass before it begins: a preemption "
        "costs the steps since the last one; save more often (every), or over more machines"
    ]
