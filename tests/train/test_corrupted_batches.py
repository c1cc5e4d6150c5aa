"""Objectives that corrupt rows, in runs: denominators, traces, and bits at any number of ranks."""

import json

import numpy as np
import pytest

from trainrig import cli
from trainrig.config import to_toml
from trainrig.errors import DataError
from trainrig.models.sampling import Sampling
from trainrig.posttrain.text_generator import TextGenerator
from trainrig.tokens.batches import IGNORE, TOKENS
from trainrig.trace import trace
from trainrig.train.pretrain import prepare
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

# Of each objective, what a run file says of it beside the usual.
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


@pytest.mark.parametrize("kind", KINDS)
def test_denominators_are_the_targets_of_the_rows_before_any_is_read(
    kind, make_job, corrupted_tokens, tmp_path
):
    for attend in ("window", "document"):
        changes = {"batches": {"attend": attend}, **OBJECTIVES[kind]}
        batches = make_job(tmp_path, tokens=corrupted_tokens, **changes).make_batches()
        for step in (0, 3, 11):
            counted = sum(int((micro.targets != IGNORE).sum()) for micro in batches.at(step))
            assert batches.denominators(step) == {TOKENS: counted}
            assert batches.targets(step) == counted > 0
        assert batches.data_before(3)["corruption"]["kind"] == kind


@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("kind", KINDS)
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
    assert traced.loss == metrics.series(job.folder)[-1]["train/loss"]
    micros = job.make_batches().at(2)
    of_samples = {
        int(sample): [ids.tolist()]
        for micro in micros
        for sample, ids in zip(micro.samples, micro.ids, strict=True)
    }
    shown = [each for each in traced.sequences if each.answer != "target"]
    assert len(shown) == len(of_samples)
    for sequence in shown:
        assert [list(sequence.ids)] == of_samples[sequence.sample]
        places = [document.place for document in sequence.documents]
        assert places == sorted(places)
        assert places[0] == 0
    assert sum(each.targets for each in traced.sequences) == job.make_batches().targets(2)
    assert len(list(traced.texts(tokens=None))) == len(traced.sequences)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_that_lacks_what_is_needed_is_refused_before_the_run(kind, make_run, tmp_path):
    with pytest.raises(DataError, match=rf"no special token .* which objective {kind} needs"):
        prepare(make_run(tmp_path, **OBJECTIVES[kind]))


def test_held_out_rows_are_the_same_each_time(make_job, corrupted_tokens, tmp_path):
    for kind in KINDS:
        job = make_job(tmp_path, tokens=corrupted_tokens, **OBJECTIVES[kind])
        first, second = job.make_held_out(), job.make_held_out()
        plain = make_job(tmp_path, tokens=corrupted_tokens).make_held_out()
        for one, other in zip(first.batches, second.batches, strict=True):
            for name in one.arrays:
                np.testing.assert_array_equal(one.arrays[name], other.arrays[name])
        assert any(
            one.ids.shape != other.ids.shape or (one.ids != other.ids).any()
            for one, other in zip(first.batches, plain.batches, strict=True)
        )


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
        with pytest.raises(DataError, match="give it a gap to fill, by --prefix and --suffix"):
            speaker.speak("the sea", sampling)
