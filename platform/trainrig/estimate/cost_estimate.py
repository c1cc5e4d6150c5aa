"""Hours, money and energy of a run, the device to estimate them for, and the busy share of workers.

Each is a product of known values (operations, peak, price, watts) and of assumptions, which are
settings and are saved with the plan. A step takes as many rounds as the worker with the most
micro-batches has; workers with fewer wait.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainrig import hardware
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError
from trainrig.hardware import Compute, Hardware

SECONDS_OF_DAY = 86_400.0


class Assumptions(Settings):
    """Assumptions for hours, money and energy that are not in the hardware table."""

    # Model FLOPs utilisation (MFU): share of the peak of dense products that training reaches
    # (arXiv:2204.02311, appendix B). None: as predicted for the layout, or USUAL_SHARE where the
    # table of hardware or the model does not allow a prediction.
    utilisation: float | None = Field(default=None, gt=0, le=1)
    # Watts of the whole machine for each watt of its devices (a DGX H100 may draw 1.8).
    machine: float = Field(default=1.5, ge=1)
    # Watts of the building for each watt of its machines (PUE; large clouds say 1.1 to 1.2).
    building: float = Field(default=1.2, ge=1)
    # Device hours between two faults: 1.8 h at 16,384 devices (secondary source: arXiv:2410.21680).
    device_hours_between_faults: float = Field(default=29_500.0, gt=0)
    # Bytes per second at which a device's share of a checkpoint is copied while steps wait
    # (docs/performance.md: 141 ms for 1.2 GB).
    copied_per_second: float = Field(default=8.5e9, gt=0)


# Single nodes reach 0.35 to 0.55 of the peak, Llama 3 405B 0.38 to 0.43 (arXiv:2407.21783, table
# 4).
USUAL_SHARE = 0.4
# Time that published runs took, as shares of the predicted time: the middle 80% of them, where each
# source has the same weight (tests/estimate/layout/test_published.py computes them).
PREDICTED_BAND = (0.86, 1.23)
# Least and greatest time, as shares of the time at USUAL_SHARE.
USUAL_BAND = (USUAL_SHARE / 0.55, USUAL_SHARE / 0.35)


class Cost(Settings):
    """Time, machines, money and energy of a run."""

    device: str
    devices: int = Field(ge=1)
    instance: str | None  # None: no instance in the table has such a device
    machines: int | None  # number of rented instances
    as_of: str | None  # date of the prices
    hours: float
    predicted: bool = False  # true if the hours are predicted for a layout, false if assumed
    # Hours between which published runs of such a prediction ended; None: the share of the peak is
    # given, or the device is no accelerator.
    hours_between: tuple[float, float] | None = None
    device_days: float
    usd: float | None  # on-demand price in US dollars
    usd_spot: float | None  # spot price in US dollars; None: not in the table
    kwh: float


def estimate_cost(
    flops: float,
    hardware: Hardware,
    device: str,
    devices: int,
    compute: Compute,
    assumed: Assumptions,
    instance: str | None = None,
    seconds: float | None = None,
) -> Cost:
    """Return the cost of `flops` operations on a number of `devices` of a kind.

    `seconds` are the predicted ones of the whole run; a share of the peak that `assumed` gives
    counts instead. `instance` is the instance to rent, by default the cheapest one with such
    devices. Whole instances are paid for. Raises ConfigError for unknown names.
    """
    kind = hardware.find_device(device)
    predicted = seconds is not None and assumed.utilisation is None
    band: tuple[float, float] | None = PREDICTED_BAND
    if seconds is None or assumed.utilisation is not None:
        share = assumed.utilisation or USUAL_SHARE
        seconds = flops / (devices * kind.find_peak(compute) * share)
        band = USUAL_BAND if kind.accelerator and assumed.utilisation is None else None
    hours = seconds / 3600
    instance = instance or hardware.find_cheapest(device)
    offer = hardware.find_instance(instance) if instance else None
    machines = math.ceil(devices / offer.devices) if offer else None
    watts = kind.watts * devices * assumed.machine * assumed.building
    paid = hours * (machines or 0)
    return Cost(
        device=device,
        devices=devices,
        instance=instance,
        machines=machines,
        as_of=offer.as_of if offer else None,
        hours=hours,
        predicted=predicted,
        hours_between=band and (hours * band[0], hours * band[1]),
        device_days=hours * devices / 24,
        usd=paid * offer.usd if offer else None,
        usd_spot=paid * offer.spot_usd if offer and offer.spot_usd else None,
        kwh=watts * hours / 1000,
    )


def format_hours(cost: Cost) -> str:
    """Format the hours of `cost` with their band, as `181.7 h (165 to 230)`."""
    hours = f"{cost.hours:,.4g} h"
    if cost.hours_between is None:
        return hours
    low, high = cost.hours_between
    return f"{hours} ({low:,.3g} to {high:,.3g})"


def compute_affordable_flops(
    days: float, hardware: Hardware, device: str, compute: Compute, share: float
) -> float:
    """Return the operations that one device does in `days` at the given share of its peak."""
    return days * SECONDS_OF_DAY * hardware.find_device(device).find_peak(compute) * share


def compute_device_days(
    usd: float, hardware: Hardware, device: str, instance: str | None, devices: int | None = None
) -> float:
    """Return the device days that `usd` buys on demand.

    Whole instances are paid for, of which `devices` are used (by default all). Raises ConfigError
    if no instance has the device.
    """
    instance = instance or hardware.find_cheapest(device)
    if instance is None:
        raise ConfigError(
            f"no instance in the hardware table has a '{device}', so its price is unknown; add "
            "an instance, or plan with --gpu-days"
        )
    offer = hardware.find_instance(instance)
    devices = devices or offer.devices
    return usd / offer.usd / math.ceil(devices / offer.devices) * devices / 24


class Saving(Settings):
    """Interval and cost of a run's checkpoints."""

    every: int = Field(ge=1)  # number of steps between two checkpoints
    seconds: float  # seconds between two checkpoints
    stalled: float  # seconds that training waits for a checkpoint
    hours_between_faults: float  # hours between two faults on all devices of the run


