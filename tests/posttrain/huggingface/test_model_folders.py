from pathlib import Path

import pytest
import torch

from trainrig.errors import DataError, OutputTaken
from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint
from trainrig.posttrain.model_source import open_initial_model
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


def test_an_export_is_kept_only_if_it_holds_exactly_this_model(fresh, tmp_path):
    out = tmp_path / "hub"
    export_checkpoint(fresh, str(out), HubFolder(), keep=True)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()}
    export_checkpoint(fresh, str(out), HubFolder(), keep=True)
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()}
    assert after == before
    with pytest.raises(OutputTaken, match="already holds a model"):
        export_checkpoint(fresh, str(out), HubFolder(dtype="bfloat16"), keep=True)
    (out / "config.json").unlink()  # the last file of an export, which was killed before it
    export_checkpoint(fresh, str(out), HubFolder(), keep=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        name: data for name, (data, _) in before.items()
    }


def test_an_import_is_kept_if_it_is_whole_and_started_over_if_it_was_killed(fresh, tmp_path):
    hub = str(tmp_path / "hub")
    run = tmp_path / "run"
    export_checkpoint(fresh, hub, HubFolder())
    first = import_checkpoint(hub, str(run), keep=True)
    assert import_checkpoint(hub, str(run), keep=True) == first
    (manifest,) = run.glob("checkpoints/*/*/manifest.json")
    manifest.unlink()  # the last file of an import
    assert import_checkpoint(hub, str(run), keep=True) == first
    other = str(tmp_path / "other")
    export_checkpoint(fresh, other, HubFolder(dtype="bfloat16"))
    with pytest.raises(OutputTaken, match="run: already holds another model"):
        import_checkpoint(other, str(run), keep=True)
    (manifest,) = run.glob("checkpoints/*/*/manifest.json")
    manifest.unlink()
    (run / "notes.txt").write_text("mine")
    with pytest.raises(OutputTaken, match="run: not empty"):
        import_checkpoint(hub, str(run), keep=True)


def test_a_folder_of_other_checkpoints_is_no_import_and_stays(fresh, tmp_path):
    hub = str(tmp_path / "hub")
    export_checkpoint(fresh, hub, HubFolder())
    killed = "checkpoints/step_00000000/attempt-0001/weights"
    for number, names in enumerate((("checkpoints/epoch=3.ckpt",), (killed, ".notes"))):
        out = tmp_path / str(number)
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text("mine")
        with pytest.raises(OutputTaken, match=f"{number}: not empty"):
            import_checkpoint(hub, str(out), keep=True)
        assert (out / names[-1]).read_text() == "mine"


def test_tuning_starts_over_an_import_that_was_killed(fresh, tmp_path):
    hub = str(tmp_path / "hub")
    export_checkpoint(fresh, hub, HubFolder())
    path = open_initial_model(hub, str(tmp_path / "tuned"))
    manifest = Path(path) / "manifest.json"
    manifest.unlink()
    assert open_initial_model(hub, str(tmp_path / "tuned")) == path
    assert manifest.exists()


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
