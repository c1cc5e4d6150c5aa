"""Tuning by workers that share layers or rows, or have some layers each: as one worker has it."""

import itertools
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from trainrig.check import describe
from trainrig.errors import ConfigError
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.posttrain.peft_adapter.adapter_export import export_adapter
from trainrig.posttrain.preference_rows import needs_references
from trainrig.posttrain.references import compute_references
from trainrig.posttrain.run_file import FineTuning
from trainrig.posttrain.sft import posttrain, prepare
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
# Objectives of answers: of sums of log-probabilities, by a reference that is stored and by one
# beside, and of scores; of means over tokens; of scores at several places.
ANSWERS = ("DPO", "KTO", "Reward")
MORE_ANSWERS = (*ANSWERS, "ORPO", "SimPO", "ProcessReward")
LORA = {"rank": 4}
MIXTURE = {"kind": "MixtureOfExperts", "experts": 4, "active": 2}


@pytest.fixture
def tuning(fresh, encode_rows, tmp_path):
    """`tuning("SFT", TENSOR, lora={…})`: a run file on the rows of that objective."""
    encoded = set()

    def make(kind="SFT", parallel=None, workers=None, output="run", start=fresh, **changes):
        rows, name = ROWS.get(kind, (PAIRS, "pairs"))
        if name not in encoded:
            encode_rows(rows, name, rows=name, held_out=0.2, sequence_length=48)
            encoded.add(name)
        degrees = [each["ranks"] for each in (parallel or {}).values()]
        batches = {"sequence_length": 48, "global_batch": 4, "micro_batch": 2}
        if name == "conversations":  # rows as wide as their longest: of odd widths, too
            batches["packing"] = "none"
        given = {
            "stage": "posttrain",
            "checkpoint": start,
            "conversations": str(tmp_path / name),
            "output": str(tmp_path / output),
            "workers": workers or int(np.prod(degrees, dtype=int)),
            "batches": batches,
            "objective": {"kind": kind},
            "training": {
                "steps": 6,
                "optimizer": {"kind": "AdamW", "lr": 0.01},
                "schedule": {"kind": "Constant"},
                "held_out": {"every": 3, "rows": 4},
                "parallel": {"kind": "FSDP", **(parallel or {})},
            },
        }
        return FineTuning.model_validate(given | changes)

    return make


def trained(output):
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
    theirs = trained(expected)
    for name, value in trained(found).items():
        np.testing.assert_allclose(value, theirs[name], rtol=0, atol=1e-4, err_msg=name)


def soak(*values):
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "parallel", "lora"),
    [
        ("SFT", IN_PLACES, LORA),
        soak("SFT", IN_PLACES, None),
        soak("SFT", TENSOR, LORA),
        soak("SFT", STAGES, None),
        soak("SFT", STAGES, LORA),
        ("SFT", CONTEXT, LORA),
        soak("SFT", CONTEXT, None),
        soak("SFT", CONTEXT | IN_PLACES, LORA),
        soak("SFT", TENSOR | STAGES, LORA),
        soak("DPO", IN_PLACES, LORA),
        soak("DPO", TENSOR, None),
        soak("KTO", IN_PLACES, LORA),
        ("Reward", IN_PLACES, LORA),
        soak("Reward", TENSOR, None),
        ("DPO", CONTEXT, LORA),
        soak("DPO", CONTEXT | IN_PLACES, LORA),
        soak("KTO", RING, LORA),
        soak("KTO", CONTEXT | IN_PLACES, None),
        soak("Reward", CONTEXT, LORA),
        soak("Reward", CONTEXT | TENSOR, LORA),
        soak("ProcessReward", CONTEXT, None),  # adapters of it drift to 1e-5 at this rate
        soak("DPO", STAGES, LORA),
        soak("Reward", STAGES, LORA),
        ("Reward", STAGES, None),  # whose head is drawn on the last
        soak("ORPO", TENSOR | STAGES, LORA),
        ("DPO", CONTEXT | STAGES, LORA),
        soak("SFT", CONTEXT | STAGES, LORA),
        soak("SFT", IN_PLACES | STAGES, LORA),
        soak("Reward", CONTEXT | STAGES, None),
        soak("Reward", IN_PLACES | STAGES, None),
        soak("ProcessReward", RING | STAGES, None),
        soak("ORPO", CONTEXT | IN_PLACES | STAGES, LORA),
    ],
)
def test_it_is_what_one_worker_makes_of_the_rows(
    kind, parallel, lora, tuning, tmp_path, without_ray
):
    posttrain(tuning(kind, lora=lora, output="alone"))
    posttrain(tuning(kind, parallel, lora=lora))
    assert_close(tmp_path / "run", tmp_path / "alone")


