"""`trainrig plan --layout` with fallbacks, for a run that may lose part of its last replica."""

from dataclasses import replace

import pytest

from trainrig import config, hardware
from trainrig.estimate.layout.cluster_choice import ClusterWanted, build_cluster
from trainrig.estimate.layout.layout_fallbacks import SAVING, count_unit, find_fallbacks
from trainrig.estimate.layout.layout_search import search
from trainrig.estimate.layout.layouts import Degrees
from trainrig.estimate.layout.run_subject import FixedDegrees
from trainrig.estimate.layout.step_prediction import Predictor
from trainrig.scaling.plan.layout_verb import answer, build_subject
from trainrig.train.run_file.run_files import Pretraining

RUN = """
stage = "pretrain"
tokens = "tokens"
output = "run"
workers = 8
[model]
layers = {layers}
channels = {channels}
heads = 32
kv_heads = 8
vocabulary = 32768
[batches]
sequence_length = 2048
global_batch = 64
micro_batch = 1
[training]
steps = 1000
precision.compute = "bfloat16"
"""
SMALL = {"layers": 8, "channels": 1024}
LARGE = {"layers": 32, "channels": 4096}


@pytest.fixture
def planned(tmp_path):
    """Return the function `planned(SMALL, tensor=8)`.

    It returns the plan on 16 H100s, the run file and the output.
    """

    def plan(sizes, **fixed):
        path = tmp_path / "run.toml"
        out = tmp_path / "best.toml"
        path.write_text(RUN.format(**sizes))
        found, lines = answer(
            str(path), ClusterWanted("h100", nodes=2), FixedDegrees(**fixed), None, str(out)
        )
        return found, config.load(Pretraining, str(out)), lines

    return plan


def test_a_model_with_room_on_a_device_falls_back_on_slices(planned):
    _, made, lines = planned(SMALL, tensor=8, pipeline=1, context=1)
    assert made.workers == (1, 16)
    assert [fallback.parallel.describe() for fallback in made.training.fallbacks] == ["FSDP"]
    made.training.check_workers(made.workers)
    (said,) = (line for line in lines if line.startswith("falls back to "))
    assert said.startswith("falls back to FSDP; on 1 to 7 workers; ")
    assert "s per step on 4" in said and said.endswith(" GiB per device")


@pytest.mark.slow
def test_a_large_model_is_shared_by_as_many_as_hold_it(planned):
    found, made, _ = planned(LARGE, tensor=8, pipeline=2, context=1)
    best = found.runnable.prediction.layout
    room = found.cluster.device.memory
    assert count_unit(best.degrees) == 16
    fallbacks = find_fallbacks(found.subject, found.cluster, best)
    # Two devices have too little memory for the model.
    assert [fallback.layout.degrees.devices for fallback in fallbacks] == [8, 4]
    units = [count_unit(fallback.layout.degrees) for fallback in fallbacks]
    assert made.workers == (min(units), 16)
    assert [fallback.parallel.unit for fallback in made.training.fallbacks] == units
    made.training.check_workers(made.workers)
    for fallback in fallbacks:
        layout = fallback.layout
        assert fallback.memory.fits(room)
        # With the fewest possible devices, each holds the most.
        predictor = Predictor(
            found.subject.model, found.subject.training, found.subject.batch, found.cluster
        )
        alone = predictor.predict(replace(layout, degrees=replace(layout.degrees, shard=1)))
        assert alone.memory.fits(room)
        assert layout.micro_batch * layout.degrees.expert == best.micro_batch
        assert SAVING.index(layout.recompute) >= SAVING.index(best.recompute)


def test_the_fastest_is_taken(planned):
    """The choice for four devices equals a plan for four devices, with the same micro-batch."""
    found, made, _ = planned(SMALL, tensor=8, pipeline=1, context=1)
    (fallback,) = find_fallbacks(found.subject, found.cluster, found.runnable.prediction.layout)
    four = build_cluster(ClusterWanted("h100", devices=4), hardware.load(), 4)
    subject, _ = build_subject(made, "made")
    alone = search(subject, four, FixedDegrees(), hardware.load()).runnable.prediction
    assert fallback.layout.degrees.devices == 4
    assert alone.seconds.total <= fallback.seconds.total < 1.1 * alone.seconds.total


def test_a_run_whose_replica_is_a_device_has_nothing_to_fall_back_on(planned):
    _, made, lines = planned(SMALL, tensor=1, pipeline=1, context=1)
    assert made.workers == 16 and made.training.fallbacks == ()
    assert not any(line.startswith("falls back") for line in lines)


@pytest.mark.parametrize(
    ("degrees", "unit"),
    [
        (Degrees(tensor=4, shard=2), 4),
        (Degrees(replicate=2, tensor=4, shard=2), 8),
        (Degrees(replicate=2, tensor=4), 4),  # DDP allows any number of copies
        (Degrees(replicate=2, context=2), 4),
    ],
)
def test_devices_that_come_and_go_together(degrees, unit):
    assert count_unit(degrees) == unit
