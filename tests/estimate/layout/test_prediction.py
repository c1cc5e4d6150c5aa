"""Predictions of the planner: equal to other counts, and monotone where they must be."""

from dataclasses import replace
from itertools import pairwise, product

import pytest

from trainrig import hardware
from trainrig.estimate.fitting_layouts import BatchShape
from trainrig.estimate.layout import layouts, planner_terms
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.device_compute import (
    Product,
    Timer,
    iterate_products,
)
from trainrig.estimate.layout.layout_search import search
from trainrig.estimate.layout.layouts import Degrees, DeviceLayout
from trainrig.estimate.layout.run_placement import place_run
from trainrig.estimate.layout.run_subject import FixedDegrees, Subject
from trainrig.estimate.layout.step_prediction import Predictor
from trainrig.estimate.model_parallel_memory import estimate_worker_memory
from trainrig.estimate.step_memory import estimate_step_memory
from trainrig.flops import compute_layer_keys, count_attention_flops, count_token_flops
from trainrig.parallel.layer_bytes import cut_model, cut_shapes
from trainrig.parallel.layout import FSDP
from trainrig.train.run_file.training_settings import Training

MIXTURE = {
    "feedforward": {"kind": "MixtureOfExperts", "experts": 8, "active": 2, "shared_experts": 1}
}


@pytest.mark.parametrize("training", [
    {},
    {"deterministic": False},
    {"precision": {"compute": "float32"}},
    {"optimizer": {"kind": "Muon"}},
    {"optimizer": {"kind": "Lion"}, "deterministic": False},
    {"groups": ({"match": "embedding.*", "freeze": True},)},
])  # fmt: skip
@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False}, MIXTURE])
@pytest.mark.parametrize("again", ["nothing", "selective", "full"])
def test_memory_is_that_of_check(predictor, training, changes, again):
    """This holds for one device and for slices over several, without an axis within the replica."""
    for degrees in (Degrees(), Degrees(1, 4), Degrees(2, 4), Degrees(8, 1)):
        made = predictor(degrees.devices, training, **changes)
        ways = product(("step", "layer"), ("step", "micro_batch"))
        for reshard, reduce in ways if degrees.shard > 1 else [("step", "step")]:
            layout = DeviceLayout(degrees, 2, again, reshard, reduce=reduce)
            settings = made.build_training(layout)
            expected = estimate_step_memory(made.model, settings, degrees.devices, 64, 2, 2048)
            found = made.predict(layout).memory
            for part, bytes_of in vars(expected).items():
                assert getattr(found, part) == pytest.approx(bytes_of, rel=1e-12), part


def test_a_model_that_needs_gradients_reduced_by_micro_batch_gets_the_same_answer_everywhere(model):
    """The 23B model fits 64 devices only if no whole gradient is held between micro-batches."""
    large = model(layers=48, channels=6400, heads=50, kv_heads=50, feedforward_channels=16_640)
    parallel = {"kind": "FSDP", "reshard": "layer", "reduce": "micro_batch"}
    training = Training.model_validate(
        {
            "steps": 10,
            "deterministic": False,
            "precision": {"compute": "bfloat16"},
            "parallel": parallel,
            "recompute": {"kind": "Full"},
        }
    )
    offers = hardware.load()
    room = offers.find_device("h100").memory
    batch = BatchShape(4096, 2048)
    checked = estimate_worker_memory(large, training, 64, 4096, 1, 2048)
    assert checked.fits(room)
    links = (offers.links["nvlink-4"], offers.links["efa-3200"])
    cluster = Cluster("h100", offers.find_device("h100"), 64, 8, *links, "p5.48xlarge")
    subject = Subject("run.toml", large, training, batch)
    found = search(subject, cluster, FixedDegrees(1, 1, 1, 1), offers)
    assert found.runnable is not None
    own = DeviceLayout(Degrees(1, 64), 1, "full", "layer", reduce="micro_batch")
    predicted = Predictor(large, training, batch, cluster).predict(own).memory
    assert predicted.total == pytest.approx(checked.total, rel=1e-12)
    placed = place_run(subject, cluster)
    assert placed is not None and placed.fits and placed.parallel.by_micro_batch


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
@pytest.mark.parametrize("again", ["nothing", "selective", "full"])
def test_memory_is_that_of_check_for_shared_layers_between_stages(predictor, schedule, again):
    # Embedding and head are small here, so that both cut the layers in the middle.
    made = predictor(4, {"deterministic": False}, tie_embeddings=False, vocabulary=512)
    layout = DeviceLayout(
        Degrees(tensor=2, pipeline=2), 2, again, schedule=schedule, sequence_parallel=False
    )
    axes = {"tensor": {"ranks": 2}, "pipeline": {"ranks": 2, "schedule": schedule}}
    parallel = FSDP.model_validate(axes)
    settings = made.build_training(layout).model_copy(update={"parallel": parallel})
    expected = estimate_worker_memory(made.model, settings, 4, 64, 2, 2048)
    found = made.predict(layout).memory
    for part, bytes_of in vars(expected).items():
        assert getattr(found, part) == pytest.approx(bytes_of, rel=1e-12), part


