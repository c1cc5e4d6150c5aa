"""Tuning by workers that share layers or rows, or hold some layers each, against one worker."""

import itertools
import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.tuning_fixtures import build_tuning

from trainrig.check import describe
from trainrig.errors import ConfigError
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.posttrain.huggingface.peft_adapters import export_adapter
from trainrig.posttrain.tuning.fine_tuning import posttrain, prepare
from trainrig.posttrain.tuning.preference_rows import needs_references
from trainrig.posttrain.tuning.references import compute_references
from trainrig.train import checkpoint
from trainrig.train.checkpoint import write_model
from trainrig.train.run import metrics

CHATS = [
    {"prompt": f"is {n} {'or ' * (n % 5)}", "completion": f"yes {'and ' * (n % 3)}é"}
    for n in range(24)
]
PAIRS = [
    {"prompt": f"the sea {n}", "chosen": f"is a grey {n} mirror", "rejected": f"buy {n} cats"}
    for n in range(24)
]
LABELLED = [
    {"prompt": f"is {n}", "completion": f"yes {'and ' * (n % 4)}", "label": n % 3 > 0}
    for n in range(24)
]
SOLUTIONS = [
    {
        "prompt": f"the sea {n}",
        "completions": ["is grey", f"and {n} {'cats ' * (n % 3)}", "is a mirror"],
        "labels": [True, n % 2 == 0, True],
    }
    for n in range(24)
]
ROWS = {
    "SFT": (CHATS, "conversations"),
    "KTO": (LABELLED, "labelled"),
    "ProcessReward": (SOLUTIONS, "steps"),
}
TENSOR = {"tensor": {"ranks": 2}}
IN_PLACES = {"tensor": {"ranks": 2, "sequence_parallel": True}}
STAGES = {"pipeline": {"ranks": 2}}
CONTEXT = {"context": {"kind": "Gathered", "ranks": 2}}
RING = {"context": {"kind": "RingAttention", "ranks": 2}}
EXPERTS = {"expert": {"ranks": 2}}
# Objectives over answers: sums of log-probabilities with a stored and with a loaded reference,
# scores, means over tokens, and scores at several positions.
ANSWERS = ("DPO", "KTO", "Reward")
MORE_ANSWERS = (*ANSWERS, "ORPO", "SimPO", "ProcessReward")
LORA = {"rank": 4}
MIXTURE = {"kind": "MixtureOfExperts", "experts": 4, "active": 2}


@pytest.fixture
def tuning(fresh, encode_rows, tmp_path):
    """Return `tuning("SFT", TENSOR, lora={…})`: a run file on the rows of that objective."""
    encoded = set()

    def make(kind="SFT", parallel=None, workers=None, output="run", start=fresh, **changes):
        rows, name = ROWS.get(kind, (PAIRS, "pairs"))
        if name not in encoded:
            encode_rows(rows, name, rows=name, held_out=0.2, sequence_length=48)
            encoded.add(name)
        degrees = [axis["ranks"] for axis in (parallel or {}).values()]
        batches = {"sequence_length": 48, "global_batch": 4, "micro_batch": 2}
        if name == "conversations":  # rows as wide as their longest, so widths may be odd
            batches["packing"] = "none"
        training = {
            "schedule": {"kind": "Constant"},
            "held_out": {"every": 3, "rows": 4},
            "parallel": {"kind": "FSDP", **(parallel or {})},
        }
        workers = workers or int(np.prod(degrees, dtype=int))
        given = {"workers": workers, "batches": batches} | changes
        encoded_rows = str(tmp_path / name)
        return build_tuning(start, encoded_rows, tmp_path / output, kind, training, **given)

    return make


def read_trained(output):
    opened = checkpoint.open_model(str(output))
    return opened.adapter.tensors if opened.adapter else opened.weights


def assert_close(found, expected):
    series = [
        [line["train/loss"] for line in metrics.read_series(str(f))] for f in (found, expected)
    ]
    np.testing.assert_allclose(*series, rtol=0, atol=1e-5)
    held = [
        [x["eval/loss"] for x in metrics.read_held_out_series(str(f))] for f in (found, expected)
    ]
    np.testing.assert_allclose(*held, rtol=0, atol=1e-5)
    assert len(series[0]) == 6 and held[0]
    theirs = read_trained(expected)
    for name, value in read_trained(found).items():
        np.testing.assert_allclose(value, theirs[name], rtol=0, atol=1e-4, err_msg=name)


