"""One answer on memory and hours: `check`, `plan` and `plan --layout` agree on the same run."""

from dataclasses import replace
from itertools import product

import pytest

from trainrig import hardware
from trainrig.check import describe
from trainrig.estimate.cost_estimate import Assumptions, DeviceChoice, estimate_cost
from trainrig.estimate.fitting_layouts import BatchShape
from trainrig.estimate.layout import layout_search, run_placement
from trainrig.estimate.layout.cluster_choice import (
    ClusterWanted,
    build_cluster,
    build_rented_cluster,
    is_timed,
)
from trainrig.estimate.layout.layout_search import PLAIN, RunPredictor, search
from trainrig.estimate.layout.layout_settings import build_parallel, read_layout
from trainrig.estimate.layout.layouts import iterate_legal_layouts
from trainrig.estimate.layout.run_subject import FixedDegrees, Subject
from trainrig.estimate.model_parallel_memory import estimate_worker_memory
from trainrig.estimate.step_memory import RESERVE
from trainrig.parallel.activation_budget import GIB
from trainrig.scaling.laws.published_laws import find_published_law
from trainrig.scaling.plan.layout_verb import apply_layout, build_subject
from trainrig.scaling.plan.plan_schema import PlanRequest
from trainrig.scaling.plan.planner import make_plan
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import Training

OFFERS = hardware.load()
MIXTURE = {"feedforward": {"kind": "MixtureOfExperts", "experts": 4, "active": 2}}


def make_run(preset, workers, **training):
    settings = {"precision": {"compute": "bfloat16"}, "compile": None} | training
    return Pretraining.model_validate({
        "tokens": "nowhere", "output": "nowhere/run", "workers": workers,
        "model": {"preset": preset, "vocabulary": 50_304},
        "batches": {"sequence_length": 1024, "global_batch": 512, "micro_batch": 1},
        "training": {"steps": 1000, **settings},
    })  # fmt: skip


def resolve(run, cluster):
    training = run.training.resolve(cluster.device.computes_narrow, compiles=False)
    return run.model_copy(update={"training": training})


@pytest.mark.parametrize("preset", ["gpt-2-1.5b", "llama-3.1-8b"])
@pytest.mark.parametrize(("device", "nodes"), [("h100", 1), ("h100", 8), ("a100-80gb", 2)])
@pytest.mark.parametrize("training", [
    {"parallel": {"kind": "FSDP", "reshard": "layer", "reduce": "micro_batch"},
     "recompute": {"kind": "Full"}},
    {"deterministic": False, "parallel": {"kind": "HSDP", "replicas": 2}},
])  # fmt: skip
def test_check_and_layouts_agree_on_a_run_and_on_the_run_that_is_written(
    preset, device, nodes, training
):
    cluster = build_cluster(ClusterWanted(device, nodes), OFFERS, 1)
    run = resolve(make_run(preset, cluster.devices, **training), cluster)
    subject, _ = build_subject(run, "run.toml")
    own = read_layout(run.training, cluster.devices, 1)
    found = search(subject, cluster, PLAIN, OFFERS, own)
    facts = describe(run, DeviceChoice(device))
    assert found.own is not None
    assert facts["memory_per_device_gib"] == round(found.own.prediction.memory.total / GIB, 3)
    seconds = found.own.prediction.seconds.total * run.training.steps
    assert facts["hours"] == pytest.approx(seconds / 3600, rel=1e-12)
    best = found.runnable
    assert best is not None
    written = apply_layout(run, best.prediction)
    facts = describe(written, DeviceChoice(device))
    assert facts["memory_per_device_gib"] == round(best.prediction.memory.total / GIB, 3)
    assert facts["hours"] == pytest.approx(
        best.prediction.seconds.total * run.training.steps / 3600, rel=1e-12
    )


@pytest.mark.parametrize(("device", "devices"), [("h100", 8), ("h200", 16), ("l4", 8)])
def test_check_of_a_planned_run_has_the_memory_and_hours_of_the_plan(device, devices):
    law = find_published_law("hoffmann")
    plan = make_plan(law, PlanRequest(flops=3e19, device=device, devices=devices), OFFERS)
    assert plan.cost.predicted == (device != "l4")
    assert plan.placement.fits
    recipe = plan.recipe
    run = Pretraining.model_validate({
        "tokens": "nowhere", "output": "nowhere/run", "workers": devices, "model": plan.model,
        "batches": {"sequence_length": recipe.sequence_length, "micro_batch": recipe.micro_batch,
                    "global_batch": recipe.global_batch},
        "training": {"steps": recipe.steps, "optimizer": recipe.optimizer,
                     "precision": {"compute": "bfloat16"}, "virtual_workers": devices,
                     "parallel": plan.placement.parallel, "recompute": plan.placement.recompute,
                     "deterministic": plan.placement.deterministic},
    })  # fmt: skip
    facts = describe(run, DeviceChoice(device))
    assert facts["memory_per_device_gib"] == round(plan.placement.memory / GIB, 3)
    assert facts["hours"] == pytest.approx(plan.cost.hours, rel=1e-12)
    assert facts["usd"] == pytest.approx(plan.cost.usd, rel=1e-12)
    low, high = facts["hours_between"]
    assert (low, high) == plan.cost.hours_between
    assert low < plan.cost.hours < high


