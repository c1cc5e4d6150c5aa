"""Hours, money and energy of a run, from its operations and the hardware table.

Each is a product of known values (operations, peak, price, watts) and of assumptions, which are
settings and are saved with the plan.
"""

import math

from trainrig.config import Field, Settings
from trainrig.errors import ConfigError
from trainrig.hardware import Compute, Hardware

SECONDS_OF_DAY = 86_400.0


class Assumptions(Settings):
    """Assumptions for hours, money and energy that are not in the hardware table."""

    # Model FLOPs utilisation (MFU): share of the peak of dense products that training reaches
    # (arXiv:2204.02311, appendix B). Single nodes reach 0.35 to 0.55, Llama 3 405B 0.38 to 0.43
    # (arXiv:2407.21783, table 4).
    utilisation: float = Field(default=0.4, gt=0, le=1)
    # Watts of the whole machine for each watt of its devices (a DGX H100 may draw 1.8).
    machine: float = Field(default=1.5, ge=1)
    # Watts of the building for each watt of its machines (PUE; large clouds say 1.1 to 1.2).
    building: float = Field(default=1.2, ge=1)
    # Device hours between two faults: 1.8 h at 16,384 devices (secondary source: arXiv:2410.21680).
    device_hours_between_faults: float = Field(default=29_500.0, gt=0)
    # Bytes per second at which a device's share of a checkpoint is copied while steps wait
    # (docs/performance.md: 141 ms for 1.2 GB).
    copied_per_second: float = Field(default=8.5e9, gt=0)


class Cost(Settings):
    """Time, machines, money and energy of a run."""

    device: str
    devices: int = Field(ge=1)
    instance: str | None  # None: no instance in the table has such a device
    machines: int | None  # number of rented instances
    as_of: str | None  # date of the prices
    hours: float
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
) -> Cost:
    """Return the cost of `flops` operations on a number of `devices` of a kind.

    `instance` is the instance to rent, by default the cheapest one with such devices. Whole
    instances are paid for. Raises ConfigError for unknown names.
    """
    kind = hardware.find_device(device)
    hours = flops / (devices * kind.find_peak(compute) * assumed.utilisation) / 3600
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
        device_days=hours * devices / 24,
        usd=paid * offer.usd if offer else None,
        usd_spot=paid * offer.spot_usd if offer and offer.spot_usd else None,
        kwh=watts * hours / 1000,
    )


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


def choose_save_interval(
    state: float, devices: int, step_seconds: float, steps: int, assumed: Assumptions
) -> Saving:
    """Return the checkpoint interval that loses the least: sqrt(2 x stall x time between faults).

    Young 1974, Daly 2006. `state` is the bytes of one device's share of weights and optimizer
    state. The interval is never longer than the run.
    """
    stalled = state / assumed.copied_per_second
    between = assumed.device_hours_between_faults / devices
    best = math.sqrt(2 * stalled * between * 3600)
    every = min(steps, max(1, round(best / step_seconds)))
    return Saving(
        every=every,
        seconds=every * step_seconds,
        stalled=stalled,
        hours_between_faults=between,
    )
