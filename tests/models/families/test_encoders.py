"""Encoders compared with random models of Transformers: logits, files and an optimizer's step."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import brought, peer_models

from trainrig.errors import DataError
from trainrig.models import find_model_class
from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.decoder import initialise
from trainrig.models.encoder import build_model
from trainrig.models.families import find_family, read_config, strip_config
from trainrig.models.huggingface import open_folder, write_folder
from trainrig.tokens.special_tokens import TokenizerFiles, find_special_tokens

SMALL = {
    "vocab_size": 331, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "max_position_embeddings": 66, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
THEIRS = {
    "bert": ("Bert", {"pad_token_id": 0}),
    "bert-tanh": ("Bert", {"pad_token_id": 0, "hidden_act": "gelu_new", "type_vocab_size": 3}),
    "electra": ("Electra", {"pad_token_id": 0, "embedding_size": 24}),
    "electra-wide": ("Electra", {"pad_token_id": 0, "embedding_size": 32}),
    "roberta": ("Roberta", {"pad_token_id": 1, "type_vocab_size": 1}),
    "modernbert": (
        "ModernBert", {"pad_token_id": None, "cls_token_id": None, "sep_token_id": None,
                       "local_attention": 8},
    ),
    "modernbert-biased": (
        "ModernBert", {"pad_token_id": None, "cls_token_id": None, "sep_token_id": None,
                       "attention_bias": True, "mlp_bias": True, "norm_bias": True,
                       "classifier_bias": True, "local_attention": 6,
                       "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
}  # fmt: skip
# The ids are above the padding id, because RoBERTa gives padding tokens no position.
IDS = torch.randint(2, 331, (3, 20), generator=torch.Generator().manual_seed(1))
BOUND = 1e-5


@pytest.fixture(scope="module", params=THEIRS)
def pair(request, transformers, tmp_path_factory):
    """Return Transformers' model and trainrig's, read from the same folder."""
    folder = tmp_path_factory.mktemp("theirs")
    kind, settings = THEIRS[request.param]
    pair = peer_models.make_encoder(transformers, kind, "MaskedLM", SMALL | settings, folder)
    return *pair, folder


@torch.no_grad()
def test_logits_are_transformers(pair):
    theirs, ours, *_ = pair
    expected = theirs(IDS).logits
    assert expected.std() > 0.05
    assert (expected - ours(IDS).logits).abs().max() <= BOUND
    places = torch.tensor([0, 7, 33])
    chosen = ours(IDS, places_N=places).logits
    assert (chosen - expected.flatten(0, 1)[places]).abs().max() <= BOUND


@torch.no_grad()
def test_packed_rows_are_their_documents_alone(pair):
    theirs, ours, *_ = pair
    alone = [theirs(IDS[:1, :8]).logits, theirs(IDS[:1, 8:]).logits]
    packed = torch.cat([torch.arange(8), torch.arange(12)])[None, :]
    both = ours(IDS[:1], positions_BT=packed).logits
    assert (torch.cat(alone, dim=1) - both).abs().max() <= BOUND


@torch.no_grad()
def test_segments_are_transformers(pair):
    theirs, ours, hub, _ = pair
    if hub.config.segments < 2:
        pytest.skip("it has no second segment")
    segments = (torch.arange(20) >= 11).long().expand(3, -1)
    expected = theirs(IDS, token_type_ids=segments).logits
    assert (expected - ours(IDS, segments_BT=segments).logits).abs().max() <= BOUND
    assert (expected - ours(IDS).logits).abs().max() > 100 * BOUND


def test_after_a_step_of_training_the_folder_is_read_by_transformers(pair, transformers, tmp_path):
    theirs, ours, hub, folder = pair
    trained = peer_models.train_a_step(ours, hub, IDS)
    state = trained.state_dict()
    out = tmp_path / "out"
    write_folder(str(out), hub.config, state.__getitem__, hub.files)
    back = peer_models.reload(transformers.AutoModelForMaskedLM, out)
    with torch.no_grad():
        assert (back(IDS).logits - trained(IDS).logits).abs().max() <= BOUND
        assert (back(IDS).logits - theirs(IDS).logits).abs().max() > 100 * BOUND
    for name in ("config.json", "tokenizer.json"):
        assert (out / name).read_bytes() == (folder / name).read_bytes(), name


def test_settings_that_were_written_are_read_as_they_were(pair):
    *_, hub, _ = pair
    family = find_family(hub.config, json.loads(hub.files.beside["config.json"]))
    written = family.write(hub.config) | {"model_type": family.model_type}
    assert strip_config(read_config(written, "config.json")[1]) == strip_config(hub.config)
    again = find_model_class(hub.config.model_dump()).model_validate(
        hub.config.model_dump(mode="json"), strict=False
    )
    assert again == hub.config


def test_published_bert_with_old_names_and_a_second_head_is_read(transformers, tmp_path):
    """Read google-bert/bert-base-uncased's gains named `gamma`, pooler and next-sentence logits."""
    config = transformers.BertConfig(**SMALL | {"pad_token_id": 0})
    theirs = transformers.BertForPreTraining(config).eval()
    theirs.save_pretrained(tmp_path)
    brought.write("llama3", tmp_path)
    tensors = {}
    for name, value in load_file(tmp_path / "model.safetensors").items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = value
    assert any("pooler" in name for name in tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["architectures"] = ["BertForMaskedLM"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    hub = open_folder(str(tmp_path))
    ours = build_model(hub.config)
    ours.load_state_dict(hub.read_state())
    with torch.no_grad():
        expected = theirs(IDS).prediction_logits
        assert (expected - ours(IDS).logits).abs().max() <= BOUND


OWN = {
    "bert": {
        "segments": 2, "position_embedding": {"kind": "LearnedPositions"},
        "norm": {"kind": "LayerNorm"}, "block": {"kind": "PostNorm"},
        "feedforward": {"kind": "GELU", "tanh": False}, "transform": {"bias": True},
        "biases": {"qkv": True, "output": True, "feedforward": True, "head": True},
    },
    "modernbert": {"attention": {"window": {"size": 9, "pattern": ("global", "local", "local")}}},
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_a_trainrig_model_finds_its_family(name, transformers, tmp_path):
    sizes = {"layers": 4, "channels": 32, "heads": 4, "vocabulary": 320, "positions": 32}
    config = EncoderConfig.model_validate(sizes | OWN[name] | {"initial_std": 0.1})
    model = build_model(config)
    initialise(model, 3)
    files = TokenizerFiles(brought.brought("gpt2").tokenizer).with_roles({"mask": "a"})
    family = write_folder(str(tmp_path), config, model.state_dict().__getitem__, files)
    assert family.model_type == name
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    with torch.no_grad():
        ids = 2 + IDS % 300
        assert (theirs(ids).logits - model(ids).logits).abs().max() <= BOUND
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).mask_token == "a"
    assert 'pipeline_tag: "fill-mask"' in (tmp_path / "README.md").read_text()
    assert not (tmp_path / "generation_config.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu', which trainrig does not support"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"architectures": ["BertForTokenClassification"]}, "cannot import model_type"),
    ],
)
def test_an_encoder_that_we_would_compute_otherwise_is_refused(changes, message):
    given = {
        "model_type": "bert", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 331,
        "num_hidden_layers": 2, "num_attention_heads": 4,
    }  # fmt: skip
    assert read_config(given, "x/config.json")[0].model_type == "bert"
    with pytest.raises(DataError, match=re.escape(message)):
        read_config(given | changes, "x/config.json")


def test_a_padding_that_roberta_would_count_from_elsewhere_is_refused(pair, tmp_path):
    _, ours, hub, _ = pair
    if not hub.config.positions_offset:
        pytest.skip("its positions begin at 0")
    files = TokenizerFiles(hub.files.tokenizer)
    assert find_special_tokens(files).pad is None or find_special_tokens(files).pad.id != 1
    with pytest.raises(DataError, match="needs padding id 1"):
        write_folder(str(tmp_path / "out"), hub.config, ours.state_dict().__getitem__, files)
