"""Masked prediction in runs: the same bits at any number of ranks and after a kill.

Span corruption and replaced tokens are included, and decoders that become encoders.
"""

import logging
import signal

import numpy as np
import pytest

from trainrig.errors import ConfigError, DataError
from trainrig.tokens.batches import IGNORE, TOKENS
from trainrig.train import checkpoint
from trainrig.train.pretrain import prepare
from trainrig.train.run.run_folder import RunFolder

ENCODER = {"kind": "Encoder", "attention": {"window": {"size": 9, "pattern": ("global", "local")}}}
MASKED = {"model": ENCODER, "objective": {"kind": "MaskedLM", "unit": "word"}}
SPANS = {
    "model": {
        "kind": "EncoderDecoder", "layers": 2, "channels": 32, "heads": 4, "positions": 48,
        "feedforward_channels": 64, "kv_heads": None,
    },
    "objective": {"kind": "SpanCorruption"},
}  # fmt: skip
DETECTION = {
    "model": {
        **ENCODER, "layers": 2, "channels": 32, "heads": 4, "positions": 48,
        "embedding_channels": 16, "head": "replaced",
        "generator": {"channels": 16, "heads": 2},
    },
    "objective": {"kind": "ReplacedTokenDetection"},
}  # fmt: skip
SEVERAL = {
    "model": {"layers": 2, "channels": 32, "heads": 4, "positions": 48, "further_heads": 1},
    "objective": {"kind": "MultiTokenPrediction", "further_weights": (0.5,)},
}
BY_DOCUMENT = {"batches": {"attend": "document"}}


@pytest.fixture
def make_masked(make_job, corrupted_tokens, tmp_path):
    def make(name: str = "run", **changes):
        return make_job(tmp_path / name, tokens=corrupted_tokens, **MASKED | BY_DOCUMENT | changes)

    return make


def test_denominators_are_the_hidden_tokens_before_any_is_read(make_masked):
    batches = make_masked().make_batches()
    for step in (0, 5):
        counted = sum(int((micro.targets != IGNORE).sum()) for micro in batches.at(step))
        assert batches.denominators(step) == {TOKENS: counted}
        assert counted > 0
    assert batches.data_before(3)["corruption"]["kind"] == "MaskedLM"


@pytest.mark.slow
def test_the_same_bits_at_one_two_and_three_workers(ranks, make_masked):
    (alone,) = ranks(1, "steps", job=make_masked(), count=4)
    for world in (2, 3):
        for found in ranks(world, "steps", job=make_masked(), count=4):
            assert found == alone


def read_weights(job) -> dict[str, np.ndarray]:
    opened = checkpoint.open_model(job.folder)
    return {name: value.numpy() for name, value in opened.weights.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "own"),
    [
        pytest.param({}, "head_bias", marks=pytest.mark.soak),
        (SPANS, "encoder_bias.weight"),
        pytest.param(
            DETECTION, "generator.layers.1.attention.query.weight", marks=pytest.mark.soak
        ),
        (SEVERAL, "layers.1.attention.query.weight"),
    ],
    ids=["masked", "spans", "replaced", "several"],
)
def test_a_run_whose_rank_is_killed_ends_with_the_bytes_of_one_that_is_not(
    changes, own, mortal_ranks, ranks, make_masked
):
    """Two ranks, one of which dies between checkpoints; then three continue."""
    changes = {**changes, "training": {"steps": 6, "checkpoints": {"every": 2}}}
    whole = make_masked("whole", **changes)
    cut = make_masked("cut", **changes)
    ranks(1, "train", job=whole, attempt=RunFolder(whole.folder).take_attempt(0))
    attempt = RunFolder(cut.folder).take_attempt(0)
    processes = mortal_ranks.start(2, "train", job=cut, attempt=attempt, fault=(1, "die", 5))
    assert processes[1].wait() == -signal.SIGKILL
    mortal_ranks.end()
    newest, _ = checkpoint.find_newest_valid(RunFolder(cut.folder))
    step, path = (newest.step, newest.path) if newest else (0, None)  # None: no save was complete
    assert step < 6
    attempt = RunFolder(cut.folder).take_attempt(step)
    ranks(3, "train", job=cut, attempt=attempt, resume_from=path)
    expected = read_weights(whole)
    found = read_weights(cut)
    assert own in expected
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.slow
def test_a_decoder_becomes_an_encoder_only_on_request(
    ranks, make_job, make_run, corrupted_tokens, tmp_path, caplog
):
    decoder = make_job(tmp_path / "decoder", tokens=corrupted_tokens, training={"steps": 3})
    ranks(1, "train", job=decoder, attempt=RunFolder(decoder.folder).take_attempt(0))
    changes = {
        "tokens": corrupted_tokens,
        "continue_from": decoder.folder,
        "objective": {"kind": "MaskedLM"},
        "training": {"steps": 3, "optimizer": {"kind": "AdamW", "lr": 1e-9}},
    }

    def run(**more):
        made = make_run(tmp_path / "encoder", **changes | more)
        return made.model_copy(update={"model": None})

    with pytest.raises(ConfigError, match=r"continue_from.*not see.*="):
        prepare(run(convert=True).model_copy(update={"convert": False}))
    with caplog.at_level(logging.WARNING):
        job = prepare(run(convert=True))
    assert "each token also sees later tokens" in caplog.text
    assert job.model.bidirectional
    (tmp_path / "encoder").mkdir()
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    before = read_weights(decoder)
    after = read_weights(job)
    for name, value in before.items():  # a rate of 0 leaves them unchanged
        np.testing.assert_allclose(after[name], value, atol=1e-6)
    with pytest.raises(ConfigError, match="an encoder already"):
        prepare(run(convert=True, continue_from=job.folder))


def test_objectives_that_a_model_cannot_learn_are_refused(make_run, tmp_path, corrupted_tokens):
    with pytest.raises(ValueError, match=r"encoder can see.*objective\.kind"):
        make_run(tmp_path, model=ENCODER)
    with pytest.raises(ValueError, match=r'set model\.kind = "Encoder"'):
        make_run(tmp_path, objective={"kind": "MaskedLM"})
    with pytest.raises(ValueError, match="convert makes an encoder"):
        make_run(tmp_path, convert=True)
    with pytest.raises(DataError, match=r"no special token <\|mask\|>"):
        prepare(make_run(tmp_path, **MASKED))
