"""Costs of a cluster by the hour, and the quotas that it needs."""

import pytest

from trainrig import hardware
from trainrig_contrib.cluster_check.machine_pools import (
    PricedPool,
    compute_quotas,
    estimate,
    notice_warnings,
)

TABLE = hardware.load()
HEAD = PricedPool("head", "m7i.2xlarge", "on-demand", 1, 1, 0, 0)
CPU = PricedPool("cpu", "m7i.8xlarge", "spot", 0, 16, 32, 0)
GPU = PricedPool("gpu", "p5.48xlarge", "spot", 0, 4, 192, 8)


def usd(name: str) -> float:
    return TABLE.find_instance(name).usd


def test_at_rest_only_the_head_costs() -> None:
    assert estimate([HEAD, CPU, GPU], 20, TABLE).usd_idle == usd("m7i.2xlarge")


def test_at_most_every_pool_is_full() -> None:
    found = estimate([HEAD, CPU, GPU], 20, TABLE).usd_most
    full = usd("m7i.2xlarge") + 16 * usd("m7i.8xlarge") + 4 * usd("p5.48xlarge")
    assert found == pytest.approx(full)


def test_fewer_nodes_than_the_pools_may_have_are_the_dearest() -> None:
    found = estimate([HEAD, CPU, GPU], 5, TABLE).usd_most
    assert found == pytest.approx(usd("m7i.2xlarge") + 4 * usd("p5.48xlarge") + usd("m7i.8xlarge"))


def test_spot_is_estimated_at_the_list_price_if_its_own_is_unknown() -> None:
    prices = {price.pool.name: price for price in estimate([HEAD, GPU], None, TABLE).prices}
    assert prices["gpu"].listed
    assert not prices["head"].listed
    paid = TABLE.find_instance("p5.48xlarge").model_copy(update={"spot_usd": 20.0})
    own = TABLE.model_copy(update={"instances": {**TABLE.instances, "p5.48xlarge": paid}})
    assert estimate([GPU], None, own).usd_most == 80.0


def test_an_unknown_price_gives_no_sum() -> None:
    unknown = PricedPool("odd", "x9.huge", "spot", 0, 1, 1, 0)
    found = estimate([HEAD, unknown], None, TABLE)
    assert found.usd_most is None
    assert found.usd_idle == usd("m7i.2xlarge")
    assert found.to_json()["pools"]["odd"]["usd"] is None


def test_a_machine_that_is_not_rented_costs_nothing() -> None:
    assert estimate([HEAD, CPU], None, TABLE, free=True).usd_most == 0.0


def test_quotas_of_aws_are_virtual_cpus_by_family_and_market() -> None:
    more = PricedPool("l4", "g6.xlarge", "spot", 0, 10, 4, 1)
    old = PricedPool("a100", "p4d.24xlarge", "spot", 0, 2, 96, 8)
    found = {
        quota.name: quota.needed
        for quota in compute_quotas("aws", [HEAD, CPU, GPU, more, old], TABLE)
    }
    assert found == {
        "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances": 8,
        "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests": 16 * 32,
        "All P5 Spot Instance Requests": 4 * 192,
        "All G and VT Spot Instance Requests": 10 * 4,
        "All P4, P3 and P2 Spot Instance Requests": 2 * 96,
    }


def test_quotas_of_google_are_processors_and_accelerators() -> None:
    pools = [
        PricedPool("head", "n2-standard-8", "on-demand", 1, 1, 0, 0),
        PricedPool("cpu", "n2-standard-32", "spot", 0, 2, 32, 0),
        PricedPool("gpu", "a3-highgpu-8g", "spot", 0, 4, 208, 8),
        PricedPool("own", "a2-ultragpu-1g", "on-demand", 0, 3, 12, 1),
    ]
    found = {quota.name: quota.needed for quota in compute_quotas("gcp", pools, TABLE)}
    assert found == {
        "N2_CPUS": 8,
        "PREEMPTIBLE_CPUS": 64,
        "PREEMPTIBLE_NVIDIA_H100_GPUS": 32,
        "NVIDIA_A100_GPUS": 3,
    }


@pytest.mark.parametrize(
    ("provider", "seconds", "grace", "warned"),
    [
        ("aws", 100, None, False),
        ("aws", 115, None, True),
        ("gcp", 15, None, False),
        ("gcp", 25, None, True),
        ("kubernetes", 4, None, False),
        ("kubernetes", 10, None, True),
        ("kubernetes", 90, 110, False),
    ],
)
def test_a_checkpoint_that_does_not_fit_the_notice_is_warned_of(
    provider: str, seconds: float, grace: float | None, warned: bool
) -> None:
    found = notice_warnings(provider, [HEAD, GPU], seconds, grace)
    assert bool(found) == warned
    # That instance is not preemptible.
    assert notice_warnings(provider, [HEAD], seconds, grace) == []
