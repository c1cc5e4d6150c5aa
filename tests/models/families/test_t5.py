"""T5 compared with random models of Transformers: logits, files both ways, refusals."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import brought, peer_models

from trainrig.errors import DataError
from trainrig.models.families import find_family, read_config, strip_config
from trainrig.models.huggingface import open_folder, write_folder

SMALL = {
    "vocab_size": 331, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 3,
    "num_decoder_layers": 2, "num_heads": 4, "n_positions": 66, "dropout_rate": 0.0,
    "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu",
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}  # fmt: skip
THEIRS = {
    "v1.1": {"tie_word_embeddings": False},
    "tied": {"tie_word_embeddings": True},
}
DICE = torch.Generator().manual_seed(1)
IDS, WRITTEN = (torch.randint(1, 331, (3, length), generator=DICE) for length in (30, 17))
BOUND = 1e-5


@pytest.fixture(scope="module", params=THEIRS)
def pair(request, transformers, tmp_path_factory):
    """Return Transformers' model and trainrig's, read from the same folder."""
    folder = tmp_path_factory.mktemp("theirs")
    config = transformers.T5Config(**SMALL | THEIRS[request.param])
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            scale = 0.3 if "relative" in name else 0.1
            parameter.add_(torch.randn_like(parameter) * scale)
    tied = THEIRS[request.param]["tie_word_embeddings"]
    if not tied:
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn(331, 32) * 0.1)
    theirs.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    written.pop("scale_decoder_outputs", None)  # version 5 writes it and does not read it back
    text = json.dumps(written | {"tie_word_embeddings": tied}, indent=1)
    (folder / "config.json").write_text(text)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    brought.write("llama3", folder)
    return theirs, *peer_models.open_ours(folder), folder


@torch.no_grad()
def test_logits_are_transformers(pair):
    theirs, ours, *_ = pair
    expected = theirs(input_ids=IDS, decoder_input_ids=WRITTEN).logits
    assert expected.std() > 0.05
    assert (expected - ours(IDS, WRITTEN).logits).abs().max() <= BOUND


@torch.no_grad()
def test_padding_equals_transformers_mask(pair):
    theirs, ours, *_ = pair
    segments = (torch.arange(30) < torch.tensor([[30], [21], [9]])).long()
    expected = theirs(input_ids=IDS, attention_mask=segments, decoder_input_ids=WRITTEN).logits
    assert (expected - ours(IDS, WRITTEN, segments).logits).abs().max() <= BOUND
    assert (expected - ours(IDS, WRITTEN).logits).abs().max() > 100 * BOUND


def test_after_a_step_of_training_the_folder_is_read_by_transformers(pair, transformers, tmp_path):
    theirs, ours, hub, folder = pair
    trained = peer_models.train_a_step(ours, hub, IDS, WRITTEN)
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in trained.parameters()
    )
    state = trained.state_dict()
    out = tmp_path / "out"
    write_folder(str(out), hub.config, state.__getitem__, hub.files)
    back = peer_models.reload(transformers.AutoModelForSeq2SeqLM, out)
    with torch.no_grad():
        found = back(input_ids=IDS, decoder_input_ids=WRITTEN).logits
        assert (found - trained(IDS, WRITTEN).logits).abs().max() <= BOUND
        before = theirs(input_ids=IDS, decoder_input_ids=WRITTEN).logits
        assert (found - before).abs().max() > 100 * BOUND
    for name in ("config.json", "tokenizer.json"):
        assert (out / name).read_bytes() == (folder / name).read_bytes(), name


def test_settings_that_were_written_are_read_as_they_were(pair):
    *_, hub, _ = pair
    family = find_family(hub.config, {})
    written = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
    again = read_config(written | (family.write(hub.config) or {}), "config.json")[1]
    assert strip_config(again) == strip_config(hub.config)


def test_repeated_embeddings_of_older_files_are_passed_over(pair, tmp_path):
    _, ours, _, folder = pair
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    stored = load_file(folder / "model.safetensors")
    stored["encoder.embed_tokens.weight"] = stored["shared.weight"].clone()
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    state = open_folder(str(tmp_path)).read_state()
    for name, value in ours.state_dict().items():
        assert torch.equal(state[name], value), name


@pytest.mark.parametrize("changes", [{"feed_forward_proj": "relu"}, {"num_heads": None}])
def test_unsupported_settings_are_refused(pair, changes):
    *_, folder = pair
    given = json.loads((folder / "config.json").read_text())
    with pytest.raises(DataError, match=re.escape(next(iter(changes)))):
        read_config(given | changes, "config.json")
