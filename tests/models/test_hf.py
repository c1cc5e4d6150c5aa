"""Folders that Transformers reads, and folders that it wrote."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from trainrig.errors import DataError, OutputTaken
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.models.hf import (
    HubFolder,
    HubTokenizer,
    export_llama,
    import_llama,
    split_into_files,
)

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end_of_turn|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SHAPES = {
    "tied": {},
    "untied": {"tie_embeddings": False},
    "every head its own keys": {"kv_heads": 4},
    "one head of keys": {"kv_heads": 1, "layers": 3},
    "wide heads": {"head_channels": 14, "feedforward_channels": 50},
    "other constants": {"rope_theta": 500.0, "norm_epsilon": 0.01, "positions": 40},
}
IDS = torch.randint(61, (2, 24), generator=torch.Generator().manual_seed(9))


@pytest.fixture(scope="module")
def transformers():
    """Quiet, and with no thought of the network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        module = pytest.importorskip("transformers")
        module.logging.set_verbosity_error()
        module.logging.disable_progress_bar()
        yield module


@pytest.fixture(scope="module")
def tokenizer_json() -> str:
    """A byte-level BPE of 280 entries, five of them special."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    names = ("end_of_text", "pad", "user", "assistant", "end_of_turn")
    trainer = BpeTrainer(
        vocab_size=280,
        special_tokens=[f"<|{name}|>" for name in names],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat and the hat, then the bat"] * 9, trainer)
    return tokenizer.to_str()


@pytest.fixture
def exported(build, tokenizer_json, tmp_path):
    """A tied model and the folder written from it."""
    model = build(vocabulary=320)
    out = str(tmp_path / "out")
    export_llama(model.state_dict(), model.config, HubTokenizer(tokenizer_json), out)
    return model, Path(out)


def rewrite(path: Path, **changes) -> None:
    """Change keys of a JSON file; a value of ... removes its key."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_transformers_computes_the_same_logits(
    transformers, build, tokenizer_json, tmp_path, changes, attention
):
    model = build(**{"vocabulary": 320} | changes)
    export_llama(model.state_dict(), model.config, HubTokenizer(tokenizer_json), str(tmp_path))
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation=attention, output_loading_info=True
    )
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys"))
    with torch.no_grad():
        assert (theirs(IDS).logits - model(IDS).logits).abs().max() <= 1e-5


def test_transformers_encodes_decodes_and_chats_the_same(
    transformers, build, tokenizer_json, tmp_path
):
    model = build(vocabulary=320)
    chat = HubTokenizer(tokenizer_json, end_of_turn="<|end_of_turn|>", chat_template=TEMPLATE)
    export_llama(model.state_dict(), model.config, chat, str(tmp_path))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_str(tokenizer_json)
    for text in ("the cat", " then\n\tébène 猫 ", "a , b ."):
        assert theirs.encode(text) == ours.encode(text).ids
        assert theirs.decode(theirs.encode(text)) == text
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (0, 0, 1)
    assert theirs.model_max_length == 24
    messages = [{"role": "user", "content": "hat?"}]
    said = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert said == "<|user|>hat?<|end_of_turn|><|assistant|>"
    assert (tmp_path / "chat_template.jinja").read_text() == TEMPLATE
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"] == TEMPLATE


def test_transformers_stops_where_an_answer_ends(transformers, build, tokenizer_json, tmp_path):
    model = build(vocabulary=320)
    chat = HubTokenizer(tokenizer_json, end_of_turn="<|end_of_turn|>", chat_template=TEMPLATE)
    export_llama(model.state_dict(), model.config, chat, str(tmp_path))
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (0, [0, 4], 1)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 0, 1)