def mark_soak(*values):
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "parallel", "lora"),
    [
        ("SFT", IN_PLACES, LORA),
        mark_soak("SFT", IN_PLACES, None),
        mark_soak("SFT", TENSOR, LORA),
        mark_soak("SFT", STAGES, None),
        mark_soak("SFT", STAGES, LORA),
        ("SFT", CONTEXT, LORA),
        mark_soak("SFT", CONTEXT, None),
        mark_soak("SFT", CONTEXT | IN_PLACES, LORA),
        mark_soak("SFT", TENSOR | STAGES, LORA),
        mark_soak("DPO", IN_PLACES, LORA),
        mark_soak("DPO", TENSOR, None),
        mark_soak("KTO", IN_PLACES, LORA),
        ("Reward", IN_PLACES, LORA),
        mark_soak("Reward", TENSOR, None),
        ("DPO", CONTEXT, LORA),
        mark_soak("DPO", CONTEXT | IN_PLACES, LORA),
        mark_soak("KTO", RING, LORA),
        mark_soak("KTO", CONTEXT | IN_PLACES, None),
        mark_soak("Reward", CONTEXT, LORA),
        mark_soak("Reward", CONTEXT | TENSOR, LORA),
        mark_soak("ProcessReward", CONTEXT, None),  # the adapters drift to 1e-5 at this rate
        mark_soak("DPO", STAGES, LORA),
        mark_soak("Reward", STAGES, LORA),
        ("Reward", STAGES, None),  # the head is on the last stage
        mark_soak("ORPO", TENSOR | STAGES, LORA),
        ("DPO", CONTEXT | STAGES, LORA),
        mark_soak("SFT", CONTEXT | STAGES, LORA),
        mark_soak("SFT", IN_PLACES | STAGES, LORA),
        mark_soak("Reward", CONTEXT | STAGES, None),
        mark_soak("Reward", IN_PLACES | STAGES, None),
        mark_soak("ProcessReward", RING | STAGES, None),
        mark_soak("ORPO", CONTEXT | IN_PLACES | STAGES, LORA),
    ],
)
def test_each_layout_gives_the_results_of_one_worker(
    kind, parallel, lora, tuning, tmp_path, without_ray
):
    posttrain(tuning(kind, lora=lora, output="alone"))
    posttrain(tuning(kind, parallel, lora=lora))
    assert_close(tmp_path / "run", tmp_path / "alone")


@pytest.fixture
def mixture(encoder, tmp_path):
    """Return a checkpoint of a mixture of experts."""
    sizes = {"layers": 2, "channels": 32, "heads": 4, "kv_heads": 2, "positions": 48}
    model = Decoder(DecoderConfig(**sizes, vocabulary=320, feedforward=MIXTURE))
    initialise(model, seed=1)
    folder = str(tmp_path / "mixture")
    write_model(folder, model.config, encoder.text, model.state_dict())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "lora"),
    [
        ("SFT", LORA),
        mark_soak("SFT", None),
        mark_soak("DPO", LORA),
        mark_soak("KTO", LORA),
        mark_soak("Reward", LORA),
    ],
)
def test_so_it_is_with_divided_experts(kind, lora, mixture, tuning, tmp_path, without_ray):
    posttrain(tuning(kind, lora=lora, output="alone", start=mixture))
    posttrain(tuning(kind, EXPERTS, lora=lora, start=mixture))
    assert_close(tmp_path / "run", tmp_path / "alone")


@pytest.fixture
def learn_answers(tuning, ranks):
    """Return `learn_answers(("DPO",), CONTEXT, 2)`: train each objective for 4 steps.

    Rows have odd widths, and all answers of a row may be on one rank.
    """

    def learn(kinds, parallel, world, **changes):
        jobs = {}
        for kind in kinds:
            run = tuning(kind, parallel, world, **changes)
            job, _, _ = prepare(run)
            if needs_references(run):
                compute_references(run.conversations, job.initial_weights, 48)
            jobs[kind] = job
        first, *others = ranks(world, "answers_learnt", jobs=jobs, count=4)
        for other, kind in itertools.product(others, kinds):
            assert other[kind]["losses"] == first[kind]["losses"]
            first[kind]["weights"] |= other[kind]["weights"]  # and the weights of other stages
        return first

    return learn


def assert_as_learnt(found, alone):
    for kind in found:
        pairs = zip(found[kind]["losses"], alone[kind]["losses"], strict=True)
        for step, (loss, expected) in enumerate(pairs):
            at = f"{kind}, loss {step}"
            assert loss["total"] == pytest.approx(expected["total"], abs=1e-5), at
            for part in ("terms", "diagnostics"):
                assert loss[part] == pytest.approx(expected[part], rel=1e-4, abs=1e-4), at
            assert loss["counts"].keys() == expected["counts"].keys(), at
        np.testing.assert_allclose(found[kind]["norms"], alone[kind]["norms"], rtol=1e-4)
        for name, value in alone[kind]["weights"].items():
            np.testing.assert_allclose(
                found[kind]["weights"][name], value, rtol=0, atol=1e-4, err_msg=f"{kind}: {name}"
            )


@pytest.mark.slow
def test_workers_that_share_rows_learn_from_answers_as_one_does(learn_answers):
    """Two ranks share a row, also in two replicas."""
    alone = learn_answers(MORE_ANSWERS, None, 1)
    assert_as_learnt(learn_answers(MORE_ANSWERS, CONTEXT, 2), alone)
    assert_as_learnt(learn_answers(ANSWERS, RING, 4), alone)


STAGED_ANSWERS = tuple(kind for kind in MORE_ANSWERS if kind != "KTO")


