import math

import pytest

from trainrig import config, hardware
from trainrig.errors import ConfigError
from trainrig.estimate.cost_estimate import USUAL_SHARE
from trainrig.scaling.sweep.budget_units import parse_budget
from trainrig.scaling.sweep.design_points import (
    compute_usd_an_hour,
    convert_to_flops,
    describe_cost,
)
from trainrig.scaling.sweep.sweep_run_file import Sweep


def build(**trials: object) -> Sweep:
    design = {"kind": "Grid", "parameters": [1e5, 2e5], "tokens": [1e6]}
    given = {"stage": "sweep", "tokens": "t", "output": "o", "design": design, "trials": trials}
    return config.build(Sweep, given, "s")


def test_hours_and_dollars_are_converted_by_the_speed_and_price_of_a_trial():
    sweep = build(instance="p5.48xlarge", gpus=2)
    machine = hardware.load().find_instance("p5.48xlarge")
    price = machine.usd * 2 / machine.devices
    assert compute_usd_an_hour(sweep) == pytest.approx(price)
    assert convert_to_flops(sweep, parse_budget("3e15FLOPs"), None) == 3e15
    assert convert_to_flops(sweep, parse_budget("2h"), 1e12) == pytest.approx(7_200e12)
    dollars = convert_to_flops(sweep, parse_budget("50USD"), 1e12)
    assert dollars == pytest.approx(50 / price * 3_600e12)
    peak = hardware.load().find_device(machine.device).find_peak("bfloat16")
    hours = convert_to_flops(sweep, parse_budget("2h"), None)
    assert hours == pytest.approx(7_200 * 2 * peak * USUAL_SHARE)


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        ("50USD", "50USD needs the price of a trial; set trials.instance"),
        ("20h", "20h needs the speed of a trial; set design.flops_per_second"),
    ],
)
def test_a_budget_without_a_price_or_a_speed_is_refused(budget, problem):
    sweep = build()
    assert math.isnan(compute_usd_an_hour(sweep))
    with pytest.raises(ConfigError, match=problem):
        convert_to_flops(sweep, parse_budget(budget), None)


def test_a_cost_is_described_as_far_as_speed_and_price_are_known():
    assert describe_cost(build(), 3.6e15, None) == ""
    assert describe_cost(build(), 3.6e15, 1e12) == ", 1 h of one trial"
    sweep = build(instance="p5.48xlarge", gpus=2)
    price = compute_usd_an_hour(sweep)
    assert describe_cost(sweep, 7.2e15, 1e12) == f", 2 h of one trial, {2 * price:.2f} USD"
    hours = convert_to_flops(sweep, parse_budget("3h"), None)
    assert describe_cost(sweep, hours, None).startswith(", 3 h of one trial, ")


def test_trials_that_use_no_gpu_of_their_instance_have_a_price_and_no_known_speed():
    sweep = build(instance="p5.48xlarge")
    assert compute_usd_an_hour(sweep) > 0
    assert describe_cost(sweep, 3.6e15, None) == ""
    with pytest.raises(ConfigError, match=r"needs the speed of a trial; set .* trials\.gpus"):
        convert_to_flops(sweep, parse_budget("2h"), None)
