"""Sections of a model card, compared with expected texts."""

from pathlib import Path

import pytest

from trainrig import manifest, storage
from trainrig.evaluate import model_card
from trainrig.evaluate.data_lineage import LineageNode
from trainrig.evaluate.scorecards import MetricScore, RowsSeen, Scorecard, SourceScore, TaskScore


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a checkpoint of a run with the parts that a card reads."""
    claim = manifest.Claim(
        stage="pretrain",
        fingerprint="f",
        config={"training": {"steps": 300}},
        inputs={"tokens": "0123456789abcdef01"},
        environment={},
    )
    storage.write(str(tmp_path / "run" / manifest.CLAIM), claim.model_dump_json().encode())
    path = str(tmp_path / "run/checkpoints/step_00000300/attempt-0001")
    monkeypatch.setattr(model_card.checkpoint, "resolve", lambda given: path)
    tokens = LineageNode("tokens", "0123456789abcdef01", "t", "tokenize", counts={"documents": 9})
    root = LineageNode("checkpoint", "c", path, "pretrain", inputs=(tokens,))
    monkeypatch.setattr(model_card, "trace_lineage", lambda given: root)
    return path


def test_the_card_has_tasks_text_and_the_run(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracy = MetricScore(value=0.5, error=0.01, low=0.48, high=0.52)
    seen = RowsSeen(looked_for=90, seen=3, without=None)
    score = TaskScore(metric="acc|norm", metrics={"acc|norm": accuracy}, rows=1_000, groups=1_000,
                      few_shot=5, chat=False, chance=0.25, contamination=seen)  # fmt: skip
    text = SourceScore(loss=1.0, perplexity=2.71828, bits_per_byte=0.91, tokens=12_000, bytes=9)
    card = Scorecard(checkpoint=checkpoint, step=300, scores={"web": text}, tasks={"arc": score})
    monkeypatch.setattr(model_card, "read_scorecard", lambda folder: card)
    lines = model_card.describe_checkpoint("run", ["scores"]).splitlines()
    bounds = "0.4800 to 0.5200"
    others = "1,000 | 5 | 0.2500 | 3 of 90"
    assert f"| arc | acc&#124;norm | 0.5000 ± 0.0100 | {bounds} | {others} |" in lines
    assert "| web | 0.9100 | 2.718 | 12,000 |" in lines
    assert "Made by `trainrig pretrain`, from inputs with these fingerprints:" in lines
    assert "| tokens | `0123456789abcdef` |" in lines
    assert '    "steps": 300' in lines
    assert "| tokens | tokenize | `0123456789abcdef` | documents: 9 |" in lines


def test_a_model_that_no_run_made_has_no_training_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_card.checkpoint, "resolve", lambda given: str(tmp_path / "a/b/c"))
    assert model_card.describe_checkpoint("imported") == ""
