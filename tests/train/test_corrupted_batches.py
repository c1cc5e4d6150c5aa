"""Objectives that corrupt rows, in runs: denominators, traces, bits at any number of ranks."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from trainrig import cli
from trainrig.config import to_toml
from trainrig.errors import DataError
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.estimate.training_check import estimate_pretraining
from trainrig.flops import count_encoder_decoder_flops, count_token_flops
from trainrig.models.architecture.decoder_config import count_parameters
from trainrig.models.decoder import Decoder, initialise
from trainrig.models.encoder import build_model
from trainrig.models.token_sampling import Sampling
from trainrig.objectives.denoising.mixture import MEMBERS
from trainrig.objectives.objective_interface import Corrupting, DeviceBatch, find_corruption
from trainrig.objectives.objective_settings import find_parts
from trainrig.posttrain.text_generator import TextGenerator
from trainrig.runs.step_trace import trace
from trainrig.tokens.batches import (
    IGNORE,
    PLACES,
    PREFIXES,
    TARGETS,
    TEXT_PLACES,
    TOKENS,
    MicroBatchSlot,
)
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.loss_table import LossTable
from trainrig.train.pretrain import open_batches, prepare
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_report.run_page import write_report

T5 = {
    "model": {
        "kind": "EncoderDecoder", "layers": 2, "channels": 32, "heads": 4, "positions": 48,
        "feedforward_channels": 64, "kv_heads": None,
    },
}  # fmt: skip
OBJECTIVES = {
    "FillInTheMiddle": {"objective": {"kind": "FillInTheMiddle", "rate": 0.8}},
    "SpanCorruption": {"objective": {"kind": "SpanCorruption"}, **T5},
}
KINDS = tuple(OBJECTIVES)
PREFIX = {"objective": {"kind": "PrefixLM"}}
OBJECTIVES["PrefixLM"] = PREFIX  # an objective without special tokens and gaps
MIXED = {
    "objective": {
        "kind": "MixtureOfObjectives",
        "members": (
            {"objective": {"kind": "CausalLM"}, "name": "next"},
            {"objective": {"kind": "FillInTheMiddle"}, "weight": 2.0},
            {"objective": {"kind": "PrefixLM"}},
        ),
    }
}
OBJECTIVES["MixtureOfObjectives"] = MIXED
OBJECTIVES["UL2"] = {"objective": {"kind": "UL2"}, **T5}  # assigned by micro-batch
OBJECTIVES["UL2 in a decoder"] = {
    "objective": {"kind": "UL2", "joined": True},
    "batches": {"sequence_length": 24},
}
DETECTION = {
    "model": {
        "kind": "Encoder", "layers": 2, "channels": 32, "heads": 4, "positions": 48,
        "embedding_channels": 16, "head": "replaced",
        "generator": {"layers": 1, "channels": 16, "heads": 2},
    },
    "objective": {"kind": "ReplacedTokenDetection"},
}  # fmt: skip
OBJECTIVES["UL2 of documents"] = {**OBJECTIVES["UL2"], "batches": {"attend": "document"}}
OBJECTIVES["UL2 of documents in a decoder"] = {
    "objective": {"kind": "UL2", "joined": True},
    "batches": {"sequence_length": 24, "attend": "document"},
}
OBJECTIVES["ReplacedTokenDetection"] = DETECTION
SEVERAL = {
    "model": {
        "layers": 2,
        "channels": 32,
        "heads": 4,
        "positions": 48,
        "further_heads": 2,
        "tie_embeddings": False,  # a separate head, gathered alone, ends several streams
    },
    "objective": {"kind": "MultiTokenPrediction", "further_weights": (0.5, 0.25)},
}
OBJECTIVES["MultiTokenPrediction"] = SEVERAL
# Whole runs of these are soak tests: the mixture includes the first two, UL2 the rest.
IN_OTHERS = ("FillInTheMiddle", "PrefixLM", "UL2 of documents", "UL2 in a decoder")
RUNS = [
    pytest.param(kind, marks=pytest.mark.soak) if kind in IN_OTHERS else kind for kind in OBJECTIVES
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_denominators_are_the_targets_of_the_rows_before_any_is_read(
    kind, make_job, corrupted_tokens, tmp_path
):
    for attend in ("window", "document"):
        changes = {**OBJECTIVES[kind]}
        changes["batches"] = {**changes.get("batches", {}), "attend": attend}
        batches = make_job(tmp_path, tokens=corrupted_tokens, **changes).make_batches()
        for step in (0, 3, 11):
            counted = sum(int((micro.targets != IGNORE).sum()) for micro in batches.at(step))
            found = batches.denominators(step)
            if kind == "ReplacedTokenDetection":
                text = sum(int(micro.arrays[TEXT_PLACES].sum()) for micro in batches.at(step))
                assert found.pop(PLACES) == text > counted
            for ahead in (2, 3) if kind == "MultiTokenPrediction" else ():
                arrays = (micro.arrays[f"ahead_{ahead}"] for micro in batches.at(step))
                there = sum(int((array != IGNORE).sum()) for array in arrays)
                assert 0 < found.pop(f"tokens_{ahead}") == there < counted
            assert found == {TOKENS: counted}
            assert batches.targets(step) == counted > 0
        assert batches.data_before(3)["corruption"]["kind"] == kind.split()[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_the_same_bits_at_any_number_of_workers(kind, ranks, make_job, corrupted_tokens, tmp_path):
    training = {"held_out": {"every": 2, "rows": 3}, "steps": 4}
    changes = {"tokens": corrupted_tokens, "training": training, **OBJECTIVES[kind]}
    (alone,) = ranks(1, "steps", job=make_job(tmp_path, **changes), count=4)
    for world in (2, 3):
        for found in ranks(world, "steps", job=make_job(tmp_path, **changes), count=4):
            assert found == alone
    (held_out,) = ranks(1, "held_out_loss", job=make_job(tmp_path, **changes))
    assert ranks(3, "held_out_loss", job=make_job(tmp_path, **changes)) == [held_out] * 3
    assert held_out.total > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "parallel", "model"),
    [
        (4, {"context": {"kind": "Gathered", "ranks": 2}, "pipeline": {"ranks": 2}}, {}),
        pytest.param(
            2, {"tensor": {"ranks": 2, "sequence_parallel": True}}, {}, marks=pytest.mark.soak
        ),
        pytest.param(
            2,
            {"expert": {"ranks": 2}},
            {"feedforward": {"kind": "MixtureOfExperts", "experts": 4, "active": 2}},
            marks=pytest.mark.soak,
        ),
    ],
    ids=["parts of rows in stages", "tensor", "experts"],
)
def test_middles_are_moved_in_any_layout(
    world, parallel, model, ranks, make_job, corrupted_tokens, tmp_path
):
    found = []
    for count, layout in ((1, {}), (world, parallel)):
        training = {"steps": 4, "parallel": {"kind": "FSDP", **layout}}
        changes = OBJECTIVES["FillInTheMiddle"] | {"training": training, "model": model}
        job = make_job(tmp_path / str(count), count, tokens=corrupted_tokens, **changes)
        ranks(count, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        found.append([line["train/loss"] for line in metrics.read_series(job.folder)])
    np.testing.assert_allclose(*found, rtol=0, atol=1e-5)
    assert len(found[0]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_a_trace_shows_the_rows_that_were_trained_on(
    kind, ranks, make_run, corrupted_tokens, tmp_path
):
    run = make_run(
        tmp_path / "run", tokens=corrupted_tokens, training={"steps": 3}, **OBJECTIVES[kind]
    )
    (tmp_path / "run").mkdir()
    job = prepare(run)
    ranks(2, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    (tmp_path / "run" / "run.toml").write_text(to_toml(run))
    traced = trace(str(tmp_path / "run"), 3)
    assert traced.log == "agrees"
    assert traced.loss == metrics.read_series(job.folder)[-1]["train/loss"]
    micros = job.make_batches().at(2)
    of_samples = {
        int(sample): [ids.tolist()]
        for micro in micros
        for sample, ids in zip(micro.samples, micro.ids, strict=True)
    }
    shown = [
        traced_sequence
        for traced_sequence in traced.sequences
        if traced_sequence.answer != "target"
    ]
    assert len(shown) == len(of_samples)
    for sequence in shown:
        assert [list(sequence.ids)] == of_samples[sequence.sample]
        places = [document.place for document in sequence.documents]
        assert places == sorted(places)
        assert places[0] == 0
    assert sum(
        traced_sequence.targets for traced_sequence in traced.sequences
    ) == job.make_batches().targets(2)
    assert len(list(traced.render_texts(tokens=None))) == len(traced.sequences)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_that_lacks_what_is_needed_is_refused_before_the_run(kind, make_run, tmp_path):
    with pytest.raises(DataError, match=rf"no special token .* which objective {kind} needs"):
        prepare(make_run(tmp_path, **OBJECTIVES[kind]))


@pytest.mark.slow
def test_held_out_rows_are_the_same_each_time(make_job, corrupted_tokens, tmp_path):
    for kind in KINDS:
        job = make_job(tmp_path, tokens=corrupted_tokens, **OBJECTIVES[kind])
        first = job.make_held_out()
        second = job.make_held_out()
        plain = make_job(tmp_path, tokens=corrupted_tokens).make_held_out()
        for one, other in zip(first.batches, second.batches, strict=True):
            for name in one.arrays:
                np.testing.assert_array_equal(one.arrays[name], other.arrays[name])
        assert any(
            one.ids.shape != other.ids.shape or (one.ids != other.ids).any()
            for one, other in zip(first.batches, plain.batches, strict=True)
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_fills_gaps(kind, ranks, make_job, corrupted_tokens, tmp_path, capsys):
    changes = {"tokens": corrupted_tokens, "training": {"steps": 3}, **OBJECTIVES[kind]}
    job = make_job(tmp_path / "run", **changes)
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    speaker = TextGenerator.open(job.folder, "cpu")
    sampling = Sampling(temperature=0.0, maximum_tokens=5)
    filled = speaker.fill("the sea is", "mirror", sampling)
    assert 0 <= filled.tokens <= 5
    assert filled == speaker.fill("the sea is", "mirror", sampling)
    asked = ["generate", job.folder, "--prefix", "the sea is", "--suffix", "mirror", "--json"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*asked, "--temperature", "0", "--tokens", "5"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["text"] == filled.text
    if kind == "SpanCorruption":
        with pytest.raises(DataError, match="give it a gap to fill"):
            speaker.speak("the sea", sampling)


def test_the_loss_of_each_objective_is_that_of_its_rows_by_hand(
    alone, make_job, corrupted_tokens, tmp_path
):
    job = make_job(tmp_path, tokens=corrupted_tokens, **MIXED)
    model = Decoder(job.model)
    initialise(model, 0)
    names = [member.called for member in job.objective.members]
    sums = dict.fromkeys(names, 0.0)
    counts = dict.fromkeys(names, 0)
    table = LossTable(job.objective, ("books", "web"), 4, torch.device("cpu"), double=True)
    for number, micro in enumerate(job.make_batches().at(0)):
        batch = DeviceBatch.copy(micro, torch.device("cpu"))
        computed = job.objective.compute(model, batch, {})
        table.fill(MicroBatchSlot(number, True, 0, closes=True), computed, batch.sources_B)
        logits = job.objective.predict(model, batch).logits.double()
        nats = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.arrays[TARGETS].flatten(), reduction="none"
        ).reshape(batch.arrays[TARGETS].shape)
        for row, of in enumerate(micro.arrays[MEMBERS].tolist()):
            sums[names[of]] += float(nats[row].detach().sum())
            counts[names[of]] += int((micro.targets[row] != IGNORE).sum())
    loss = table.reduce(job.make_batches().denominators(0))
    there = {f"loss/{name}": sums[name] / counts[name] for name in names if counts[name]}
    assert set(there) == {"loss/next", "loss/FillInTheMiddle", "loss/PrefixLM"}
    assert loss.diagnostics == pytest.approx(there, rel=1e-5)
    assert loss.total == pytest.approx(sum(sums.values()) / sum(counts.values()), rel=1e-5)


@pytest.mark.slow
def test_a_run_of_several_objectives_resumes_to_the_same_bits_and_reports_each(
    ranks, make_job, make_run, corrupted_tokens, tmp_path
):
    training = {"steps": 4, "held_out": {"every": 2, "rows": 12}, "checkpoints": {"every": 2}}
    folders = []
    for name, worlds in (("whole", (1,)), ("parts", (2, 1))):
        changes = {"tokens": corrupted_tokens, "training": training, **MIXED}
        job = make_job(tmp_path / name, **changes)
        for number, world in enumerate(worlds):
            newest, _ = find_newest_valid(RunFolder(job.folder))
            resume = newest.path if newest else None
            attempt = RunFolder(job.folder).take_attempt(newest.step if newest else 0)
            stop = {"told": (0, "train", 6)} if number + 1 < len(worlds) else {}
            ranks(world, "train", job=job, attempt=attempt, resume_from=resume, **stop)
        run_file = Path(job.folder) / "run.toml"
        run_file.write_text(to_toml(make_run(tmp_path / name, **changes)))
        folders.append(job.folder)
    whole, parts = (metrics.read_series(folder) for folder in folders)
    for one, other in zip(whole, parts, strict=True):
        assert {n: one[n] for n in one if "loss" in n} == {
            n: other[n] for n in other if "loss" in n
        }
    held_out, alone = (metrics.read_held_out_series(folder)[-1:] for folder in reversed(folders))
    unlike = {n: held_out[-1][n] for n in ("attempt", "time", "train/held_out_seconds")}
    assert held_out[-1] == alone[-1] | unlike
    page = Path(write_report(folders[1])).read_text()
    assert "Held-out loss by objective: " in page
    for name in ("next", "FillInTheMiddle", "PrefixLM"):
        assert f"eval/diagnostics/loss/{name}" in held_out[-1]
        assert any(f"train/diagnostics/loss/{name}" in line for line in whole)


def test_operations_of_a_mixture_are_those_of_its_members_by_their_shares(
    make_run, corrupted_tokens, tmp_path
):
    flops = {
        name: estimate_pretraining(
            make_run(tmp_path, tokens=corrupted_tokens, objective=objective), DeviceChoice()
        )["flops"]
        for name, objective in {
            "next": {"kind": "CausalLM"},
            "prefix": {"kind": "PrefixLM"},
            "mixed": MIXED["objective"],
        }.items()
    }
    assert flops["prefix"] != flops["next"]
    assert flops["mixed"] == pytest.approx(0.75 * flops["next"] + 0.25 * flops["prefix"])


def test_an_objective_that_does_not_fit_the_model_is_refused(make_run, corrupted_tokens, tmp_path):
    with pytest.raises(ValidationError, match=r'Decoder.*set model.kind = "EncoderDecoder"'):
        make_run(tmp_path, tokens=corrupted_tokens, objective={"kind": "SpanCorruption"})
    with pytest.raises(ValidationError, match=r'set objective.kind = "SpanCorruption"'):
        make_run(tmp_path, tokens=corrupted_tokens, **T5)
    members = (*MIXED["objective"]["members"], {"objective": {"kind": "SpanCorruption"}})
    with pytest.raises(ValidationError, match="objective SpanCorruption does not fit"):
        make_run(tmp_path, objective={"kind": "MixtureOfObjectives", "members": members})


def test_operations_are_counted_of_what_each_side_reads(make_run, corrupted_tokens, tmp_path):
    run = make_run(tmp_path, tokens=corrupted_tokens, **OBJECTIVES["SpanCorruption"])
    facts = estimate_pretraining(run, DeviceChoice())
    model = prepare(run).model
    rows = run.training.steps * run.batches.global_batch
    micro = open_batches(run.tokens, run.batches, None, make_corruption(run)).micro_batch(0, 0)
    of_row = count_encoder_decoder_flops(model, micro.ids.shape[1], micro.targets.shape[1])
    assert facts["flops"] == pytest.approx(rows * of_row)
    assert facts["parameters"] == count_parameters(model).total


@pytest.mark.parametrize("kind", ["UL2", "UL2 in a decoder"])
def test_operations_of_denoisers_are_those_of_their_rows(
    kind, make_run, corrupted_tokens, tmp_path
):
    """Count by the shapes of the trained rows, and for a prefix by the keys that it attends to."""
    run = make_run(tmp_path, tokens=corrupted_tokens, **OBJECTIVES[kind])
    model = prepare(run).model
    plain = open_batches(run.tokens, run.batches, None).micro_batch(0, 0)
    total = 0.0
    for share, part in find_parts(run.objective):
        assert isinstance(part, Corrupting)
        micro = part.make_corruption(Encoder.load(run.tokens)).apply(plain, 0)
        places = micro.ids.shape[1]
        written = int((micro.targets[0] != IGNORE).sum())
        if "decoder" in kind:
            seen = micro.arrays[PREFIXES][0].sum()
            keys = sum(max(query + 1, seen if query < seen else 0) for query in range(places))
            of_token = count_token_flops(model, places)
            causal = places * (places + 1) / 2
            row = places * of_token.projections + written * of_token.head
            total += share * 3 * (row + places * of_token.attention * keys / causal)
        else:
            total += share * count_encoder_decoder_flops(model, places, written)
    facts = estimate_pretraining(run, DeviceChoice())
    rows = run.training.steps * run.batches.global_batch
    assert facts["flops"] == pytest.approx(rows * total, rel=1e-12)


def test_operations_of_prefixes_are_counted_by_what_is_seen_and_predicted(
    make_run, corrupted_tokens, tmp_path
):
    run = make_run(tmp_path, tokens=corrupted_tokens, objective={"kind": "PrefixLM"})
    facts = estimate_pretraining(run, DeviceChoice())
    model = prepare(run).model
    positions = facts["positions"]
    length = 32
    cuts = [  # prefixes of 1 to 32 tokens, equally likely: keys attended to, and logits computed
        (p * p + sum(range(p + 1, length + 1)), length - p + 1) for p in range(1, length + 1)
    ]
    keys, predicted = (sum(counts) / length / length for counts in zip(*cuts, strict=True))
    plain = count_token_flops(model, length)
    causal = (length + 1) / 2
    of_token = plain.projections + plain.attention * keys / causal + plain.head * predicted
    assert facts["flops"] == pytest.approx(3 * of_token * positions, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": {"kind": "PrefixLM", "prefix_tokens": 32}}, "set at most 31"),
        (
            {**PREFIX, "model": {"attention": {"window": {"size": 5}}}},
            "model.attention.window uses",
        ),
        (
            {**PREFIX, "model": {"position_embedding": {"kind": "Alibi"}}},
            r"\(Alibi\) uses a kernel",
        ),
        ({**PREFIX, "model": {"kind": "Encoder"}}, "an encoder can see"),
        ({"objective": {"kind": "UL2"}}, "joined = true"),
        ({"objective": {"kind": "UL2", "joined": True}, **T5}, "set joined = false"),
        (  # 32 tokens with 5 spans, their sentinels twice, a mode and two ends
            {"objective": {"kind": "UL2", "joined": True}, "model": {"positions": 43}},
            r"\(32.*row of 44 positions\).*beyond the model's 43.*positions = 44",
        ),
        ({"objective": DETECTION["objective"]}, r"small generator.* set model.kind = .Encoder"),
        ({"objective": SEVERAL["objective"]}, r"further_heads \(0\) is not 2, .* = 2"),
        (
            {**SEVERAL, "batches": {"packing": {"kind": "BestFit"}}},
            'packed by BestFit; set batches.packing.kind = "Concatenate"',
        ),
        ({"model": SEVERAL["model"]}, "set model.further_heads = 0, or objective.kind"),
        ({"model": DETECTION["model"]}, "objective CausalLM does not train"),
        ({**DETECTION, "model": {**DETECTION["model"], "head": "tokens"}}, 'head = "replaced"'),
        (
            {
                **DETECTION,
                "model": {**DETECTION["model"], "generator": {"channels": 9, "heads": 2}},
            },
            r"generator: channels \(9\)",
        ),
        (
            {
                **DETECTION,
                "model": {
                    **DETECTION["model"],
                    "feedforward": {"kind": "MixtureOfExperts", "experts": 4, "active": 2},
                },
            },
            r"generator: a mixture.*choose a dense feedforward",
        ),
    ],
)
def test_prefixes_that_cannot_be_are_refused(changes, message, make_run, tmp_path):
    with pytest.raises(ValidationError, match=message):
        make_run(tmp_path, **changes)


def test_operations_of_detection_are_those_of_the_model_and_its_generator(
    make_run, corrupted_tokens, tmp_path
):
    run = make_run(tmp_path, tokens=corrupted_tokens, **DETECTION)
    facts = estimate_pretraining(run, DeviceChoice())
    model = prepare(run).model
    assert facts["parameters"] == sum(
        parameter.numel() for parameter in build_model(model).parameters()
    )
    assert facts["parameters_of_generator"] == count_parameters(model).generator > 0
    entries = model.vocabulary
    attended = 4 * 32  # two products of queries or weights by 32 keys
    of_layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * model.shape.feedforward_channels
    of_encoder = 2 * (16 * 32 + 2 * of_layer + 32 * 32 + 32) + 2 * 32 * attended
    generator = model.generator_model
    of_layer = 4 * 16 * 16 + 3 * 16 * generator.shape.feedforward_channels
    of_generator = 2 * (of_layer + 16 * 16 + 0.15 * entries * 16) + 16 * attended
    expected = 3 * (of_encoder + of_generator) * facts["positions"]
    assert facts["flops"] == pytest.approx(expected, rel=1e-12)


def test_operations_of_further_heads_are_their_layers_and_logits(
    make_run, corrupted_tokens, tmp_path
):
    run = make_run(tmp_path, tokens=corrupted_tokens, **SEVERAL)
    facts = estimate_pretraining(run, DeviceChoice())
    model = prepare(run).model
    plain = make_run(tmp_path, tokens=corrupted_tokens)
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * model.shape.feedforward_channels
    logits = model.vocabulary * 32 * (31 + 30) / 32
    added = 3 * (2 * (2 * layer + logits) + 2 * 4 * 32 * 33 / 2) * facts["positions"]
    assert facts["flops"] == pytest.approx(
        estimate_pretraining(plain, DeviceChoice())["flops"] + added, rel=1e-12
    )
    assert facts["parameters"] == sum(
        parameter.numel() for parameter in build_model(model).parameters()
    )


def make_corruption(run):
    return find_corruption(run.objective, Encoder.load(run.tokens), 32)
