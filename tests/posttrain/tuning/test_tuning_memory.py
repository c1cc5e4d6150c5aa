"""Predicted memory and operations of tuning, against the peaks and the counts of torch."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainrig.check import describe
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.estimate.tuning_check import (
    count_tuning_flops,
    estimate_tuning,
    estimate_tuning_memory,
)
from trainrig.flops import count_token_flops
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.lora import adapt, count_adapter
from trainrig.objectives.log_probabilities import stack_rows
from trainrig.objectives.shared_prompts import lay_out
from trainrig.posttrain.tuning.fine_tuning import prepare
from trainrig.posttrain.tuning.largest_rows import LargestRows, find_largest
from trainrig.posttrain.tuning.preference_rows import needs_references
from trainrig.posttrain.tuning.references import compute_references
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.tokens.batches import (
    CHOSEN_IDS,
    CHOSEN_TARGETS,
    IGNORE,
    REJECTED_IDS,
    REJECTED_TARGETS,
)
from trainrig.train import checkpoint
from trainrig.train.checkpoint import write_model

SAID = "the sea is a grey mirror and nobody sleeps "
CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"{number} {SAID}"},
            {"role": "assistant", "content": 2 * SAID},
        ]
    }
    for number in range(10, 58)
]
# The prompt is so long that both answers share one reading of it.
PAIRS = [
    {"prompt": f"{number} {2 * SAID}", "chosen": 2 * SAID, "rejected": f"buy two {SAID}"}
    for number in range(10, 58)
]
LABELLED = [
    {"prompt": f"{number} {SAID}", "completion": 2 * SAID, "label": number % 2 == 0}
    for number in range(10, 58)
]
ROWS = {"SFT": ("conversations", CHATS), "KTO": ("labelled", LABELLED)}


@pytest.fixture(scope="session")
def wide(tmp_path_factory, encoder):
    """Return a model whose weights and activations are large compared to a batch."""
    folder = str(tmp_path_factory.mktemp("wide") / "run")
    config = DecoderConfig(
        layers=4, channels=128, heads=4, kv_heads=2, positions=128, vocabulary=640
    )
    model = Decoder(config)
    initialise(model, seed=1)
    write_model(folder, config, encoder.text, model.state_dict())
    return folder


@pytest.fixture
def tuning(wide, encode_rows, tmp_path):
    """Return `tuning("DPO", lora={…}, batches={…})`: a run file, with its rows encoded."""

    def make(kind, training=None, batches=None, **changes):
        rows, given = ROWS.get(kind, ("pairs", PAIRS))
        encode_rows(given, rows=rows, sequence_length=96)
        usual = {
            "steps": 4,
            "deterministic": False,
            "schedule": {"kind": "Constant"},
            "precision": {"compute": "float32"},
        }
        return FineTuning.model_validate(
            {
                "checkpoint": wide,
                "conversations": str(tmp_path / "encoded"),
                "output": str(tmp_path / "tuned"),
                "objective": {"kind": kind},
                "batches": {
                    "sequence_length": 96,
                    "global_batch": 16,
                    "micro_batch": 8,
                    **(batches or {}),
                },
                "training": usual | (training or {}),
                **changes,
            }
        )

    return make


NARROW = {"precision": {"compute": "bfloat16"}}
ADAPTER = {"rank": 8}


def mark_slow(*given):
    return pytest.param(*given, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("SFT", {}),
        mark_slow("SFT", {"batches": {"packing": "none"}}),
        ("SFT", {"lora": ADAPTER}),
        mark_slow("SFT", {"lora": ADAPTER | {"base": "int8"}}),
        mark_slow("SFT", {"lora": ADAPTER | {"base": "int8"}, "training": NARROW}),
        mark_slow("SFT", {"lora": ADAPTER | {"dora": True}}),
        mark_slow("SFT", {"lora": ADAPTER | {"dropout": 0.1}}),
        mark_slow("SFT", {"lora": ADAPTER | {"targets": ("attention.*",)}}),
        mark_slow("SFT", {"lora": ADAPTER | {"targets": ("attention.*", "embedding")}}),
        mark_slow("SFT", {"lora": ADAPTER, "training": {"recompute": {"kind": "Full"}}}),
        mark_slow("SFT", {"lora": ADAPTER, "training": {"recompute": {"kind": "Selective"}}}),
        ("DPO", {}),
        mark_slow("DPO", {"training": NARROW}),
        mark_slow("DPO", {"lora": ADAPTER}),
        mark_slow("DPO", {"lora": ADAPTER | {"dropout": 0.1}}),
        mark_slow("Reward", {}),
        mark_slow("Reward", {"lora": ADAPTER}),
        mark_slow("KTO", {}),
        mark_slow("KTO", {"lora": ADAPTER}),
        mark_slow("KTO", {"training": NARROW}),
    ],
)
def test_a_real_step_takes_the_predicted_memory(kind, changes, tuning, measure_peak):
    """Predictions are off by 1.5% on average, at worst by 4.7% (selective recomputation)."""
    run = tuning(kind, **changes)
    if needs_references(run):
        model = checkpoint.resolve(run.checkpoint)
        compute_references(run.conversations, model, run.batches.sequence_length)
    job, _, _ = prepare(run)
    rows = find_largest(run, job.model)
    frozen = [reference.model for reference in job.frozen.values()]
    reckoned = estimate_tuning_memory(run, job.model, frozen, rows, run.training, 1, True)
    assert reckoned.total == pytest.approx(measure_peak(job), rel=0.055)


def test_both_answers_of_a_pair_share_a_row_if_that_is_less_to_look_at(tuning, wide):
    """Prompts of 33 tokens and the answers that fit behind are laid out as in real batches."""
    run = tuning("SimPO")
    model, _ = checkpoint.describe(checkpoint.resolve(wide))
    rows = find_largest(run, model)
    assert rows.branches
    micro = prepare(run)[0].make_batches().micro_batch(0, 0)
    sides = [
        (torch.from_numpy(micro.arrays[ids]), torch.from_numpy(micro.arrays[targets]))
        for ids, targets in ((CHOSEN_IDS, CHOSEN_TARGETS), (REJECTED_IDS, REJECTED_TARGETS))
    ]
    layout = lay_out(*stack_rows(*sides))
    assert layout.sources_RW.shape == (rows.rows, rows.length)
    assert rows.places == sum(int((targets != IGNORE).sum()) for _, targets in sides)
    apart = find_largest(run.model_copy(update={"lora": LoRA(dropout=0.1)}), model)
    assert (apart.rows, apart.branches) == (16, False)
    assert apart.length == micro.arrays[CHOSEN_IDS].shape[1]


def test_without_its_rows_they_are_taken_to_be_as_long_as_may_be(tuning, wide):
    run = tuning("DPO").model_copy(update={"conversations": "never/written"})
    model, _ = checkpoint.describe(checkpoint.resolve(wide))
    assert find_largest(run, model) == LargestRows(16, 96, 16 * 96)
    one = estimate_tuning(run, DeviceChoice("h100"))
    assert one["largest_micro_batch"] == "16 rows of 96 places, logits of 1536"
    assert one["device"] == "h100 x 1"
    assert one["memory_per_device_gib"] > 0
    absent = run.model_copy(update={"checkpoint": "never/made"})
    assert estimate_tuning(absent, DeviceChoice("h100")) == {}
    assert estimate_tuning(absent, DeviceChoice("h100"), model) == one
    assert one["hours"] > 0 and one["usd"] > 0


@pytest.mark.parametrize("lora", [None, {"rank": 8}])
def test_the_operations_are_those_that_torch_counts(lora, tuning, wide):
    run = tuning("SFT", lora=lora)
    model, _ = checkpoint.describe(checkpoint.resolve(wide))
    network = Decoder(model)
    initialise(network, 1)
    if run.lora:
        adapt(network, run.lora)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network(torch.zeros(2, 32, dtype=torch.int64)).logits.sum().backward()
    micro_batches = 8  # 4 steps of 2
    found = count_tuning_flops(run, model, [], LargestRows(2, 32, None)) / micro_batches / 64
    # torch's plain kernel also computes the keys that a causal model does not see
    attention = count_token_flops(model, 32).attention
    found += 3 * (count_token_flops(model, 32, causal=False).attention - attention)
    if run.lora:  # our count leaves out what the adapters add, and that the first inputs are frozen
        inputs = model.channels * (128 + 64 + 64) + 3 * 8 * model.channels  # query, key and value
        found += 6.0 * count_adapter(model, run.lora) - 2.0 * inputs
    assert counter.get_total_flops() / 64 == found


def test_an_adapter_needs_less_and_check_says_so(tuning):
    whole, adapted = (
        describe(tuning("SFT", **changes), DeviceChoice("h100"))
        for changes in ({}, {"lora": {"rank": 4, "base": "int8"}})
    )
    assert adapted["memory_per_device_gib"] < whole["memory_per_device_gib"]
    assert (whole["compute"], adapted["parameters_trained"]) == ("float32", 38912)
