"""Bytes that ranks send in a real step, against the planner's prediction."""

import pytest

from trainrig import hardware
from trainrig.estimate.fitting_layouts import BatchShape
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.layouts import Degrees, DeviceLayout
from trainrig.estimate.layout.pipeline_device import count_held
from trainrig.estimate.layout.step_prediction import Predictor


def make_prediction(job, layout, batch=None):
    """Return the planner's prediction of the bytes that one device sends in a step."""
    table = hardware.load()
    device = table.find_device("h100")
    devices = layout.degrees.devices
    cluster = Cluster("h100", device, devices, devices, table.links["nvlink-4"], None)
    batch = batch or BatchShape(8, 16)
    return Predictor(job.model, job.training, batch, cluster).predict(layout).traffic


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "deterministic", "reshard", "reduce", "micro_batch", "tied"),
    [
        (2, False, "step", "step", 1, True),
        (4, False, "step", "step", 1, True),
        (4, False, "layer", "micro_batch", 1, True),
        (2, True, "step", "step", 2, True),
        (2, True, "layer", "step", 1, False),
    ],
)
def test_bytes_of_fsdp(
    ranks, make_job, tmp_path, world, deterministic, reshard, reduce, micro_batch, tied
):
    job = make_job(
        tmp_path,
        model={"tie_embeddings": tied},
        training={
            "steps": 10,
            "deterministic": deterministic,
            "virtual_workers": world,
            "parallel": {"kind": "FSDP", "reshard": reshard, "reduce": reduce},
        },
        batches={"global_batch": 8, "micro_batch": micro_batch},
    )
    counted = ranks(world, "sent_bytes", job=job)[0]
    gathered = sum(n for name, n in counted.items() if "gather" in name)
    reduced = sum(n for name, n in counted.items() if "gather" not in name)
    layout = DeviceLayout(Degrees(1, world), micro_batch, reshard=reshard, reduce=reduce)
    sent = make_prediction(job, layout)
    assert (gathered, reduced) == (sent.gathered.inside, sent.reduced.inside)


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("parallel", "degrees"),
    [
        ({"kind": "HSDP", "replicas": 2}, Degrees(2, 2)),
        ({"kind": "DDP"}, Degrees(2)),
        ({"kind": "DDP"}, Degrees(4)),
    ],
)
def test_bytes_between_copies(ranks, make_job, tmp_path, parallel, degrees, deterministic):
    world = degrees.devices
    job = make_job(
        tmp_path,
        world,
        training={
            "steps": 10,
            "deterministic": deterministic,
            "virtual_workers": world,
            "parallel": parallel,
        },
        batches={"global_batch": 8, "micro_batch": 1},
    )
    counted = ranks(world, "sent_bytes", job=job, flat=True)[0]
    sent = make_prediction(job, DeviceLayout(degrees, 1))
    assert sum(counted.values()) == sent.total.inside


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "expert", "recompute"), [(2, 2, "nothing"), (4, 2, "nothing"), (2, 2, "full")]
)
def test_bytes_of_divided_experts(ranks, make_job, tmp_path, world, expert, recompute):
    """Every token goes to all experts, so that each rank gets an equal share, as planned."""
    job = make_job(
        tmp_path,
        world,
        model={"feedforward": {"kind": "MixtureOfExperts", "experts": 4, "active": 4}},
        training={
            "steps": 10,
            "deterministic": False,
            "virtual_workers": world,
            "parallel": {"kind": "FSDP", "expert": {"ranks": expert}},
            "recompute": {"nothing": None, "full": {"kind": "Full"}}[recompute],
        },
        batches={"global_batch": 8, "micro_batch": 4, "sequence_length": 16},
    )
    counted = ranks(world, "sent_bytes", job=job)[0]
    layout = DeviceLayout(
        Degrees(1, world // expert, expert=expert), 4 // expert, recompute=recompute
    )
    sent = make_prediction(job, layout)
    # The run also sends values for its log, 8 bytes each: of 2 micro-batches a loss, overall and by
    # 2 sources and counts, and 2 terms of the router.
    logged = 2 * (1 + 2 * 2 + 2) * 8 * (expert - 1)
    assert counted["alltoall_base_"] + logged < sum(counted.values())
    assert sum(counted.values()) - logged == (
        sent.gathered.inside + sent.reduced.inside + sent.expert.inside
    )


AGAIN = {"nothing": None, "full": {"kind": "Full"}, "selective": {"kind": "Selective"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "recompute", "sequence_parallel", "block"),
    [
        (2, "nothing", True, "PreNorm"),
        (2, "nothing", False, "PreNorm"),
        (2, "full", True, "PreNorm"),
        (2, "full", True, "OutputNorm"),
        pytest.param(4, "nothing", True, "PreNorm", marks=pytest.mark.soak),
        pytest.param(2, "selective", True, "PreNorm", marks=pytest.mark.soak),
        pytest.param(2, "selective", True, "OutputNorm", marks=pytest.mark.soak),
        pytest.param(2, "full", True, "SandwichNorm", marks=pytest.mark.soak),
        pytest.param(2, "full", True, "PostNorm", marks=pytest.mark.soak),
    ],
)
def test_bytes_of_shared_layers(
    ranks, make_job, tmp_path, world, recompute, sequence_parallel, block
):
    shared = {"ranks": 2, "sequence_parallel": sequence_parallel}
    job = make_job(
        tmp_path,
        world,
        training={
            "steps": 10,
            "deterministic": False,
            "virtual_workers": world,
            "parallel": {"kind": "FSDP", "tensor": shared},
            "recompute": AGAIN[recompute],
        },
        model={"block": {"kind": block}},
        batches={"global_batch": 8, "micro_batch": 2, "sequence_length": 16},
    )
    counted = ranks(world, "sent_bytes", job=job)[0]
    layout = DeviceLayout(Degrees(1, world // 2, tensor=2), 2, recompute=recompute)
    sent = make_prediction(job, layout)
    shape = job.model.shape
    # Sent once for all positions.
    stream = 2 * 16 * shape.channels * 4 // 2 * (8 // 2 // (world // 2))
    if sequence_parallel:
        # The gradients of norms are summed once a step: each rank's slice of them.
        of_layer = 4 if block == "SandwichNorm" else 2
        norms = of_layer * job.model.layers + (block != "PostNorm")
        norms *= shape.channels * 4 // (world // 2)
        planned = sent.tensor.inside + sent.gathered.inside + sent.reduced.inside
        assert counted.get("allreduce_", 0) == 0
        assert sum(counted.values()) - norms == planned
    else:  # recomputation gathers nothing again
        assert counted == {"allreduce_": sent.tensor.inside - 2 * job.model.layers * stream}


@pytest.mark.slow
def test_bytes_of_experts_whose_channels_are_shared(ranks, make_job, tmp_path):
    job = make_job(
        tmp_path,
        4,
        model={"feedforward": {"kind": "MixtureOfExperts", "experts": 4, "active": 4}},
        training={
            "steps": 10,
            "deterministic": False,
            "parallel": {
                "kind": "FSDP",
                "tensor": {"ranks": 2, "sequence_parallel": True},
                "expert": {"ranks": 2},
            },
        },
        batches={"global_batch": 8, "micro_batch": 4, "sequence_length": 16},
    )
    counted = ranks(4, "sent_bytes", job=job)[0]
    sent = make_prediction(job, DeviceLayout(Degrees(1, tensor=2, expert=2), 2))
    logged = 2 * (1 + 2 * 2 + 2) * 8  # the same values as above
    # Slices of the gradients of norms, which are summed once a step.
    norms = (2 * job.model.layers + 1) * job.model.shape.channels * 4 // 2
    traffic = sent.tensor.inside + sent.expert.inside + sent.gathered.inside + sent.reduced.inside
    assert sum(counted.values()) - logged - norms == traffic


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sequence_parallel", "recompute"),
    [
        (True, "nothing"),
        (False, "nothing"),
        pytest.param(True, "full", marks=pytest.mark.soak),
        pytest.param(False, "full", marks=pytest.mark.soak),
    ],
)
def test_bytes_of_shared_layers_between_stages(
    ranks, make_job, tmp_path, sequence_parallel, recompute
):
    """Two stages have two layers and two ranks each.

    The bytes are those that each of the four ranks sends to the rank that shares its layers.
    """
    tensor = {"ranks": 2, "sequence_parallel": sequence_parallel}
    job = make_job(
        tmp_path,
        4,
        model={"layers": 4, "tie_embeddings": False},
        training={
            "steps": 10,
            "deterministic": False,
            "parallel": {"kind": "FSDP", "tensor": tensor, "pipeline": {"ranks": 2}},
            "recompute": AGAIN[recompute],
        },
        batches={"global_batch": 8, "micro_batch": 2, "sequence_length": 16},
    )
    counted = ranks(4, "sent_bytes", job=job)
    degrees = Degrees(tensor=2, pipeline=2)
    layout = DeviceLayout(
        degrees, 2, recompute, schedule="1F1B", sequence_parallel=sequence_parallel
    )
    sent = make_prediction(job, layout)
    if sequence_parallel:
        # The gradients of norms are summed once a step: two in each layer, one before the head.
        norms = [count * job.model.channels * 4 for count in (4, 4, 5, 5)]
        found = [sum(rank.values()) for rank in counted]
        assert [total - own for total, own in zip(found, norms, strict=True)] == (
            [sent.tensor.inside] * 4
        )
    else:
        assert [rank["allreduce_"] for rank in counted] == [sent.tensor.inside] * 4
    received = [rank["received"] for rank in ranks(4, "stages", job=job)]
    assert received == [4 * 2 * 16 * job.model.channels * 4 // (2 if sequence_parallel else 1)] * 4
    if sequence_parallel:
        assert sent.pipeline.inside == received[0]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1F1B", "GPipe"])
def test_bytes_and_activations_of_stages_match_the_plan(schedule, ranks, make_job, tmp_path):
    """Count bytes of hidden states and gradients, and micro-batches between their passes."""
    job = make_job(
        tmp_path,
        3,
        model={"layers": 3, "tie_embeddings": False},
        training={"parallel": {"kind": "FSDP", "pipeline": {"ranks": 3, "schedule": schedule}}},
        batches={"global_batch": 12, "micro_batch": 2},
    )
    found = ranks(3, "stages", job=job)
    layout = DeviceLayout(Degrees(pipeline=3), 2, schedule=schedule)
    planned = make_prediction(job, layout, BatchShape(12, 32)).pipeline.inside
    each_way = 6 * 2 * 32 * job.model.channels * 4
    assert [rank["received"] for rank in found] == [each_way, 2 * each_way, each_way]
    assert planned in (each_way, 2 * each_way)  # bytes of the slowest device
    assert [rank["most"] for rank in found] == [
        sum(count_held(schedule, 1, 3, n, 6)) for n in range(3)
    ]


@pytest.mark.slow
def test_bytes_and_activations_of_interleaved_stages_match_the_plan(ranks, make_job, tmp_path):
    """Two ranks have two stages each, so a micro-batch sends three hidden states between them."""
    pipeline = {"ranks": 2, "schedule": "interleaved", "chunks": 2}
    job = make_job(
        tmp_path,
        2,
        model={"layers": 4, "tie_embeddings": False},
        training={"parallel": {"kind": "FSDP", "pipeline": pipeline}},
        batches={"global_batch": 12, "micro_batch": 2},
    )
    found = ranks(2, "stages", job=job)
    layout = DeviceLayout(Degrees(pipeline=2), 2, schedule="interleaved", chunks=2)
    planned = make_prediction(job, layout, BatchShape(12, 32)).pipeline.inside
    # Gradients have the same size; the sum is over both ranks.
    sent = 3 * 6 * 2 * 32 * job.model.channels * 4
    assert [rank["received"] for rank in found] == [sent, sent] and planned == sent
    assert [rank["most"] for rank in found] == [
        sum(count_held("interleaved", 2, 2, n, 6)) for n in range(2)
    ]
