"""Pseudo-perplexity of encoders, compared with a loop that masks one token at a time."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.engine.opened_models import OpenedModel
from trainrig.evaluate.evaluation import evaluate
from trainrig.evaluate.evaluation_run_file import Evaluation, TaskChoice
from trainrig.evaluate.held_out_perplexity import score_masked_windows
from trainrig.evaluate.scorecards import read_scorecard
from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.decoder import initialise
from trainrig.models.encoder import build_model
from trainrig.posttrain.text_generator import TextGenerator
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.checkpoint import write_model

WINDOW = {"window": {"size": 9, "pattern": ("global", "local")}}
CONFIG = EncoderConfig.model_validate(
    {"layers": 2, "channels": 32, "heads": 4, "positions": 48, "vocabulary": 384,
     "initial_std": 0.3, "attention": WINDOW}
)  # fmt: skip


@pytest.fixture(scope="module")
def model():
    model = build_model(CONFIG)
    initialise(model, seed=5)
    return model.eval()


@pytest.fixture
def run(corrupted_tokens, model, tmp_path):
    encoder = Encoder.load(corrupted_tokens)
    write_model(str(tmp_path / "run"), CONFIG, encoder.text, model.state_dict())
    return Evaluation(
        checkpoint=str(tmp_path / "run"),
        tokens=corrupted_tokens,
        output=str(tmp_path / "card"),
        sequence_length=32,
        tokens_per_source=80,
    )


@torch.no_grad()
def test_each_token_is_masked_alone(model):
    dice = np.random.default_rng(3)
    windows = [dice.integers(0, 300, 20), dice.integers(0, 300, 7)]
    windows[0][4] = 2  # a special token, which is seen but not a target
    lengths = dice.integers(1, 5, 384)
    nats = 0.0
    right = 0
    count = 0
    size = 0
    for ids in windows:
        for place, there in enumerate(ids):
            if there in (0, 2):
                continue
            hidden = torch.from_numpy(ids.copy())
            hidden[place] = 299
            logits = model(hidden[None]).logits[0, place].double()
            nats -= float(logits.log_softmax(0)[there])
            right += int(logits.argmax() == there)
            count = count + 1
            size = size + int(lengths[there])
    for micro_batch in (1, 6):
        found = score_masked_windows(model, iter(windows), 299, [0, 2], lengths, micro_batch)
        assert found.loss == pytest.approx(nats / count, rel=1e-5)
        assert found.perplexity == pytest.approx(math.exp(nats / count), rel=1e-4)
        assert found.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-5)
        assert (found.tokens, found.bytes, found.accuracy) == (count, size, right / count)


@pytest.mark.slow
def test_a_scorecard_of_an_encoder_has_its_accuracy(run):
    evaluate(run)
    scores = read_scorecard(run.output).scores
    assert scores and all(0 <= score.accuracy <= 1 for score in scores.values())
    assert all(0 < score.tokens <= 80 for score in scores.values())
    assert "accuracy" in Path(run.output, "report.html").read_text()


def test_an_encoder_is_refused_for_generation_and_causal_tasks(run, tokens, model, tmp_path):
    with pytest.raises(ConfigError, match="encoder, which cannot continue"):
        OpenedModel.load(run.model_copy(update={"tasks": (TaskChoice(task="piqa"),)}))
    with pytest.raises(DataError, match="encoder, which does not"):
        TextGenerator.open(run.checkpoint)
    encoder = Encoder.load(tokens)  # this tokenizer has no mask token
    write_model(str(tmp_path / "plain"), CONFIG, encoder.text, model.state_dict())
    changed = {"checkpoint": str(tmp_path / "plain"), "tokens": tokens}
    with pytest.raises(DataError, match="role 'mask'"):
        evaluate(run.model_copy(update=changed))
