"""Memory of workers that share rows, layers or experts: real ranks and hand counts."""

import itertools

import pytest

from trainrig.estimate.activation_bytes import MASTER, RowMasks, estimate_layers_per_token
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.estimate.model_parallel_memory import estimate_worker_memory
from trainrig.estimate.model_share import ModelParts, slice_parameters
from trainrig.estimate.step_memory import estimate_step_memory
from trainrig.estimate.training_check import estimate_pretraining
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.models.decoder import DecoderConfig
from trainrig.parallel.layer_bytes import cut_model, cut_shapes
from trainrig.train.run_file.training_settings import Training

MODEL = DecoderConfig(
    layers=4, channels=64, heads=4, kv_heads=2, feedforward_channels=128, vocabulary=320,
    positions=128, tie_embeddings=False,
)  # fmt: skip
MIXTURE = MixtureOfExperts(kind="MixtureOfExperts", experts=4, active=2)
EXPERTS = MODEL.model_copy(update={"feedforward": MIXTURE})


def training(**parallel):
    given = {"steps": 10, "virtual_workers": 4, "parallel": {"kind": "FSDP", **parallel}}
    return Training.model_validate(given)


def memory(model, parallel, workers, batch=8, micro_batch=2, length=64):
    return estimate_worker_memory(model, training(**parallel), workers, batch, micro_batch, length)


AXES = {
    "tensor": (MODEL, {"tensor": {"ranks": 2}}),
    "context": (MODEL, {"context": {"kind": "Gathered", "ranks": 2}}),
    "pipeline": (MODEL, {"pipeline": {"ranks": 2}}),
    "expert": (EXPERTS, {"expert": {"ranks": 2}}),
    "tensor of experts": (EXPERTS, {"tensor": {"ranks": 2, "sequence_parallel": True}}),
    "fewer key heads than workers": (MODEL, {"tensor": {"ranks": 4}}),
    "stages in places": (
        MODEL,
        {"pipeline": {"ranks": 2}, "tensor": {"ranks": 2, "sequence_parallel": True}},
    ),
    "stages of parts of rows": (
        MODEL,
        {"pipeline": {"ranks": 2}, "context": {"kind": "Gathered", "ranks": 2}},
    ),
    "experts within stages": (EXPERTS, {"pipeline": {"ranks": 2}, "expert": {"ranks": 2}}),
}
OF_FOUR = list(AXES)[5:]


@pytest.fixture
def job_of(make_job, tmp_path):
    """Return a function that builds jobs.

    `job_of(MODEL, {"tensor": {"ranks": 2}}, 4)` makes a job on rows of 64 tokens, 2 in a
    micro-batch.
    """

    def make(model, parallel, workers, **settings):
        given = {"steps": 10, "virtual_workers": 4, "parallel": {"kind": "FSDP", **parallel}}
        return make_job(
            tmp_path / str(model.layers),
            workers,
            model=model.model_dump(exclude_unset=True),
            training=given | settings,
            batches={"sequence_length": 64, "micro_batch": 2},
        )

    return make