@pytest.mark.parametrize("changes", [{}, MIXTURE])
@pytest.mark.parametrize("degrees", [
    Degrees(), Degrees(tensor=4), Degrees(context=4), Degrees(tensor=2, context=2),
])  # fmt: skip
def test_operations_are_those_of_check(model, changes, degrees):
    """The products and attention of all devices of a replica add up to `count_token_flops`."""
    sizes = model(**changes)
    length = 2048
    tokens = length / degrees.context
    local = cut_model(sizes, degrees.tensor, 1)
    shapes = cut_shapes(sizes, degrees.tensor, 1)
    flops = 2.0 * tokens * local.outputs * sizes.channels
    for number, layer in enumerate(shapes.layers):
        flops += sum(p.flops for p in iterate_products(layer, tokens, degrees.tensor))
        keys = compute_layer_keys(sizes, number, length)
        flops += count_attention_flops(sizes, keys, local.shape.heads) * tokens
    assert flops * degrees.replica_devices == pytest.approx(
        count_token_flops(sizes, length).forward * length
    )


def test_experts_that_are_apart_have_as_much_to_do(model):
    sizes = model(**MIXTURE)
    by_expert = [
        sum(p.flops for layer in cut_shapes(sizes, 1, expert).layers
            for p in iterate_products(layer, 2048.0, 1))
        for expert in (1, 2, 8)
    ]  # fmt: skip
    assert by_expert[0] == by_expert[1] == by_expert[2]


