"""Device memory of a step whose optimizer state is offloaded to the host."""

import pytest
import torch

from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.estimate.model_parallel_memory import estimate_worker_memory
from trainrig.estimate.model_share import ModelParts, slice_parameters
from trainrig.estimate.step_memory import estimate_step_memory
from trainrig.estimate.training_check import estimate_pretraining
from trainrig.models.architecture.layer_settings import MixtureOfExperts
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.optim import SGD, Adafactor, AdamW, Lion, Muon
from trainrig.optim.named_groups import build_optimizer
from trainrig.parallel.recompute import Full
from trainrig.train.run_file.training_settings import Training

MODEL = DecoderConfig(
    layers=4, channels=64, heads=4, feedforward_channels=128, vocabulary=320, positions=128,
    tie_embeddings=False,
)  # fmt: skip
MIXTURE = MixtureOfExperts(kind="MixtureOfExperts", experts=4, active=2)
EXPERTS = MODEL.model_copy(update={"feedforward": MIXTURE})
# Elements of the embedding and of the head (TABLE), and of a layer's matrix (MATRIX).
TABLE = 320 * 64
MATRIX = 128 * 64


def train(hosted=True, optimizer=None, **parallel):
    given = {
        "steps": 10,
        "virtual_workers": 4,
        "optimizer": optimizer or AdamW(),
        "offload": {"optimizer": hosted},
        "parallel": {"kind": "FSDP", **parallel},
    }
    return Training.model_validate(given)


def test_two_layers_of_offloaded_activations_are_on_a_device():
    plain, hosted = (
        Training(steps=10, offload={"activations": on_host}) for on_host in (False, True)
    )
    everything, two = (
        estimate_step_memory(MODEL, training, 1, 8, 2, 64) for training in (plain, hosted)
    )
    assert two.activations == everything.activations / 2  # two of four layers
    full = hosted.model_copy(update={"recompute": Full()})
    inputs = estimate_step_memory(MODEL, full, 1, 8, 2, 64)
    assert inputs.activations == 2 * 2 * 64 * MODEL.channels * 4


def estimate(model, training, workers):
    return estimate_worker_memory(model, training, workers, 8, 2, 64)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_device_holds_optimizer_state_of_its_two_largest_slices(workers):
    there, hosted = (
        estimate_step_memory(MODEL, train(h), workers, 8, 2, 64) for h in (False, True)
    )
    assert hosted.optimizer == 2 * 8 * TABLE / workers
    assert there.total - hosted.total == there.optimizer - hosted.optimizer > 0


def test_whole_matrices_are_updated_one_per_slice_at_once():
    # AdamW keeps the tables on the device, with two moments for each element
    two = 4 * (2 * 2 * TABLE + 2 * MATRIX) / 2
    assert estimate(MODEL, train(optimizer=Muon()), 2).optimizer == two


@pytest.mark.parametrize("settings", [SGD(), AdamW(), Lion(), Adafactor(), Muon()])
@pytest.mark.parametrize("model", [MODEL, EXPERTS])
def test_no_step_allocates_more_than_the_estimate(settings, model):
    decoder = Decoder(model)
    optimizer = build_optimizer(decoder.named_parameters(), settings, hosted=True)
    for parameter in decoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    made = [
        part._make_slots(list(part._list_units()), torch.device("cpu"))  # type: ignore[attr-defined]
        for part in optimizer.parts
    ]
    room = max(sum(slot.nbytes for slot in slots) for slots in made)
    estimated = estimate_step_memory(model, train(optimizer=settings), 1, 8, 2, 64).optimizer
    assert room <= estimated + 2 * 512  # slots are aligned


AXES = {
    "tensor": (MODEL, {"tensor": {"ranks": 2}}),
    "pipeline": (MODEL, {"pipeline": {"ranks": 2}}),
    "expert": (EXPERTS, {"expert": {"ranks": 2}}),
}


@pytest.mark.parametrize("axis", AXES)
def test_workers_that_share_a_model_have_two_slices_of_the_largest_parts(axis):
    model, parallel = AXES[axis]
    there, hosted = (estimate(model, train(h, **parallel), 4) for h in (False, True))
    # Two of four workers hold other layers or columns. Experts are cut in two, then sliced.
    largest = {"tensor": TABLE / 4, "pipeline": TABLE / 2}
    assert hosted.optimizer == 2 * 8 * largest.get(axis, 4 * MATRIX / 4)
    assert hosted.optimizer < there.optimizer


def test_a_save_gathers_no_offloaded_rows_on_the_device():
    """Gather the weights alone, a third of the weights and AdamW's two moments."""
    rows = []
    for hosted in (False, True):
        parts = ModelParts.of(MODEL, train(hosted), 2, 1)
        counted, _ = parts.count_with_ends([range(4)])
        rows.append(slice_parameters(counted, 2, 1, 2, parts.hosted).rows)
    assert rows[1] == rows[0] / 3 > 0


def test_check_leaves_offloaded_memory_out_on_a_gpu_and_counts_it_on_a_cpu(make_run, tmp_path):
    found = {}
    for hosted in (False, True):
        run = make_run(
            tmp_path / str(hosted),
            tokens=str(tmp_path / "none"),
            model=MODEL.model_dump(exclude_unset=True) | {"channels": 512, "heads": 8},
            training={"steps": 10, "offload": {"optimizer": hosted}},
        )
        for device in ("cpu-core", "h100"):
            facts = estimate_pretraining(run, DeviceChoice(device))
            found[device, hosted] = facts["memory_per_device_gib"]
    assert found["cpu-core", True] == found["cpu-core", False]
    assert found["h100", True] < found["h100", False]
