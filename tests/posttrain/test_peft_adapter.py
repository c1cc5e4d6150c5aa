"""Adapters exported to PEFT and imported from PEFT."""

import functools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import brought

from trainrig.errors import DataError, OutputTaken
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.huggingface import HubFolder, write_folder
from trainrig.models.lora import list_adapter_shapes
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint
from trainrig.posttrain.huggingface.peft_adapters import export_adapter, import_adapter
from trainrig.posttrain.huggingface.peft_settings import name_saved_module
from trainrig.tokens.special_tokens import find_special_tokens
from trainrig.train import checkpoint
from trainrig.train.training_job import Adapter

KINDS = {
    "plain": LoRA(rank=4, alpha=8),
    "some layers": LoRA(rank=4, alpha=8, rslora=True, targets=("layers.1.attention.*",)),
    "dora": LoRA(rank=3, alpha=5, dora=True, targets=("attention.query", "feedforward.*")),
}


@pytest.fixture
def write_trained(tmp_path):
    """Return `write_trained(base, lora)`, which writes a run folder.

    The folder has an adapter of the model in `base` that changes its outputs.
    """

    def write(folder, lora, name="adapted"):
        base = checkpoint.open_model(folder)
        dice = torch.Generator().manual_seed(0)
        tensors = {
            name: torch.randn(shape, generator=dice) * 0.3
            for name, shape in list_adapter_shapes(base.config, lora).items()
        }
        adapter = Adapter(lora, base.path, checkpoint.compute_manifest_sum(base.path))
        out = str(tmp_path / name)
        checkpoint.write_adapter(out, base.config, base.tokenizer, adapter, tensors)
        return out

    return write


@pytest.fixture
def trained(fresh, write_trained):
    """Return `trained(lora)`: such a folder for the model `fresh`."""
    return functools.partial(write_trained, fresh)


@pytest.mark.parametrize("kind", KINDS)
def test_peft_computes_what_the_adapter_does(kind, fresh, trained, tmp_path):
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    ours = trained(KINDS[kind])
    export_checkpoint(fresh, str(tmp_path / "hub"), HubFolder())
    export_adapter(ours, str(tmp_path / "peft"))
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "peft").eval()
    ids = torch.arange(20, 40)[None]
    with torch.inference_mode():
        expected = checkpoint.open_model(ours).build()(ids).logits
        torch.testing.assert_close(theirs(ids).logits, expected, rtol=1e-4, atol=1e-5)
        plain = checkpoint.open_model(fresh).build()(ids).logits
    assert (expected - plain).abs().max() > 1e-3
    # An adapter that PEFT saves is read back unchanged.
    theirs.save_pretrained(tmp_path / "saved")
    import_adapter(str(tmp_path / "saved"), fresh, str(tmp_path / "back"))
    back = checkpoint.open_model(str(tmp_path / "back")).adapter
    there = checkpoint.open_model(ours).adapter
    assert back.of.lora.model_dump(exclude={"targets"}) == there.of.lora.model_dump(
        exclude={"targets"}
    )
    assert back.tensors.keys() == there.tensors.keys()
    assert all(torch.equal(back.tensors[n], there.tensors[n]) for n in back.tensors)


def test_export_merges_adapters_by_default(fresh, trained, tmp_path):
    ours = trained(KINDS["plain"])
    export_checkpoint(ours, str(tmp_path / "merged"), HubFolder())
    stored = load_file(tmp_path / "merged" / "model.safetensors")
    merged = checkpoint.open_model(ours).weights["layers.0.attention.query.weight"]
    assert torch.equal(stored["model.layers.0.self_attn.q_proj.weight"], merged)
    with pytest.raises(DataError, match="a whole model, not an adapter"):
        export_adapter(fresh, str(tmp_path / "no"))
    tied = trained(LoRA(rank=2, targets=("embedding",)), "tied")
    with pytest.raises(DataError, match="head that shares"):
        export_adapter(tied, str(tmp_path / "no"))
    with pytest.raises(OutputTaken):
        export_adapter(ours, str(tmp_path / "merged"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"bias": "all"}, "bias = 'all' is not supported"),
        ({"rank_pattern": {"q_proj": 2}}, r"q_proj has rank 4, but adapter_config.json says 2"),
        ({"r": 5}, "has rank 4, but adapter_config.json says 5"),
    ],
)
def test_an_adapter_that_would_compute_something_else_is_refused(
    change, message, fresh, trained, tmp_path
):
    export_adapter(trained(KINDS["plain"]), str(tmp_path / "peft"))
    path = tmp_path / "peft" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        import_adapter(str(tmp_path / "peft"), fresh, str(tmp_path / "back"))
    assert not (tmp_path / "back").exists()