@pytest.mark.parametrize("axis", ["shard", "tensor", "context", "expert"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_memory_falls_with_every_cut(predictor, axis, deterministic):
    changes = MIXTURE if axis == "expert" else {}
    found = []
    for size in (1, 2, 4, 8):
        degrees = Degrees(**{axis: size})
        made = predictor(size, {"deterministic": deterministic, "virtual_workers": 8}, **changes)
        found.append(made.predict(DeviceLayout(degrees, 1)).memory)
    states = [memory.weights + memory.optimizer for memory in found]
    assert all(b < a for a, b in pairwise(states))
    totals = [memory.total for memory in found]
    assert all(b <= a for a, b in pairwise(totals))


def test_a_pipeline_cuts_weights_but_keeps_more_micro_batches(predictor):
    """1F1B keeps the activations of one device without a pipeline; GPipe keeps all."""
    found = {}
    for size in (1, 2, 4):
        made = predictor(size, {"deterministic": False}, tie_embeddings=False)
        for schedule in ("GPipe", "1F1B") if size > 1 else (None,):
            layout = DeviceLayout(Degrees(pipeline=size), 1, schedule=schedule)
            found[size, schedule] = made.predict(layout).memory
    weights = [found[key].weights for key in ((1, None), (2, "1F1B"), (4, "1F1B"))]
    assert all(b < 0.7 * a for a, b in pairwise(weights))
    assert found[4, "1F1B"].activations < 1.5 * found[1, None].activations
    assert found[4, "GPipe"].activations > 10 * found[4, "1F1B"].activations


@pytest.mark.slow
def test_more_bandwidth_never_makes_a_step_slower(predictor):
    slow = predictor(16, **MIXTURE)
    for links in ({"inside": 2.0}, {"across": 2.0}, {"inside": 4.0, "across": 4.0}):
        fast = predictor(16, links=links, **MIXTURE)
        faster = 0
        for layout in list(layouts.iterate_legal_layouts(slow.model, slow.batch, 16))[::29]:
            before = slow.predict(layout).seconds.total
            after = fast.predict(layout).seconds.total
            assert after <= before
            faster += after < before
        assert faster


def test_sent_bytes_equal_a_count_by_hand(predictor):
    """The Llama-like layers have 1,024 channels in bfloat16; bytes are of one device and step."""
    batch = BatchShape(2, 2048)
    stream = 2 * 2048 * 1024  # bytes of one sequence

    def sent(degrees: Degrees, **more: object):
        return predictor(degrees.devices, {"deterministic": False}, batch=batch, **MIXTURE).predict(
            DeviceLayout(degrees, 1, schedule="1F1B" if degrees.pipeline > 1 else None)
        ).traffic  # fmt: skip

    # Two parts of 8 layers: three gathers and two scatters of half the stream each, and the ends.
    tensor = sent(Degrees(tensor=2)).tensor
    assert tensor.inside == 2 * (8 * 9 + 4) * stream / 2
    # Keys and values of 8 heads of 64 channels, of the whole sequence, and their gradients.
    assert sent(Degrees(context=2)).context.inside == 2 * 8 * 2 * (2 * 2 * 2048 * 512) / 2
    # Two experts a token: dispatch and combine, forward and backward, half of it to the other rank.
    # Each forward pass also sends the token counts of 8 experts, 8 bytes each.
    assert sent(Degrees(expert=2)).expert.inside == 8 * (4 * 2 * stream / 2 + 8 * 8)
    # One device sends hidden states, the other gradients.
    assert sent(Degrees(pipeline=2)).pipeline.inside == 2 * stream
    far = sent(Degrees(shard=2, replicate=1)).reduced
    assert far.across == 0


def test_parameters_and_gradients_are_copied_between_buffers(predictor):
    """A gather reads and writes bfloat16 once, a step reads and writes float32 once.

    On a single device, weights are cast, and gradients are cast back.
    """
    batch = BatchShape(8, 2048)
    by_layer = DeviceLayout(Degrees(shard=2), 1, reshard="layer")  # four micro-batches
    found = []
    for layout in (DeviceLayout(Degrees(), 1), DeviceLayout(Degrees(shard=2), 1), by_layer):
        made = predictor(layout.degrees.devices, batch=batch)
        (device,) = made._pipeline(Degrees(), 1, "nothing", 1, True)
        held = device.held.total
        root = sum(end.total for end in device._beside)
        found.append(device.estimate_data_traffic(layout, layout.count_micro_batches(8)).copied)
    assert found[0] == 2 * (4 + 2) * held
    assert found[1] == 2 * (2 + 4) * held
    assert found[2] == 2 * (2 * (4 * root + 2 * 4 * (held - root)) + 4 * held)


def test_measured_rates_of_links_and_devices_are_used_unchanged(predictor):
    """Measured values replace the assumed bandwidth share, overlap and GPU tile efficiency."""
    usual = predictor(2, batch=BatchShape(2, 2048))
    device = usual.cluster.device
    link = usual.cluster.inside
    fsdp = DeviceLayout(Degrees(shard=2), 1)
    tensor = DeviceLayout(Degrees(tensor=2), 1)

    def seconds(layout, device=device, **measured):
        cluster = replace(usual.cluster, device=device, inside=link.model_copy(update=measured))
        made = Predictor(usual.model, usual.training, usual.batch, cluster)
        return made.predict(layout).seconds

    of_gather = seconds(tensor, reached={"all-gather": link.bandwidth * planner_terms.INSIDE.value})
    assert of_gather == seconds(tensor)
    assert seconds(tensor, reached={"reduce-scatter": 1e9}).tensor > of_gather.tensor
    assert seconds(fsdp, takes=0.5).data > seconds(fsdp).data
    assert seconds(tensor, takes=0.5) == seconds(tensor)  # no overlap
    small = device.model_copy(update={"tile": (16, 16), "processors": 1})
    large = device.model_copy(update={"tile": None, "processors": 1})
    narrow = Product(16, 16, 65_536)
    of_small, of_large = (
        Timer("", found_device, usual.training).time_product(narrow)
        for found_device in (small, large)
    )
    assert of_small < of_large
