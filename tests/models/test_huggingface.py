"""Hugging Face folders: refusals, files that are kept, and memory use."""

import json
import re
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support import brought

from trainrig import storage
from trainrig.errors import DataError, OutputTaken
from trainrig.models.added_tokens import add_special_tokens
from trainrig.models.families.safetensors_files import split_into_files
from trainrig.models.huggingface import HubFolder, open_folder, write_folder
from trainrig.tokens.special_tokens import TokenizerFiles, find_special_tokens

FILES = TokenizerFiles(brought.brought("gpt2").tokenizer)  # 301 entries, without further files


@pytest.fixture
def exported(build, tmp_path):
    """Return a tied model and the folder written from it."""
    model = build(vocabulary=320)
    out = tmp_path / "out"
    write_folder(str(out), model.config, model.state_dict().__getitem__, FILES)
    return model, out


def rewrite(path: Path, **changes) -> None:
    """Change keys of a JSON file; the value `...` removes a key."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))


def test_the_bytes_are_a_function_of_the_arguments(exported, build, tmp_path):
    model, out = exported
    again = tmp_path / "again"
    write_folder(str(again), model.config, model.state_dict().__getitem__, FILES)
    files = sorted(path.name for path in out.iterdir())
    assert files == sorted(path.name for path in again.iterdir())
    assert all((out / name).read_bytes() == (again / name).read_bytes() for name in files)
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_older_and_newer_names_can_be_mixed(exported):
    config = json.loads((exported[1] / "config.json").read_text())
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10_000.0}
    assert (config["rope_theta"], config["rope_scaling"]) == (10_000.0, None)
    assert config["dtype"] == config["torch_dtype"] == "float32"
    assert config["eos_token_id"] == config["bos_token_id"] == 300


def test_files_are_cut_where_they_would_be_too_large(build, tmp_path):
    model = build(vocabulary=320)
    state = model.state_dict()
    settings = HubFolder(file_bytes=30_000, dtype="bfloat16")
    write_folder(str(tmp_path), model.config, state.__getitem__, FILES, settings)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files == sorted(path.name for path in tmp_path.glob("*.safetensors"))
    sizes = {}
    for file in files:
        tensors = load_file(tmp_path / file)
        sizes |= {name: tensor.nbytes for name, tensor in tensors.items()}
        assert all(index["weight_map"][name] == file for name in tensors)
        assert sum(t.nbytes for t in tensors.values()) <= 30_000
    assert index["metadata"]["total_size"] == sum(sizes.values())
    back = open_folder(str(tmp_path)).read_state()
    assert all(torch.equal(back[name], state[name].bfloat16()) for name in state)
    assert split_into_files({"a": 5, "b": 1, "c": 1}, 3) == {
        "model-00001-of-00002.safetensors": ["a"],
        "model-00002-of-00002.safetensors": ["b", "c"],
    }


def test_the_same_on_s3(exported, s3, tmp_path):
    model, out = exported
    there = f"{s3}/models/hub"
    write_folder(there, model.config, model.state_dict().__getitem__, FILES)
    for path in out.iterdir():
        assert storage.read(f"{there}/{path.name}") == path.read_bytes()
    state = open_folder(there).read_state()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_no_more_than_a_tensor_is_in_memory(build, tmp_path):
    """Bound the memory of Python and numpy besides the tensors themselves."""
    model = build(vocabulary=320, layers=8, feedforward_channels=512)
    state = model.state_dict()
    largest = max(value.nbytes for value in state.values())
    tracemalloc.start()
    write_folder(str(tmp_path), model.config, state.__getitem__, FILES)
    hub = open_folder(str(tmp_path))
    for name in hub.tensors:
        hub.tensors[name].read()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    whole = sum(value.nbytes for value in state.values())
    assert peak < largest + 2**20 < whole


@pytest.mark.parametrize("room", [0, 15])
def test_added_tokens_grow_tables_to_the_padded_multiple_with_the_mean(build, tmp_path, room):
    model = build(vocabulary=301 + room, tie_embeddings=False)
    write_folder(str(tmp_path), model.config, model.state_dict().__getitem__, FILES)
    grown = add_special_tokens(open_folder(str(tmp_path)), ["<|tool|>", "<|think|>"])
    rows = 316 if room else 320
    assert grown.config.vocabulary == rows
    special = find_special_tokens(grown.files)
    assert [special.names[token] for token in ("<|tool|>", "<|think|>")] == [301, 302]
    state = grown.read_state()
    for name in ("embedding.weight", "head.weight"):
        old = model.state_dict()[name][:301]
        assert torch.equal(state[name][:301], old)
        assert torch.equal(state[name][301:], old.mean(dim=0).expand(rows - 301, -1))
    with pytest.raises(DataError, match=r"already has the token '<\|endoftext\|>'"):
        add_special_tokens(open_folder(str(tmp_path)), ["<|endoftext|>"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 3}, "missing tensors: 9, first 'model.layers.2."),
        ({"num_hidden_layers": 1}, "'model.layers.1."),
        ({"tie_word_embeddings": False}, "missing tensors: 1, first 'lm_head.weight'"),
        (
            {"intermediate_size": 64},
            "gate_proj.weight has the shape [128, 32], but config.json says [64",
        ),
        (
            {"vocab_size": 300},
            "embed_tokens.weight has the shape [320, 32], but config.json says [300",
        ),
    ],
)
def test_tensors_that_are_missing_surplus_or_misshapen_are_refused(exported, changes, message):
    _, out = exported
    rewrite(out / "config.json", **changes)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        open_folder(str(out))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_larger_than_the_table_is_refused(build, tmp_path):
    model = build()
    with pytest.raises(DataError, match=r"up to 300, but.*only 61 entries"):
        write_folder(str(tmp_path / "out"), model.config, model.state_dict().__getitem__, FILES)
    assert not (tmp_path / "out").exists()


def test_missing_damaged_or_pickled_files_are_refused_with_advice(exported):
    _, out = exported

    def refused(message: str) -> None:
        with pytest.raises(DataError, match=message) as caught:
            open_folder(str(out))
        assert "\n" not in str(caught.value)

    weights = (out / "model.safetensors").read_bytes()
    for torn in (weights[:-5], weights[:40], b"", b"\xff" * 64):
        (out / "model.safetensors").write_bytes(torn)
        refused(r"model.safetensors: damaged")
    (out / "model.safetensors").rename(out / "pytorch_model.bin")
    refused(r"pytorch_model.bin is a pickle.*save_pretrained")
    index = out / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    refused(r"'../other.safetensors' is not a safetensors file")
    index.write_text("[]")
    refused("not an index of safetensors files")
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    refused(r"model-00001-of-00001.safetensors: is missing")
    (out / "model-00001-of-00001.safetensors").write_bytes(weights)
    (out / "tokenizer.json").unlink()
    refused(r"no tokenizer.json.*AutoTokenizer")
    (out / "config.json").write_text("[1]")
    refused(r"config.json: is not a JSON object")


def test_quantised_numbers_are_refused(exported):
    _, out = exported
    tensors = load_file(out / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, out / "model.safetensors")
    with pytest.raises(DataError, match="type I8"):
        open_folder(str(out)).read_state()


def test_derived_tensors_and_a_repeated_tied_head_are_left_out(exported):
    model, out = exported
    weights = load_file(out / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, out / "model.safetensors")
    assert open_folder(str(out)).read_state().keys() == model.state_dict().keys()


def test_another_model_is_never_written_over_but_a_killed_export_is_completed(exported):
    model, out = exported
    arguments = (str(out), model.config, model.state_dict().__getitem__, FILES)
    with pytest.raises(OutputTaken, match=r"already holds a model \(config.json\)"):
        write_folder(*arguments)
    (out / "config.json").unlink()
    (out / "model.safetensors").write_bytes(b"half")
    write_folder(*arguments)
    assert torch.equal(open_folder(str(out)).read_state()["norm.weight"], model.norm.weight)
    (out / "config.json").unlink()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(OutputTaken, match=r"holds other files \(notes.txt\)"):
        write_folder(*arguments)