def test_a_tensor_without_a_place_is_refused(fresh, trained, tmp_path):
    export_adapter(trained(KINDS["plain"]), str(tmp_path / "peft"))
    path = tmp_path / "peft" / "adapter_model.safetensors"
    name = "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"
    save_file(load_file(path) | {name: torch.zeros(4, 32)}, path)
    with pytest.raises(DataError, match=r"layers\.7.*no place"):
        import_adapter(str(tmp_path / "peft"), fresh, str(tmp_path / "back"))


def test_an_adapter_of_a_router_is_refused(encoder, tmp_path):
    sizes = {"layers": 1, "channels": 32, "heads": 4, "positions": 48, "vocabulary": 320}
    mixture = {"kind": "MixtureOfExperts", "experts": 4, "active": 2, "normalise": True}
    model = Decoder(DecoderConfig(**sizes, feedforward=mixture))
    initialise(model, seed=1)
    base = str(tmp_path / "base")
    folder = tmp_path / "peft"
    checkpoint.write_model(base, model.config, encoder.text, model.state_dict())
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["gate"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    below = "base_model.model.model.layers.0.block_sparse_moe.gate"
    tensors = {f"{below}.lora_A.weight": torch.zeros(2, 32)}
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(DataError, match=r"gate is a router.*leave 'gate' out of target_modules"):
        import_adapter(str(folder), base, str(tmp_path / "back"))


@pytest.mark.parametrize(
    ("tensor", "module"),
    [
        ("classifier.weight", "classifier"),  # BERT
        ("classifier.out_proj.bias", "classifier"),  # RoBERTa, ELECTRA
        ("bert.pooler.dense.weight", "bert.pooler.dense"),
        ("qa_outputs.bias", "qa_outputs"),
    ],
)
def test_a_classifier_is_saved_as_one_module(tensor, module):
    assert name_saved_module(tensor) == module


GPT2 = {
    "position_embedding": {"kind": "LearnedPositions"},
    "feedforward": {"kind": "GELU"},
    "norm": {"kind": "LayerNorm"},
    "biases": {"qkv": True, "output": True, "feedforward": True},
}


NEOX = GPT2 | {
    "position_embedding": {"kind": "Rope", "rotated_share": 0.5},
    "block": {"kind": "ParallelBlock", "shared_norm": False},
}
GLM = {
    "position_embedding": {"kind": "Rope", "rotated_share": 0.5},
    "block": {"kind": "SandwichNorm"},
    "kv_heads": 2,
}


DEEPSEEK = {
    "attention": {
        "kind": "LatentAttention", "latent_channels": 12, "query_channels": 20,
        "rotated_channels": 4, "value_channels": 6,
    },
    "feedforward": {
        "kind": "MixtureOfExperts", "experts": 4, "active": 2, "shared_experts": 1,
        "scores": "sigmoid", "balance_bias": True, "dense_layers": 1,
    },
    "tie_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "family", [GPT2, NEOX, GLM, DEEPSEEK], ids=["gpt2", "gpt_neox", "glm4", "deepseek_v3"]
)
@pytest.mark.parametrize(
    "lora",
    [
        LoRA(rank=4, alpha=8, targets=("attention.*", "feedforward.*")),
        LoRA(rank=4, alpha=8, rslora=True, targets=("attention.value", "feedforward.up")),
        LoRA(rank=3, alpha=5, dora=True, targets=("attention.query", "attention.output")),
    ],
    ids=["all", "some", "dora"],
)
def test_adapters_of_matrices_that_are_stored_differently_go_to_peft_and_back(
    lora, family, encoder, write_trained, tmp_path
):
    """Compare matrices with inputs first, several in one, and rows in another order.

    GPT-2 has one matrix for queries, keys and values, GPT-NeoX one whose rows are ordered by head,
    and GLM rotates neighbouring rows. DeepSeek V3 has one for the keys and values of each head.
    """
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    sizes = {"layers": 2, "channels": 32, "heads": 4, "positions": 48, "vocabulary": 320}
    config = DecoderConfig.model_validate({**sizes, **family})
    if family is DEEPSEEK:
        lora = lora.model_copy(update={"targets": (lora.targets[0],)})
    model = Decoder(config)
    initialise(model, seed=1)
    base = str(tmp_path / "base")
    checkpoint.write_model(base, config, encoder.text, model.state_dict())
    ours = write_trained(base, lora)
    export_checkpoint(base, str(tmp_path / "hub"), HubFolder())
    export_adapter(ours, str(tmp_path / "peft"))
    theirs = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hub"), tmp_path / "peft"
    ).eval()
    ids = torch.arange(20, 40)[None]
    with torch.inference_mode():
        expected = checkpoint.open_model(ours).build()(ids).logits
        torch.testing.assert_close(theirs(ids).logits, expected, rtol=1e-4, atol=1e-5)
        plain = checkpoint.open_model(base).build()(ids).logits
    assert (expected - plain).abs().max() > 1e-3
    theirs.save_pretrained(tmp_path / "saved")
    import_adapter(str(tmp_path / "saved"), base, str(tmp_path / "back"))
    with torch.inference_mode():
        back = checkpoint.open_model(str(tmp_path / "back")).build()(ids).logits
    torch.testing.assert_close(back, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [334, 448], ids=["grown", "had room"])