@pytest.mark.parametrize(
    ("axis", "workers"),
    [*itertools.product(list(AXES)[:5], [2, 4]), *itertools.product(OF_FOUR, [4])],
)
def test_the_weights_are_those_that_real_ranks_hold(ranks, job_of, axis, workers):
    model, parallel = AXES[axis]
    job = job_of(model, parallel, workers)
    held = [sum(parts.values()) for parts in ranks(workers, "parts", job=job)]
    expected = memory(job.model, parallel, workers).weights
    # The estimate is for the stage that needs the most memory. It may have one norm less than the
    # last stage.
    assert expected in {count * MASTER for count in held}
    # tensor-parallel ranks hold one norm together
    alike = parallel.get("tensor", {"ranks": 1})["ranks"]  # type: ignore[attr-defined]
    assert max(held) * MASTER - expected in (0, MASTER * 64 * 2 * alike // workers)


SHARED = MIXTURE.model_copy(update={"shared_experts": 1})
IN_PLACES = {"tensor": {"ranks": 2, "sequence_parallel": True}}


@pytest.mark.parametrize(
    ("feedforward", "settings"),
    [
        (MIXTURE, {}),
        (MIXTURE, {"recompute": {"kind": "Selective"}}),
        pytest.param(None, {}, marks=pytest.mark.soak),
        pytest.param(SHARED, {"precision": {"compute": "bfloat16"}}, marks=pytest.mark.soak),
        pytest.param(None, {"recompute": {"kind": "Selective"}}, marks=pytest.mark.soak),
        pytest.param(SHARED, {}, marks=pytest.mark.soak),
        pytest.param(SHARED, {"recompute": {"kind": "Selective"}}, marks=pytest.mark.soak),
        pytest.param(MIXTURE, {"precision": {"compute": "bfloat16"}}, marks=pytest.mark.soak),
    ],
)
def test_a_sharded_layer_keeps_the_bytes_of_real_ranks(feedforward, settings, ranks, job_of):
    """Compare the estimate with the tensors that are alive after a forward pass.

    The estimate leaves out the logarithms and roots that attention and norms keep (one number per
    head or position) and the bfloat16 copies of expert weights.
    """
    model = MODEL.model_copy(update={"feedforward": feedforward} if feedforward else {})
    kept = []
    for layers in (2, 4):
        job = job_of(model.model_copy(update={"layers": layers}), IN_PLACES, 2, **settings)
        kept.append(ranks(2, "kept_for_backward", job=job)[0])
    counted = (kept[1] - kept[0]) / 2 / (2 * 64)
    shapes = cut_shapes(model, 2, 1)
    local = cut_model(model, 2, 1)
    estimated, _ = estimate_layers_per_token(shapes.layers[:1], local, job.training, 2)
    assert 0 <= counted - estimated < 4 * 2 + 4 + 4 * 2 + 1


@pytest.mark.parametrize(
    ("model", "parallel", "workers"),
    [
        (MODEL, {"tensor": {"ranks": 2}}, 2),
        (EXPERTS, {"tensor": {"ranks": 2}}, 4),
        (EXPERTS, {"tensor": {"ranks": 2}, "expert": {"ranks": 2}}, 4),
        (EXPERTS, {"expert": {"ranks": 2}}, 2),
    ],
)
def test_a_save_gathers_the_rows_that_real_ranks_gather(ranks, job_of, model, parallel, workers):
    """Count the rows of the weights and of the optimizer's two moments."""
    job = job_of(model, parallel, workers)
    gathered = ranks(workers, "gathered_for_a_save", job=job)
    tensor, expert = (parallel.get(axis, {"ranks": 1})["ranks"] for axis in ("tensor", "expert"))
    counted, _ = ModelParts.of(model, job.training, tensor, expert).count_with_ends([range(4)])
    estimated = slice_parameters(counted, workers // tensor, expert, tensor).rows
    assert gathered == [estimated] * workers
    assert (estimated > 0) == (tensor > 1)


def test_a_save_counts_if_it_takes_more_than_a_step():
    """Use so few tokens that a save takes more memory than a step.

    Each of 4 workers gathers the rows of 4 workers' columns of its experts.
    """
    mixture = MIXTURE.model_copy(update={"experts": 64, "active": 1})
    wide = MODEL.model_copy(update={"feedforward": mixture, "vocabulary": 64})
    parallel = {"tensor": {"ranks": 4}, "expert": {"ranks": 2}, "reshard": "layer"}
    given = training(**parallel)
    found = estimate_worker_memory(wide, given, 16, 2, 2, 8)
    assert found.activations == found.gradients == 0
    # Each rank of either axis holds an eighth of 4 layers of 64 experts of 3 matrices of 64 x 128,
    # as weights and two moments. The parts are gathered over the tensor axis and sliced over 2
    # replicas.
    experts = 3 * 4 * 4 * 64 * 3 * 64 * 128 / 2 / 2
    assert experts < found.passing < 1.05 * experts


def test_without_axes_it_is_the_memory_of_a_step():
    assert memory(MODEL, {}, 4) == estimate_step_memory(MODEL, training(), 4, 8, 2, 64)


def test_a_shared_row_takes_a_worker_its_part():
    alone = estimate_step_memory(MODEL, training(), 1, 8, 2, 64)
    ring = memory(MODEL, {"context": {"kind": "RingAttention", "ranks": 2}}, 2)
    gathered = memory(MODEL, {"context": {"kind": "Gathered", "ranks": 2}}, 2)
    assert ring.activations == alone.activations / 2
    # In each of 4 layers, the rank also gathers the keys and values of the other rank's 64 tokens
    # (2 heads of 16 channels in 4 bytes), and builds one mask for 2 rows of 5 sixteenths of their
    # squares.
    keys = 4 * 64 * 2 * 2 * 16 * 4
    assert gathered.activations - ring.activations == keys + 4 * 2 * 64**2 * 5 / 16


def test_activations_between_shared_layers_may_be_divided():
    alone = estimate_step_memory(MODEL, training(), 1, 8, 2, 64)
    shared = memory(MODEL, {"tensor": {"ranks": 2}}, 2)
    divided = memory(MODEL, {"tensor": {"ranks": 2, "sequence_parallel": True}}, 2)
    assert divided.activations == alone.activations / 2 < shared.activations


def test_experts_divide_the_rows_of_a_micro_batch():
    alone = estimate_step_memory(EXPERTS, training(), 1, 8, 2, 64)
    divided = memory(EXPERTS, {"expert": {"ranks": 2}}, 2)
    assert divided.activations == alone.activations / 2


@pytest.mark.parametrize(("schedule", "kept"), [("GPipe", 4), ("1F1B", 2)])
def test_the_first_stage_keeps_the_micro_batches_of_its_schedule(schedule, kept):
    deep = MODEL.model_copy(update={"layers": 8, "vocabulary": 16})  # the head weighs little
    alone = estimate_step_memory(deep, training(), 1, 8, 2, 64)
    staged = memory(deep, {"pipeline": {"ranks": 2, "schedule": schedule}}, 2)
    assert staged.activations == kept * alone.activations / 2


def test_workers_that_share_layers_keep_less_of_each():
    alone = estimate_step_memory(MODEL, training(), 1, 8, 2, 64)
    shared = memory(MODEL, {"tensor": {"ranks": 2}}, 2)
    assert alone.activations / 2 < shared.activations < alone.activations
    sliced = estimate_step_memory(MODEL, training(), 2, 8, 2, 64)
    assert shared.gathered < 0.51 * sliced.gathered  # norms are whole on both
    assert alone.gathered == 0  # one rank computes with its weights where they are


def test_a_row_has_the_positions_of_its_objective(make_run, tmp_path):
    run = make_run(
        tmp_path,
        tokens=str(tmp_path / "none"),
        model=MODEL.model_dump(exclude_unset=True) | {"channels": 512, "positions": 8192},
        batches={"sequence_length": 4096},
        objective={"kind": "SpanCorruption", "joined": True},
    )
    facts = estimate_pretraining(run, DeviceChoice())
    places = run.objective.compute_row_length(4096)
    masks = RowMasks(marks=True)
    wanted = estimate_worker_memory(run.model, run.training, 1, 8, 2, places, masks).total / 2**30
    assert places > 4096
    assert facts["memory_per_device_gib"] == round(wanted, 3)


def test_check_deals_micro_batches_to_replicas(make_run, tmp_path):
    run = make_run(
        tmp_path,
        4,
        model=MODEL.model_dump(exclude_unset=True),
        training={"steps": 10, "parallel": {"kind": "FSDP", "tensor": {"ranks": 2}}},
        batches={"global_batch": 8, "micro_batch": 4},
    )
    facts = estimate_pretraining(run, DeviceChoice())
    # with 4 workers, half of them would wait
    assert facts["at_work"].startswith("100% of 2 replicas")
