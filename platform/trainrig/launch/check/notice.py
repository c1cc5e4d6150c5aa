"""Check whether a checkpoint fits into the notice that a cloud gives before a preemption."""

from collections.abc import Sequence

from trainrig.launch.check.pools import PricedPool

# Seconds from the notice to the end, at best. AWS: spot interruption notice. Google: ACPI shutdown
# signal to power off. Kubernetes: grace of pods on spot machines in GKE; in other services, pods
# get the notice of their nodes.
SECONDS = {"aws": 120.0, "gcp": 30.0, "kubernetes": 15.0}
# Seconds that pass before the first byte is written: the agent's poll (every 5 s on AWS), Ray's
# answer, and the end of the current step.
BEFORE = 10.0


def notice_warnings(
    provider: str,
    pools: Sequence[PricedPool],
    checkpoint_seconds: float,
    grace: float | None = None,
) -> list[str]:
    """Return warnings for spot pools if a checkpoint takes longer than the notice.

    `grace` is the grace time of the pods in seconds.
    """
    notice = grace if grace is not None else SECONDS.get(provider)
    spot = [pool.name for pool in pools if pool.market == "spot"]
    if notice is None or not spot or checkpoint_seconds + BEFORE <= notice:
        return []
    return [
        (
            f"a checkpoint takes {checkpoint_seconds:g} s, but machines of {', '.join(spot)} "
            f"end {notice:g} s after the notice, and saving begins {BEFORE:g} s after it: a "
            "preemption costs the steps since the last checkpoint. Save more often "
            "(training.checkpoints.every), or use more machines"
        )
    ]
