"""Enumeration of layouts: every legal one, and no other."""

import pytest

from trainrig.estimate.fitting_layouts import BatchShape
from trainrig.estimate.layout import layouts
from trainrig.estimate.layout.layouts import Degrees, DeviceLayout
from trainrig.estimate.layout.pipeline_device import count_held, count_waiting
from trainrig.parallel.activation_budget import count_held_at_once
from trainrig.parallel.axes.pipeline_schedule import Pipeline, cut_evenly
from trainrig.parallel.layout import FSDP

BATCH = BatchShape(64, 2048)


@pytest.mark.parametrize("devices", [1, 2, 6, 8, 12, 64])
def test_legal_layouts_multiply_to_the_devices(model, devices):
    sizes = model(feedforward={"kind": "MixtureOfExperts", "experts": 12, "active": 2})
    found = list(layouts.iterate_legal_layouts(sizes, BATCH, devices))
    assert found and len(set(found)) == len(found)
    for layout in found:
        degrees = layout.degrees
        assert degrees.devices == devices
        assert layouts.explain_refusal(sizes, BATCH, degrees) is None
        assert (
            layout.count_micro_batches(64) * layout.micro_batch * degrees.expert * degrees.data
            >= 64
        )
        assert (layout.schedule is None) == (degrees.pipeline == 1)
        assert layout.chunks == 1 or layout.count_micro_batches(64) % degrees.pipeline == 0


def test_every_choice_of_degrees_of_eight_devices_is_there(model):
    """All ordered factorisations are legal with 8 layers, 8 key heads and a batch of 64."""
    found = {layout.degrees for layout in layouts.iterate_legal_layouts(model(), BATCH, 8)}
    assert len(found) == 35  # 2^3 over five axes: (3 + 4 over 4)


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        ({"tensor": 3}, "tensor = 3 does not divide model.feedforward_channels (4096)"),
        (
            {"tensor": 16},
            "tensor = 16 does not divide model.kv_heads (8); choose one of 1, 2, 4, 8",
        ),
        ({"pipeline": 9}, "pipeline = 9 exceeds the number of layers; choose 8"),
        ({"context": 3}, "choose a context that divides 1024"),
        ({"expert": 2}, "expert = 2 does not divide 1 experts; choose one of 1"),
        ({"shard": 65}, "65 devices cannot share a global batch of 64 sequences"),
    ],
)
def test_degrees_that_cannot_be_say_which_can(model, degrees, said):
    assert said in (layouts.explain_refusal(model(), BATCH, Degrees(**degrees)) or "")


def test_stages_are_cut_by_cost():
    assert cut_evenly((1.0,) * 8, 0.0, 4) == tuple(range(n, n + 2) for n in (0, 2, 4, 6))
    # 5 layers, and 3 with the head.
    assert cut_evenly((1.0,) * 8, 2.0, 2) == (range(0, 5), range(5, 8))
    assert cut_evenly((5.0, 1.0, 1.0, 1.0), 0.0, 2) == (range(0, 1), range(1, 4))
    assert cut_evenly((0.1,) * 7, 0.0, 1) == (range(0, 7),)


def test_schedules_keep_and_wait_as_published():
    """Narayanan et al. 2021, section 2.2: the bubble is (p - 1) / m.

    With v stages a device, it is 1/v of that. GPipe keeps all m micro-batches, 1F1B at most p.
    """
    degrees = Degrees(pipeline=4)
    gpipe, plain = (DeviceLayout(degrees, 1, schedule=schedule) for schedule in ("GPipe", "1F1B"))
    interleaved = DeviceLayout(degrees, 1, schedule="interleaved", chunks=2)
    assert [count_waiting(layout) / 8 for layout in (gpipe, plain, interleaved)] == [
        3 / 8,
        3 / 8,
        3 / 16,
    ]
    assert [count_held("GPipe", 1, 4, n, 8) for n in range(4)] == [(8,)] * 4
    assert [count_held("1F1B", 1, 4, n, 8) for n in range(4)] == [(4,), (3,), (2,), (1,)]
    assert sum(count_held("interleaved", 2, 4, 0, 8)) == 2 * 3 + 4 + 1


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_more_micro_batches_than_a_pipeline_holds_change_nothing(chunks):
    schedule = "1F1B" if chunks == 1 else "interleaved"
    parallel = FSDP(pipeline=Pipeline(ranks=4, schedule=schedule, chunks=chunks))
    for device in range(4):
        expected = tuple(count_held_at_once(parallel, device, 64))
        assert count_held(schedule, chunks, 4, device, 64) == expected