@pytest.mark.parametrize("targets", [(), ("embedding", "attention.*")], ids=["layers", "tables"])
def test_the_adapter_of_a_model_with_added_tokens_has_their_rows(
    rows, targets, write_trained, tmp_path
):
    """PEFT, on the original model after a resize, gives the same logits for the new token."""
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    files = brought.brought("qwen")
    entries = find_special_tokens(files).entries
    rows = entries if rows == 334 else rows
    sizes = {"layers": 2, "channels": 32, "heads": 4, "kv_heads": 2, "positions": 48}
    config = DecoderConfig(**sizes, vocabulary=rows, tie_embeddings=False, initial_std=0.3)
    model = Decoder(config)
    initialise(model, 2)
    hub = str(tmp_path / "hub")
    write_folder(hub, config, model.state_dict().__getitem__, files, HubFolder())
    import_checkpoint(hub, str(tmp_path / "run"), added=["<|tool|>"])
    lora = LoRA(rank=4, alpha=8, targets=targets) if targets else LoRA(rank=4, alpha=8)
    ours = write_trained(str(tmp_path / "run"), lora)
    export_adapter(ours, str(tmp_path / "peft"))
    built = checkpoint.open_model(ours).build()
    base = transformers.AutoModelForCausalLM.from_pretrained(hub)
    base.resize_token_embeddings(built.config.shape.vocabulary)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "peft").eval()
    ids = torch.tensor([[5, entries, 7, entries, 9]])  # the new token is the first added one
    with torch.inference_mode():
        expected = built(ids).logits
        torch.testing.assert_close(theirs(ids).logits, expected, rtol=1e-4, atol=1e-4)
    back = import_adapter(str(tmp_path / "peft"), str(tmp_path / "run"), str(tmp_path / "back"))
    again = checkpoint.open_model(str(tmp_path / "back")).weights
    assert back["parameters"] > 0
    assert all(torch.equal(again[n], value) for n, value in built.state_dict().items())


def test_an_adapter_beside_experts_is_merged_and_not_exported_alone(
    encoder, write_trained, tmp_path
):
    sizes = {"layers": 2, "channels": 32, "heads": 4, "positions": 48, "vocabulary": 320}
    config = DecoderConfig.model_validate({**sizes, **DEEPSEEK})
    model = Decoder(config)
    initialise(model, seed=1)
    base = str(tmp_path / "base")
    checkpoint.write_model(base, config, encoder.text, model.state_dict())
    ours = write_trained(base, LoRA(rank=2, targets=("feedforward.shared.*",)))
    with pytest.raises(DataError, match=r"model with experts.*export without --adapter"):
        export_adapter(ours, str(tmp_path / "peft"))
    export_checkpoint(ours, str(tmp_path / "merged"), HubFolder())
    assert not (tmp_path / "peft").exists()