@pytest.fixture
def mixture(encoder, tmp_path):
    """A checkpoint of a mixture of experts."""
    sizes = {"layers": 2, "channels": 32, "heads": 4, "kv_heads": 2, "positions": 48}
    model = Decoder(DecoderConfig(**sizes, vocabulary=320, feedforward=MIXTURE))
    initialise(model, seed=1)
    folder = str(tmp_path / "mixture")
    write_model(folder, model.config, encoder.text, model.state_dict())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "lora"),
    [("SFT", LORA), soak("SFT", None), soak("DPO", LORA), soak("KTO", LORA), soak("Reward", LORA)],
)
def test_so_it_is_with_divided_experts(kind, lora, mixture, tuning, tmp_path, without_ray):
    posttrain(tuning(kind, lora=lora, output="alone", start=mixture))
    posttrain(tuning(kind, EXPERTS, lora=lora, start=mixture))
    assert_close(tmp_path / "run", tmp_path / "alone")


@pytest.fixture
def learn_answers(tuning, ranks):
    """`learn_answers(("DPO",), CONTEXT, 2)`: what two ranks make of 4 steps of each objective, on
    rows of odd widths, whose answers may all lie on one rank."""

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
            first[kind]["weights"] |= other[kind]["weights"]  # those of other stages, too
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
    """Two of a row, and two replicas of two."""
    alone = learn_answers(MORE_ANSWERS, None, 1)
    assert_as_learnt(learn_answers(MORE_ANSWERS, CONTEXT, 2), alone)
    assert_as_learnt(learn_answers(ANSWERS, RING, 4), alone)


STAGED_ANSWERS = tuple(kind for kind in MORE_ANSWERS if kind != "KTO")


@pytest.mark.slow
def test_workers_with_some_layers_learn_from_answers_as_one_does(learn_answers):
    """Two stages, of a head that shares the embedding and of one for scores; and with shared
    layers."""
    alone = learn_answers(STAGED_ANSWERS, None, 1)
    assert_as_learnt(learn_answers(STAGED_ANSWERS, STAGES, 2), alone)
    assert_as_learnt(learn_answers(("DPO", "Reward"), STAGES | TENSOR, 4), alone)


@pytest.mark.slow
def test_workers_that_divide_experts_learn_from_answers_as_one_does(learn_answers, mixture):
    """Two of a micro-batch, and two replicas of two; of the rows held out, one has none."""
    alone = learn_answers(MORE_ANSWERS, None, 1, start=mixture)
    assert_as_learnt(learn_answers(MORE_ANSWERS, EXPERTS, 2, start=mixture), alone)
    assert_as_learnt(learn_answers(("DPO", "KTO"), EXPERTS, 4, start=mixture), alone)


@pytest.mark.slow
def test_stages_of_a_mixture_leave_out_padding_as_one_worker_does(learn_answers, mixture):
    """Rows of odd widths: all stages have to know which of their places are padding."""
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
        load_file(tmp_path / f"{each}-peft" / "adapter_model.safetensors")
        for each in ("run", "alone")
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4, err_msg=name)
    settings = [
        json.loads((tmp_path / f"{each}-peft" / "adapter_config.json").read_text())
        for each in ("run", "alone")
    ]
    assert settings[0] == settings[1]


@pytest.mark.parametrize(
    ("parallel", "changes", "said"),
    [
        ({"tensor": {"ranks": 3}}, {}, r"tensor.ranks \(3\) does not divide model.heads \(4\)"),
        (STAGES, {"kind": "KTO"}, r'objective KTO cannot be computed in stages.*kind = "SFT"'),
        (EXPERTS, {}, "the model has no experts to divide"),
        (STAGES, {"objective": {"kind": "SFT", "noise": 5.0}}, "noise needs whole rows"),
        (CONTEXT, {"lora": LORA | {"dropout": 0.1}}, "lora.dropout depends on positions"),
        (
            STAGES,
            {"lora": LORA | {"targets": ("layers.1.*",)}},
            "the stage of layers 0 to 0 has no adapter to train; add a layer of it to lora.targets",
        ),
    ],
)
def test_what_is_not_divided_is_refused(parallel, changes, said, tuning):
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
        (CONTEXT, DROPPING, "the reference has experts with a capacity"),
        (EXPERTS, OF_THREE, "does not divide the 3 experts of a layer of the reference; use 3"),
    ],
)
def test_references_are_refused_that_are_not_divided(parallel, model, said, tuning):
    with pytest.raises(ConfigError, match=said):
        tuning("KTO", parallel).check_reference(model)
    tuning("KTO", parallel).check_reference(DecoderConfig(**SIZES))