@pytest.mark.slow
def test_workers_with_some_layers_learn_from_answers_as_one_does(learn_answers):
    """Two stages, with a head that shares the embedding, a score head, or shared layers."""
    alone = learn_answers(STAGED_ANSWERS, None, 1)
    assert_as_learnt(learn_answers(STAGED_ANSWERS, STAGES, 2), alone)
    assert_as_learnt(learn_answers(("DPO", "Reward"), STAGES | TENSOR, 4), alone)


@pytest.mark.slow
def test_workers_that_divide_experts_learn_from_answers_as_one_does(learn_answers, mixture):
    """Two ranks share a micro-batch, also in two replicas; one rank has no held-out rows."""
    alone = learn_answers(MORE_ANSWERS, None, 1, start=mixture)
    assert_as_learnt(learn_answers(MORE_ANSWERS, EXPERTS, 2, start=mixture), alone)
    assert_as_learnt(learn_answers(("DPO", "KTO"), EXPERTS, 4, start=mixture), alone)


@pytest.mark.slow
def test_stages_of_a_mixture_leave_out_padding_as_one_worker_does(learn_answers, mixture):
    """Rows have odd widths: all stages must know which positions are padding."""
    kinds = ("SFT", "DPO", "Reward", "ProcessReward")
    alone = learn_answers(kinds, None, 1, start=mixture)
    assert_as_learnt(learn_answers(kinds, STAGES, 2, start=mixture), alone)


def test_check_says_which_layers_get_an_adapter(mixture, tuning):
    facts = describe(tuning(lora=LORA, start=mixture))
    assert facts["adapters"] == ", ".join(
        f"attention.{name} x 2" for name in ("query", "key", "value", "output")
    )
    assert "adapters" not in describe(tuning(start=mixture))


@pytest.mark.slow
def test_peft_is_given_the_adapter_of_whole_layers(tuning, tmp_path, without_ray):
    for output, parallel in (("alone", None), ("run", TENSOR)):
        posttrain(tuning("SFT", parallel, lora=LORA | {"dora": True}, output=output))
        export_adapter(str(tmp_path / output), str(tmp_path / f"{output}-peft"))
    found, expected = (
        load_file(tmp_path / f"{folder}-peft" / "adapter_model.safetensors")
        for folder in ("run", "alone")
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4, err_msg=name)
    settings = [
        json.loads((tmp_path / f"{folder}-peft" / "adapter_config.json").read_text())
        for folder in ("run", "alone")
    ]
    assert settings[0] == settings[1]


@pytest.mark.parametrize(
    ("parallel", "changes", "said"),
    [
        ({"tensor": {"ranks": 3}}, {}, r"tensor.ranks \(3\) does not divide model.heads \(4\)"),
        (STAGES, {"kind": "KTO"}, r'objective KTO cannot.*kind = "SFT"'),
        (EXPERTS, {}, "model has no experts"),
        (STAGES, {"objective": {"kind": "SFT", "noise": 5.0}}, "noise needs whole rows"),
        (CONTEXT, {"lora": LORA | {"dropout": 0.1}}, "lora.dropout depends on positions"),
        (
            STAGES,
            {"lora": LORA | {"targets": ("layers.1.*",)}},
            r"layers 0 to 0 has no adapter.*lora.targets",
        ),
    ],
)
def test_unsupported_divisions_are_rejected(parallel, changes, said, tuning):
    with pytest.raises(ConfigError, match=said):
        prepare(tuning(parallel=parallel, **changes))


SIZES = {"layers": 2, "channels": 32, "heads": 4, "positions": 48, "vocabulary": 320}
DROPPING = DecoderConfig(**SIZES, feedforward=MIXTURE | {"capacity": 1.0})
OF_THREE = DecoderConfig(**SIZES, feedforward=MIXTURE | {"experts": 3})


@pytest.mark.parametrize(
    ("kind", "parallel", "model", "said"),
    [
        ("Classification", CONTEXT, DecoderConfig(**SIZES), "Classification needs whole rows"),
        ("KTO", CONTEXT, DROPPING, "a mixture of experts balances"),
        ("DPO", EXPERTS, DROPPING, "feedforward.capacity drops tokens"),
        ("Classification", EXPERTS, DROPPING, "Classification does not support divided"),
    ],
)
def test_models_are_refused_whose_rows_are_not_divided(kind, parallel, model, said, tuning):
    with pytest.raises(ValueError, match=said):
        tuning(kind, parallel).check_row_split(model)
    if kind == "DPO":  # one set of rows, in the order of the micro-batch
        tuning("KTO", parallel).check_row_split(model)


@pytest.mark.parametrize(
    ("parallel", "model", "said"),
    [
        (CONTEXT, DROPPING, "reference has experts"),
        (EXPERTS, OF_THREE, r"divide the 3 experts.*3"),
    ],
)
def test_references_are_refused_that_are_not_divided(parallel, model, said, tuning):
    with pytest.raises(ConfigError, match=said):
        tuning("KTO", parallel).check_reference(model)
    tuning("KTO", parallel).check_reference(DecoderConfig(**SIZES))
