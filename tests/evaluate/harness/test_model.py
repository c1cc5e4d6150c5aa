"""trainrig's model class for the harness gives the engine's answers."""

import types

import pytest

from trainrig.errors import ConfigError
from trainrig.evaluate.evaluation_verbs import run_harness
from trainrig.train.checkpoint import write_model


def request(*args):
    return types.SimpleNamespace(args=args)


@pytest.fixture
def harness_model(tmp_path, tiny_model, tiny_encoder):
    module = pytest.importorskip("trainrig.evaluate.harness.model", exc_type=ImportError)
    write_model(
        str(tmp_path / "run"), tiny_model.config, tiny_encoder.text, tiny_model.state_dict()
    )
    return module.HarnessModel(checkpoint=str(tmp_path / "run"), batch_size=4, device="cpu")


def test_likelihoods_and_texts_add_up(harness_model):
    pairs = [("the sea", " is grey"), ("the sea", " because"), ("", "the sea is grey")]
    found = harness_model.loglikelihood([request(*pair) for pair in pairs])
    assert all(nats < 0 and not greedy for nats, greedy in found)
    (whole,) = harness_model.loglikelihood_rolling([request("the sea is grey")])
    assert whole == pytest.approx(found[2][0], abs=1e-4)


def test_answers_end_at_the_tasks_stop_strings(harness_model):
    settings = {"until": ["e"], "max_gen_toks": 12, "do_sample": False}
    asked = [request("the sea", settings), request("grey", {"max_gen_toks": 3})]
    found = harness_model.generate_until(asked)
    assert "e" not in found[0]
    with pytest.raises(ValueError, match="only greedy generation"):
        harness_model.generate_until([request("x", {"do_sample": True})])


def test_where_the_harness_is_not_installed_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.__main__", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[lm-eval\]'"):
        run_harness(["ls"])
