"""Advice of `check` for runs that need too much memory, and facts that its hours leave out."""

import pytest

from trainrig import hardware
from trainrig.check import describe
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.estimate.layout.cluster_choice import ClusterWanted, build_cluster
from trainrig.estimate.layout.layout_search import PLAIN, RunPredictor, search
from trainrig.estimate.layout.layout_settings import read_layout
from trainrig.parallel.activation_budget import GIB
from trainrig.scaling.plan.layout_verb import build_subject
from trainrig.train.run_file.run_files import Pretraining

OFFERS = hardware.load()


def make_run(model, workers, sequence_length=1024, **training):
    settings = {"precision": {"compute": "bfloat16"}, "compile": None, "virtual_workers": workers}
    further = model.get("further_heads", 0)
    objective = (
        {"kind": "MultiTokenPrediction", "further_weights": (1.0,) * further} if further else {}
    )
    return Pretraining.model_validate({
        **({"objective": objective} if further else {}),
        "tokens": "nowhere", "output": "nowhere/run", "workers": workers, "model": model,
        "batches": {"sequence_length": sequence_length, "global_batch": 256, "micro_batch": 1},
        "training": {"steps": 100, **settings, **training},
    })  # fmt: skip


def use_preset(name, **changes):
    return {"preset": name, "vocabulary": 50_304, **changes}


def test_advice_for_a_run_that_fits_on_no_device_predicts_few_layouts(monkeypatch):
    predicted = []
    predict = RunPredictor.predict
    monkeypatch.setattr(
        RunPredictor,
        "predict",
        lambda self, layout: predicted.append(layout) or predict(self, layout),
    )
    said = describe(make_run(use_preset("llama-3.1-70b"), 8), DeviceChoice("h100"))["would_fit"]
    assert said.startswith("16 devices, ") and "`trainrig plan --layout` finds" in said
    assert len(predicted) < 1000


@pytest.mark.parametrize(("model", "device", "workers"), [
    (use_preset("llama-3.1-8b"), "l4", 1),
    (use_preset("llama-3.1-8b"), "l4", 8),
    (use_preset("llama-3.1-8b", further_heads=2), "h100", 1),
])  # fmt: skip
def test_advice_names_settings_alone_where_no_layout_can_be_planned(model, device, workers):
    run = make_run(model, workers)
    said = describe(run, DeviceChoice(device))["would_fit"]
    assert "plan" not in said and "micro_batch " in said and "GiB" in said


@pytest.mark.parametrize("device", ["l4", "a100-40gb"])
def test_a_run_with_the_advised_settings_fits(device):
    run = make_run(use_preset("llama-3.1-8b"), 4)
    said = describe(run, DeviceChoice(device))["would_fit"]
    devices = int(said.split()[0]) if " devices, " in said else 4
    words = said.partition(":")[0].split(", ")
    keys = dict(word.replace(" = ", " ").split(maxsplit=1) for word in words if " " in word)
    virtual = int(keys.get("virtual_workers", 4))
    assert virtual >= devices
    parallel = {"kind": "FSDP", "reshard": "layer", "reduce": "micro_batch"}
    assert keys["reshard"] == "'layer'" and keys["reduce"] == "'micro_batch'"
    advised = make_run(
        use_preset("llama-3.1-8b"), devices, parallel=parallel, virtual_workers=virtual,
        recompute={"kind": keys["recompute"]}, deterministic="deterministic" not in keys,
    )  # fmt: skip
    advised = advised.model_copy(
        update={
            "batches": advised.batches.model_copy(update={"micro_batch": int(keys["micro_batch"])})
        }
    )
    facts = describe(advised, DeviceChoice(device))
    assert "too_little_memory" not in facts
    assert f"{facts['memory_per_device_gib']:.1f} GiB" in said


@pytest.mark.parametrize(("offload", "left_out"), [
    ({}, []), ({"optimizer": True}, ["optimizer state"]),
    ({"optimizer": True, "activations": True}, ["optimizer state", "activations"]),
])  # fmt: skip
def test_hours_say_which_copies_they_leave_out(offload, left_out):
    training = {"offload": offload, "recompute": {"kind": "Full"}, "deterministic": False}
    run = make_run(use_preset("gpt-2-1.5b"), 8, **training)
    facts = describe(run, DeviceChoice("h100"))
    assert ("hours_leave_out" in facts) == bool(left_out)
    _, notes = build_subject(run, "run.toml")
    for part in left_out:
        assert part in facts["hours_leave_out"]
        assert any(part in note for note in notes)


@pytest.mark.parametrize("device", ["h100", "a100-80gb", "b200"])
@pytest.mark.parametrize("devices", [1, 8, 16])
def test_check_and_layouts_have_one_memory_and_one_number_of_hours_for_a_small_model(
    device, devices
):
    small = {"layers": 6, "channels": 384, "heads": 6, "vocabulary": 32_000, "positions": 2048}
    run = make_run(small, devices, sequence_length=2048)
    cluster = build_cluster(ClusterWanted(device, devices=devices), OFFERS, devices)
    subject, _ = build_subject(run, "run.toml")
    own = read_layout(run.training, devices, 1)
    found = search(subject, cluster, PLAIN, OFFERS, own).own
    assert found is not None
    facts = describe(run, DeviceChoice(device))
    assert facts["memory_per_device_gib"] == round(found.prediction.memory.total / GIB, 3)
    hours = found.prediction.seconds.total * run.training.steps / 3600
    assert facts["hours"] == pytest.approx(hours, rel=1e-12)
    low, high = facts["hours_between"]
    assert low < facts["hours"] < high