LEAST_BETWEEN_SAVES = 600.0  # seconds; restarting a job takes minutes anyway
MOST_SAVES = 1_000  # checkpoints of a run, where faults are rare enough
MOST_APART = 0.1  # longest interval for fewer saves, as a share of the time between two faults


def choose_save_interval(
    state: float, devices: int, step_seconds: float, steps: int, assumed: Assumptions
) -> Saving:
    """Return the checkpoint interval that loses the least: sqrt(2 x stall x time between faults).

    Young 1974, Daly 2006. `state` is the bytes of one device's share of weights and optimizer
    state. The interval is never longer than the run. It is at least LEAST_BETWEEN_SAVES seconds,
    and the run saves at most MOST_SAVES times: the formula counts only the stall of a save, and
    neither the load on the storage nor the minutes that a restart takes. A run that expects a fault
    more often saves more often, as MOST_APART says.
    """
    stalled = state / assumed.copied_per_second
    between = assumed.device_hours_between_faults / devices
    best = math.sqrt(2 * stalled * between * 3600)
    rarest = MOST_APART * between * 3600 / step_seconds
    fewest = max(LEAST_BETWEEN_SAVES / step_seconds, min(steps / MOST_SAVES, rarest))
    every = min(steps, max(1, round(best / step_seconds), math.ceil(fewest)))
    return Saving(
        every=every, seconds=every * step_seconds, stalled=stalled, hours_between_faults=between
    )


@dataclass(frozen=True)
class DeviceChoice:
    """The device for which time and cost are estimated, as the command line gives it."""

    # Name in the hardware table; None: this machine's GPU, or a CPU core without one.
    device: str | None = None
    table: str | None = None  # path of a file like hardware.toml; None: hardware.toml
    # Share of the peak that training reaches; None: the default assumption.
    utilisation: float | None = None

    def resolve_name(self, offers: hardware.Hardware) -> str:
        """Return the name of the device. Raises ConfigError if the table does not have it."""
        if self.device is not None:
            offers.find_device(self.device)
            return self.device
        return hardware.identify_local_device(offers)

    def is_emulated(self, device: str, compute: str) -> bool:
        """Return whether this machine's CPU would have to emulate the dtype `compute`."""
        here = self.device is None and device in hardware.CPUS
        return here and compute == "bfloat16" and not hardware.cpu_has_bfloat16()

    def check(self) -> None:
        """Raise ConfigError for an unknown device or an invalid share of the peak."""
        self.resolve_name(hardware.load(self.table))
        _ = self.assumed

    @property
    def assumed(self) -> Assumptions:
        """The assumptions, with `utilisation` if set. Raises ConfigError for an invalid share."""
        if self.utilisation is None:
            return Assumptions()
        if not 0 < self.utilisation <= 1:
            raise ConfigError(f"--mfu ({self.utilisation:g}) must be above 0 and at most 1")
        return Assumptions(utilisation=self.utilisation)


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
    global_batch: int, micro_batch: int, sizes: Iterable[int], unit: str = "workers"
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