@pytest.mark.parametrize("changes", [{}, MIXTURE])
@pytest.mark.parametrize("training", [{}, {"deterministic": False}])
def test_the_memory_of_every_layout_is_that_of_check(model, cluster, training, changes):
    """Twin of the search's memory: `estimate_worker_memory` for the settings of each layout."""
    sizes = model(tie_embeddings=False, **changes)
    batch = BatchShape(16, 2048)
    settings = Training.model_validate(
        {"steps": 1, "precision": {"compute": "bfloat16"}, "virtual_workers": 8} | training
    )
    predictor = RunPredictor(Subject("run", sizes, settings, batch), cluster(8))
    layouts = list(iterate_legal_layouts(sizes, batch, 8))
    for layout in layouts[:: max(1, len(layouts) // 150)]:
        made = predictor.main.build_training(layout)
        parallel = build_parallel(layout)
        made = made.model_copy(update={"parallel": parallel})
        rows = layout.micro_batch * layout.degrees.expert
        expected = estimate_worker_memory(sizes, made, 8, 16, rows, 2048).total
        assert predictor.predict(layout).memory.total == pytest.approx(expected, rel=1e-9), layout
        assert read_layout(made, 8, rows) == layout


def test_check_of_a_run_that_does_not_fit_says_what_would(tmp_path):
    run = make_run("llama-3.1-8b", 8, virtual_workers=64)
    facts = describe(run, DeviceChoice("h100"))
    assert "too_little_memory" in facts
    said = facts["would_fit"]
    assert "reduce = 'micro_batch'" in said and "GiB; `trainrig plan --layout`" in said
    assert "would_fit" not in describe(run, DeviceChoice("b200"))
    needs_more = describe(run.model_copy(update={"workers": 1}), DeviceChoice("h100"))["would_fit"]
    count = int(needs_more.split()[0])
    cluster = build_rented_cluster("h100", OFFERS, count)
    subject, _ = build_subject(resolve(run, cluster), "run.toml")
    free = subject.training.model_copy(update={"deterministic": False})
    placed = run_placement.place_run(Subject("", subject.model, free, subject.batch), cluster)
    assert placed is not None and placed.fits


def test_the_fewest_devices_are_those_for_which_a_layout_fits(model):
    large = model(layers=32, channels=4096, heads=32, kv_heads=32, feedforward_channels=16_384)
    training = Training.model_validate({"steps": 1, "precision": {"compute": "bfloat16"}})
    subject = Subject("run", large, training, BatchShape(512, 2048))

    def make_cluster(devices):
        return build_rented_cluster("a100-40gb", OFFERS, devices)

    needed = run_placement.count_devices_needed(subject, make_cluster)
    assert needed is not None and needed > 1
    for count, fits in ((needed, True), (needed // 2, False)):
        found = run_placement.place_run(subject, make_cluster(count))
        plain = found is not None and found.fits and found.parallel.replica == 1
        assert plain == fits
    tiny = make_cluster(1)
    small = tiny.device.model_copy(update={"memory": 1e9})
    assert run_placement.count_devices_needed(
        subject, lambda count: make_cluster(count).__class__(
            **{**vars(make_cluster(count)), "device": small})
    ) is None  # fmt: skip


def test_bit_exact_layouts_come_first_and_less_is_recomputed_where_times_are_assumed(model):
    for device, count in product(("l4", "h100"), (1, 8)):
        cluster = build_rented_cluster(device, OFFERS, count)
        assert is_timed(cluster) == (device == "h100")
        training = Training.model_validate({"steps": 5, "precision": {"compute": "bfloat16"}})
        placed = run_placement.place_run(
            Subject("run", model(), training, BatchShape(64, 2048)), cluster
        )
        assert placed is not None and placed.fits and placed.training.deterministic
        assert (placed.seconds is None) == (device == "l4")
        if device == "l4":
            layout = placed.prediction.layout
            assert (layout.reshard, layout.reduce) == ("step", "step")


def test_a_given_share_of_the_peak_has_no_band():
    given = estimate_cost(1e20, OFFERS, "h100", 8, "bfloat16", Assumptions(utilisation=0.5),
                          seconds=1.0)  # fmt: skip
    assert given.hours == pytest.approx(1e20 / (8 * 989e12 * 0.5) / 3600)
    assert given.hours_between is None and not given.predicted
    predicted = estimate_cost(1e20, OFFERS, "h100", 8, "bfloat16", Assumptions(), seconds=7200.0)
    assert predicted.hours == 2.0 and predicted.predicted
    assert (
        estimate_cost(1e20, OFFERS, "cpu-core", 8, "float32", Assumptions()).hours_between is None
    )


def test_fixed_degrees_are_searched_alone(model, cluster):
    training = Training.model_validate({"steps": 5, "precision": {"compute": "bfloat16"}})
    subject = Subject("run", model(), training, BatchShape(64, 2048))
    found = search(subject, cluster(16), FixedDegrees(tensor=2, pipeline=2), OFFERS)
    degrees = [one.prediction.layout.degrees for one in found.best]
    assert all(one.tensor == 2 and one.pipeline == 2 for one in degrees)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, MIXTURE])
@pytest.mark.parametrize("length", [512, 4096])
def test_the_layouts_tried_for_a_fit_include_the_one_with_the_least_memory(
    model, cluster, changes, length
):
    """Twin of `fits_somewhere`: the least memory of all legal layouts decides."""
    sizes = model(tie_embeddings=False, **changes)
    training = Training.model_validate(
        {"steps": 1, "precision": {"compute": "bfloat16"}, "deterministic": False}
    )
    subject = Subject("run", sizes, training, BatchShape(16, length))
    there = cluster(8)
    for fixed in (FixedDegrees(), PLAIN, FixedDegrees(pipeline=2), FixedDegrees(tensor=2)):
        least = layout_search.search_layouts(RunPredictor(subject, there), fixed).nearest
        assert least is not None
        needed = least.memory.total / (1 - RESERVE)
        for share, fits in ((1.001, True), (0.999, False)):
            device = there.device.model_copy(update={"memory": needed * share})
            smaller = replace(there, device=device)
            assert layout_search.fits_somewhere(subject, smaller, fixed) == fits, least.layout
