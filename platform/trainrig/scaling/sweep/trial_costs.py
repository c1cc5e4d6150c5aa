"""Speed and price of a sweep's trials, from the table of hardware."""

import math

from trainrig import hardware
from trainrig.errors import ConfigError
from trainrig.estimate.cost_estimate import USUAL_SHARE
from trainrig.scaling.laws.law_formats import format_usd
from trainrig.scaling.sweep.budget_units import SweepBudget
from trainrig.scaling.sweep.sweep_run_file import Sweep


def compute_usd_an_hour(sweep: Sweep) -> float:
    """Return the price of one trial in USD per hour, or NaN if no instance is named.

    Raises ConfigError if there is no such instance.
    """
    wanted = sweep.trials
    if wanted.instance is None:
        return math.nan
    machine = hardware.load().find_instance(wanted.instance)
    share = wanted.gpus / machine.devices if wanted.gpus else wanted.cpus / machine.vcpus
    return share * machine.usd


def convert_to_flops(sweep: Sweep, budget: SweepBudget, speed: float | None) -> float:
    """Convert a budget to FLOPs.

    `speed` is the FLOP/s that one trial reaches; None: the usual share of the peak of
    `trials.instance`. Raises ConfigError if the speed or the price is unknown.
    """
    if budget.unit == "FLOPs":
        return budget.amount
    hours = budget.amount
    if budget.unit == "USD":
        price = compute_usd_an_hour(sweep)
        if not price > 0:
            raise ConfigError(
                f"design.budgets: {budget.amount:g}USD needs the price of a trial; set "
                "trials.instance to an instance of the table of hardware, or give FLOPs or h"
            )
        hours = budget.amount / price
    speed = speed or _estimate_speed(sweep)
    if speed is None:
        raise ConfigError(
            f"design.budgets: {budget.amount:g}{budget.unit} needs the speed of a trial; set "
            "design.flops_per_second as measured, or trials.instance (and trials.gpus, if it has "
            "GPUs), or give FLOPs"
        )
    return hours * 3600 * speed


def describe_cost(sweep: Sweep, flops: float, speed: float | None) -> str:
    """Describe the hours of one trial and the dollars that `flops` take, as far as known.

    `speed` is as for `convert_to_flops`.
    """
    speed = speed or _estimate_speed(sweep)
    if speed is None:
        return ""
    hours = flops / speed / 3600
    price = compute_usd_an_hour(sweep)
    dollars = "" if math.isnan(price) else f", {format_usd(hours * price)} USD"
    return f", {hours:,.3g} h of one trial{dollars}"


def _estimate_speed(sweep: Sweep) -> float | None:
    """Return the FLOP/s of one trial at the usual share of its devices' peak.

    Returns None if `trials.instance` is not set, or if trials use none of the instance's GPUs: the
    table of hardware does not have the speed of a GPU instance's CPUs.
    """
    wanted = sweep.trials
    if wanted.instance is None:
        return None
    table = hardware.load()
    device = table.find_device(table.find_instance(wanted.instance).device)
    devices = wanted.gpus if device.accelerator else wanted.cpus
    if not devices:
        return None
    precision = sweep.training.precision.resolve(device.computes_narrow)
    return devices * device.find_peak(precision.peak) * USUAL_SHARE