def test_older_and_newer_names_stand_side_by_side(exported):
    _, out = exported
    config = json.loads((out / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10_000.0
    assert config["rope_scaling"] is None
    assert config["dtype"] == config["torch_dtype"] == "float32"
    tokenizer = json.loads((out / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert tokenizer["clean_up_tokenization_spaces"] is False


def test_a_tied_head_is_in_no_file_and_the_files_say_they_are_torchs(exported):
    _, out = exported
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - it is no mapping


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_above_the_limit_is_cut_into_files_that_load_everywhere(
    transformers, build, tokenizer_json, tmp_path, tied
):
    model = build(vocabulary=320, tie_embeddings=tied)
    limit = HubFolder(file_bytes=30_000)
    out = str(tmp_path)
    export_llama(model.state_dict(), model.config, HubTokenizer(tokenizer_json), out, limit)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    contents = {name: load_file(tmp_path / name) for name in files}
    assert index["weight_map"] == {t: name for name, held in contents.items() for t in held}
    nbytes = [t.nbytes for held in contents.values() for t in held.values()]
    assert index["metadata"]["total_size"] == sum(nbytes)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert (theirs(IDS).logits - model(IDS).logits).abs().max() <= 1e-5
    state, config, _ = import_llama(out)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert config.tie_embeddings is tied


def test_files_are_filled_in_order_up_to_the_limit():
    sizes = {"a": 4, "b": 3, "c": 3, "d": 20, "e": 1}
    assert split_into_files(sizes, 7) == {
        "model-00001-of-00004.safetensors": ["a", "b"],
        "model-00002-of-00004.safetensors": ["c"],
        "model-00003-of-00004.safetensors": ["d"],
        "model-00004-of-00004.safetensors": ["e"],
    }
    assert split_into_files(sizes, 31) == {"model.safetensors": ["a", "b", "c", "d", "e"]}


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_what_is_exported_comes_back_bit_for_bit(build, tokenizer_json, tmp_path, changes):
    model = build(**{"vocabulary": 320} | changes)
    export_llama(model.state_dict(), model.config, HubTokenizer(tokenizer_json), str(tmp_path))
    state, config, back = import_llama(str(tmp_path))
    assert back == tokenizer_json
    assert config.shape == model.config.shape
    again = Decoder(config)
    again.load_state_dict(state)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_the_same_model_gives_the_same_bytes(build, tokenizer_json, tmp_path):
    for name in ("a", "b"):
        model = build(vocabulary=320)
        out = str(tmp_path / name)
        export_llama(model.state_dict(), model.config, HubTokenizer(tokenizer_json), out)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(files) == 7
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_bfloat16_is_stored_named_and_read_back(transformers, build, tokenizer_json, tmp_path):
    model, out = build(vocabulary=320), str(tmp_path)
    half = HubFolder(dtype="bfloat16")
    export_llama(model.state_dict(), model.config, HubTokenizer(tokenizer_json), out, half)
    state, _, _ = import_llama(out)
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value.bfloat16())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert theirs.dtype == torch.bfloat16


def test_the_card_says_what_is_known(build, tokenizer_json, tmp_path):
    model = build(vocabulary=320)
    settings = HubFolder(license="apache-2.0", base_model="someone/some: model", datasets=("a/b",))
    export_llama(
        model.state_dict(), model.config, HubTokenizer(tokenizer_json), str(tmp_path), settings
    )
    yaml = pytest.importorskip("yaml")
    _, front, body = (tmp_path / "README.md").read_text().split("---\n")
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "apache-2.0",
        "base_model": "someone/some: model",
        "datasets": ["a/b"],
    }
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in body


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ({"end_of_text": "</s>"}, "no token '</s>'"),
        ({"pad": "<|end_of_text|>"}, "never learn to stop"),
        ({"chat_template": TEMPLATE}, "no answer would end"),
        ({"chat_template": "{{ m }}", "end_of_turn": "<|end_of_turn|>"}, "no answer would end"),
        ({"json": "{}"}, "not what the tokenizers library saves"),
        ({"json": "<"}, "not what the tokenizers library saves"),
    ],
)
def test_a_tokenizer_at_odds_with_itself_is_refused(
    build, tokenizer_json, tmp_path, tokenizer, message
):
    model = build(vocabulary=320)
    odd = HubTokenizer(**{"json": tokenizer_json} | tokenizer)
    with pytest.raises(DataError, match=re.escape(message)):
        export_llama(model.state_dict(), model.config, odd, str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_parts_that_do_not_fit_each_other_are_refused(build, tokenizer_json, tmp_path):
    small, wide = build(), build(vocabulary=320, channels=40)
    tokenizer, out = HubTokenizer(tokenizer_json), str(tmp_path)
    with pytest.raises(DataError, match="ids up to 274, but the model has 61 entries"):
        export_llama(small.state_dict(), small.config, tokenizer, out)
    with pytest.raises(DataError, match=r"embedding.weight is \(61, 32\), .* \(320, 40\)"):
        export_llama(small.state_dict(), wide.config, tokenizer, out)
    untied = wide.config.model_copy(update={"tie_embeddings": False})
    with pytest.raises(DataError, match=r"'head.weight' is only in the settings"):
        export_llama(wide.state_dict(), untied, tokenizer, out)


def test_another_model_is_never_written_over_but_a_killed_export_is_completed(
    exported, tokenizer_json
):
    model, out = exported
    arguments = (model.state_dict(), model.config, HubTokenizer(tokenizer_json), str(out))
    with pytest.raises(OutputTaken, match=r"holds a model already \(config.json\)"):
        export_llama(*arguments)
    (out / "config.json").unlink()
    (out / "model.safetensors").write_bytes(b"half")
    export_llama(*arguments)
    assert torch.equal(import_llama(str(out))[0]["norm.weight"], model.norm.weight)
    (out / "config.json").unlink()
    (out / "model-00001-of-00002.safetensors").write_bytes(b"of another cut")
    with pytest.raises(OutputTaken, match="model-00001-of-00002"):
        export_llama(*arguments)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 4, "rms_norm_eps": 1e-2},
        {"head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    ],
)
@pytest.mark.parametrize("shard", ["5GB", "20KB"])
def test_a_folder_that_transformers_saved_gives_its_logits(
    transformers, tokenizer_json, tmp_path, changes, shard
):
    sizes = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "initializer_range": 0.3,
    }
    torch.manual_seed(1)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes | changes)).eval()
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1 or shard == "20KB"
    state, config, _ = import_llama(str(tmp_path))
    model = Decoder(config)
    model.load_state_dict(state)
    with torch.no_grad():
        assert (theirs(IDS).logits - model(IDS).logits).abs().max() <= 1e-5


