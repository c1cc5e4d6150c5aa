import pytest
import torch

from trainrig.errors import DataError, OutputTaken
from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint
from trainrig.train import checkpoint
from trainrig.train.checkpoint import open_model


def test_transformers_computes_what_our_model_does(fresh, encoder, tmp_path):
    transformers = pytest.importorskip("transformers")
    facts = export_checkpoint(fresh, str(tmp_path / "hub"), HubFolder())
    assert (facts["step"], facts["checkpoint"]) == (0, open_model(fresh).path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    text = "is the sea a grey mirror? 猫"
    ids = torch.tensor([encoder.encode_batch([text])[0].tolist()])
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids[0].tolist()
    with torch.inference_mode():
        ours = open_model(fresh).build()(ids).logits
        torch.testing.assert_close(theirs(ids).logits, ours, rtol=0, atol=1e-5)
        assert ours.std() > 1e-3  # otherwise everything would be close


def test_export_and_import_keep_every_bit_of_the_model(fresh, tmp_path):
    export_checkpoint(fresh, str(tmp_path / "hub"), HubFolder())
    facts = import_checkpoint(str(tmp_path / "hub"), str(tmp_path / "run"))
    before = open_model(fresh)
    after = open_model(str(tmp_path / "run"))
    assert facts["checkpoint"] == after.path
    assert facts["parameters"] == sum(t.numel() for t in before.weights.values())
    assert after.config.shape == before.config.shape
    assert (after.step, after.tokenizer) == (0, before.tokenizer)
    assert after.weights.keys() == before.weights.keys()
    assert all(torch.equal(after.weights[name], before.weights[name]) for name in before.weights)


def test_a_smaller_dtype_is_written_and_read_back_as_float32(fresh, tmp_path):
    export_checkpoint(fresh, str(tmp_path / "hub"), HubFolder(dtype="bfloat16"))
    import_checkpoint(str(tmp_path / "hub"), str(tmp_path / "run"))
    before = open_model(fresh)
    after = open_model(str(tmp_path / "run"))
    for name, value in before.weights.items():
        assert torch.equal(after.weights[name], value.bfloat16().float())


def test_a_model_is_not_imported_over_something_else(fresh, tmp_path):
    export_checkpoint(fresh, str(tmp_path / "hub"), HubFolder())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(OutputTaken, match="run: not empty"):
        import_checkpoint(str(tmp_path / "hub"), str(tmp_path / "run"))


def test_there_must_be_something_to_export(tmp_path):
    with pytest.raises(DataError, match="nowhere: no such folder"):
        export_checkpoint(str(tmp_path / "nowhere"), str(tmp_path / "hub"), HubFolder())
    assert not (tmp_path / "hub").exists()


def test_an_import_that_was_stopped_leaves_nothing_in_the_way_of_the_next(
    fresh, tmp_path, monkeypatch
):
    export_checkpoint(fresh, str(tmp_path / "hub"), HubFolder())
    out = str(tmp_path / "run")
    with monkeypatch.context() as patched:
        whole = checkpoint.write_model

        def stopped(*arguments):
            whole(*arguments)
            raise KeyboardInterrupt

        patched.setattr(checkpoint, "write_model", stopped)
        with pytest.raises(KeyboardInterrupt):
            import_checkpoint(str(tmp_path / "hub"), out)
    assert import_checkpoint(str(tmp_path / "hub"), out)["output"] == out