def test_an_older_config_and_its_derived_tensors_are_read(exported):
    model, out = exported
    old = {"rope_parameters": ..., "head_dim": ..., "num_key_value_heads": ..., "rope_theta": 77.0}
    rewrite(out / "config.json", **old, num_attention_heads=4)
    weights = load_file(out / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    for layer in range(2):  # as many key heads as query heads, which absence means
        for part in ("k_proj", "v_proj"):
            name = f"model.layers.{layer}.self_attn.{part}.weight"
            weights[name] = weights[name].repeat(2, 1)
    save_file(weights, out / "model.safetensors")
    state, config, _ = import_llama(str(out))
    assert config.shape.kv_heads == 4
    assert config.rope_theta == 77.0
    assert state.keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"model_type": "qwen2"}, "qwen2"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "of type 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "of type 'llama3'"),
        ({"rope_theta": 5e5}, "rope_theta is 500000.0, in rope_parameters 10000.0"),
        ({"num_hidden_layers": ...}, "no key 'num_hidden_layers'"),
        ({"num_attention_heads": 5}, "must be a multiple of heads (5)"),
        ({"hidden_size": "32"}, "channels"),
        ({"num_hidden_layers": 3}, "no tensor 'model.layers.2."),
        ({"num_hidden_layers": 1}, "tensor 'model.layers.1."),
        ({"tie_word_embeddings": False}, "no tensor 'lm_head.weight'"),
        ({"hidden_size": 64}, "embedding.weight is (320, 32)"),
    ],
)
def test_a_model_that_would_compute_something_else_here_is_refused(exported, changes, message):
    _, out = exported
    rewrite(out / "config.json", **changes)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        import_llama(str(out))
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_damaged_or_pickled_are_refused_with_what_would_do(exported):
    _, out = exported
    weights = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(weights[:-5])
    with pytest.raises(DataError, match=r"model.safetensors: damaged"):
        import_llama(str(out))
    (out / "model.safetensors").rename(out / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"pytorch_model.bin is a pickle.*save_pretrained"):
        import_llama(str(out))
    index = out / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(DataError, match=r"'../other.safetensors' is no safetensors file"):
        import_llama(str(out))
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    with pytest.raises(DataError, match=r"model-00001-of-00001.safetensors: not there"):
        import_llama(str(out))
    (out / "model-00001-of-00001.safetensors").write_bytes(weights)
    (out / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"no tokenizer.json.*AutoTokenizer"):
        import_llama(str(out))
    (out / "config.json").write_text("[1]")
    with pytest.raises(DataError, match=r"config.json: not a JSON object"):
        import_llama(str(out))
    with pytest.raises(DataError, match="name the folder of a Hugging Face model"):
        import_llama(str(out / "nowhere"))


def test_sizes_read_back_as_a_run_file_would_have_them(exported):
    model, out = exported
    _, config, _ = import_llama(str(out))
    assert isinstance(config, DecoderConfig)
    assert config.initial_std == model.config.initial_std
    assert config.positions == model.config.positions


def test_a_folder_of_other_files_is_left_alone(build, tokenizer_json, tmp_path):
    model = build(vocabulary=320)
    (tmp_path / "stage.json").write_text("{}")
    with pytest.raises(OutputTaken, match=r"holds other files \(stage\.json\)"):
        export_llama(model.state_dict(), model.config, HubTokenizer(tokenizer_json), str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["stage.json"]
