"""Adapters with fully trained heads, exported to PEFT and imported from it, on random models."""

import json

import pytest
import torch
from support import brought

from trainrig.errors import DataError
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.models.lora import is_adapter, list_adapter_shapes
from trainrig.posttrain.huggingface.model_folders import import_checkpoint
from trainrig.posttrain.huggingface.peft_adapters import export_adapter, import_adapter
from trainrig.train import checkpoint
from trainrig.train.training_job import Adapter

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
SMALL = {
    "vocab_size": 331, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
MODELS = {
    "Bert": {},
    "Electra": {"embedding_size": 24},
    "ModernBert": {"cls_token_id": None, "sep_token_id": None, "local_attention": 8},
    "Llama": {"num_key_value_heads": 2},
}
LENGTHS = (20, 13, 7)  # tokens of three rows, padded to the longest
IDS = torch.randint(2, 331, (3, 20), generator=torch.Generator().manual_seed(1))
THERE = (torch.arange(20) < torch.tensor(LENGTHS)[:, None]).long()
IDS = torch.where(THERE > 0, IDS, 1)
BOUND = 1e-5


@pytest.fixture
def make(tmp_path):
    """Return `make(kind, ending, labels)`.

    It writes a random Transformers model and the run folder with its import.
    """

    def write(kind, ending="SequenceClassification", labels=3):
        folder = tmp_path / "hub"
        named = {"num_labels": labels} if ending == "SequenceClassification" else {}
        config = getattr(transformers, f"{kind}Config")(**SMALL | MODELS[kind] | named)
        torch.manual_seed(7)
        getattr(transformers, f"{kind}For{ending}")(config).save_pretrained(folder)
        brought.write("llama3", folder)
        import_checkpoint(str(folder), str(tmp_path / "base"))
        return folder, str(tmp_path / "base")

    return write


def open_theirs(folder, labels=3):
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=labels, attn_implementation="eager"
    )


@torch.no_grad()
def scramble(model):
    """Set all trained parameters to random values."""
    dice = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.copy_(torch.randn(parameter.shape, generator=dice) * 0.2)
    return model.eval()


@torch.no_grad()
def ask_theirs(model):
    return model(IDS, attention_mask=THERE).logits


@torch.no_grad()
def ask_ours(path):
    opened = checkpoint.open_model(path)
    model = opened.build()
    last = torch.tensor(LENGTHS) - 1
    if not opened.config.bidirectional:
        return model(IDS).logits[torch.arange(3), last]
    return model(IDS, places_N=torch.arange(3) * 20, documents_BS=THERE).logits


def write_random(base, lora, out):
    """Write a run folder with an adapter of `base` that changes its outputs."""
    opened = checkpoint.open_model(base)
    dice = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.rand(shape, generator=dice) + 0.5
        if name.endswith("magnitude")
        else torch.randn(shape, generator=dice) * 0.2
        for name, shape in list_adapter_shapes(opened.config, lora).items()
    }
    adapter = Adapter(lora, opened.path, checkpoint.compute_manifest_sum(opened.path))
    checkpoint.write_adapter(out, opened.config, opened.tokenizer, adapter, tensors, opened.beside)


PLAIN = LoRA(rank=4, alpha=6)
SETTINGS = {
    "Bert": ("Bert", PLAIN),
    "Electra": ("Electra", PLAIN),
    "Llama": ("Llama", PLAIN),
    "ModernBert": ("ModernBert", PLAIN),
    "rslora": ("ModernBert", LoRA(rank=3, alpha=5, rslora=True)),
    "dora": ("ModernBert", LoRA(rank=3, alpha=5, dora=True)),
    "dora of some": ("ModernBert", LoRA(rank=3, dora=True, targets=("attention.value",))),
    "some": ("ModernBert", LoRA(rank=4, targets=("attention.query", "layers.1.feedforward.*"))),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_classifiers_are_those_of_peft_and_come_back_as_they_were(name, make, tmp_path):
    kind, lora = SETTINGS[name]
    folder, base = make(kind)
    ours = str(tmp_path / "ours")
    back = str(tmp_path / "back")
    write_random(base, lora, ours)
    export_adapter(ours, str(tmp_path / "peft"))
    theirs = peft.PeftModel.from_pretrained(open_theirs(folder), tmp_path / "peft").eval()
    expected = ask_theirs(theirs)
    assert (ask_ours(ours) - expected).abs().max() <= BOUND
    assert (ask_ours(base) - expected).abs().max() > 0.05
    # An adapter that PEFT saves is read back unchanged.
    theirs.save_pretrained(tmp_path / "saved")
    import_adapter(str(tmp_path / "saved"), base, back)
    wanted, found = (checkpoint.open_model(path).adapter for path in (ours, back))
    for tensor in wanted.tensors:
        assert torch.equal(found.tensors[tensor], wanted.tensors[tensor]), tensor
    more = found.tensors.keys() - wanted.tensors.keys()
    assert not more or lora.dora  # parts whose length DoRA keeps
    assert found.of.lora.scale == wanted.of.lora.scale
    assert (ask_ours(back) - expected).abs().max() <= BOUND


# Kind, class ending in Transformers, labels, PEFT settings, and fully trained modules.
MODERN = ["Wqkv", "Wi", "Wo"]
SAVED = {
    "ModernBert": ("ModernBert", "MaskedLM", 3, {"target_modules": MODERN}, {"head"}),
    "ranks and scales": (
        "ModernBert", "MaskedLM", 3,
        {
            "target_modules": MODERN, "rank_pattern": {"Wqkv": 6}, "use_rslora": True,
            "alpha_pattern": {r"layers\.1\.mlp\.Wo": 3, "Wi": 5},
        },
        {"head"},
    ),
    "dora": ("ModernBert", "MaskedLM", 2, {"target_modules": MODERN, "use_dora": True}, {"head"}),
    "a part of the head": (
        "ModernBert", "MaskedLM", 3,
        {"target_modules": ["Wqkv"], "modules_to_save": ["head.norm"]}, {"head", "transform"},
    ),
    "a pooler with an adapter": (
        "Bert", "SequenceClassification", 3, {"target_modules": ["query", "dense"]},
        {"head", "pooler"},
    ),
    "Electra": ("Electra", "MaskedLM", 3, {"target_modules": ["query"]}, {"head", "pooler"}),
    "Llama": ("Llama", "CausalLM", 3, {"target_modules": ["q_proj", "v_proj"]}, {"head"}),
    "a score": ("Llama", "CausalLM", 1, {"target_modules": ["q_proj", "down_proj"]}, {"head"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
def test_modules_that_peft_trained_fully_are_imported_with_the_adapter(name, make, tmp_path):
    kind, ending, labels, settings, modules = SAVED[name]
    folder, base = make(kind, ending, labels)
    given = {"r": 4, "lora_alpha": 6, "task_type": "SEQ_CLS"} | settings
    torch.manual_seed(11)
    theirs = peft.get_peft_model(open_theirs(folder, labels), peft.LoraConfig(**given))
    expected = ask_theirs(scramble(theirs))
    theirs.save_pretrained(tmp_path / "saved")
    ours = str(tmp_path / "ours")
    import_adapter(str(tmp_path / "saved"), base, ours)
    opened = checkpoint.open_model(ours)
    whole = {n.partition(".")[0] for n in opened.adapter.tensors if not is_adapter(n)}
    assert modules <= whole
    assert opened.config.head == ("score" if labels == 1 else "classes")
    assert (ask_ours(ours) - expected).abs().max() <= BOUND
    export_adapter(ours, str(tmp_path / "peft"))
    again = peft.PeftModel.from_pretrained(open_theirs(folder, labels), tmp_path / "peft")
    assert (ask_theirs(again.eval()) - expected).abs().max() <= BOUND


@pytest.mark.parametrize(
    ("kind", "ending", "labels", "settings", "message"),
    [
        (
            "Bert", "MaskedLM", 3, {"target_modules": ["query"]},
            r"bert.pooler.dense.bias is neither",
        ),
        (
            "Llama", "CausalLM", 3,
            {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
            r"embed_tokens.weight is saved whole.* merge_and_unload\(\)",
        ),
        (
            "ModernBert", "MaskedLM", 1, {"target_modules": ["Wqkv"]},
            r"classifier.weight gives.*two labels",
        ),
        (
            "Llama", "CausalLM", 3,
            {"target_modules": ["q_proj"], "init_lora_weights": "pissa"},
            r"init_lora_weights = 'pissa' is not supported",
        ),
        (
            "ModernBert", "SequenceClassification", 3,
            {"target_modules": ["Wqkv"], "modules_to_save": ["norm"]},
            r"norm.weight is saved whole",
        ),
    ],
)  # fmt: skip
def test_an_adapter_without_a_counterpart_is_a_one_line_error(
    kind, ending, labels, settings, message, make, tmp_path
):
    folder, base = make(kind, ending, labels)
    given = {"r": 4, "lora_alpha": 6, "task_type": "SEQ_CLS"} | settings
    theirs = peft.get_peft_model(open_theirs(folder, labels), peft.LoraConfig(**given))
    scramble(theirs).save_pretrained(tmp_path / "saved")
    with pytest.raises(DataError, match=message) as caught:
        import_adapter(str(tmp_path / "saved"), base, str(tmp_path / "ours"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()


def test_a_head_of_other_labels_than_the_base_has_is_refused(make, tmp_path):
    folder, base = make("ModernBert")
    settings = peft.LoraConfig(r=4, task_type="SEQ_CLS", target_modules=["Wqkv"])
    theirs = peft.get_peft_model(open_theirs(folder, 3), settings)
    theirs.save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / "adapter_model.safetensors"
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    name = "base_model.model.classifier.weight"
    save_file(tensors | {name: torch.zeros(5, 32)}, file)
    with pytest.raises(DataError, match=r"head.weight.*shape \(5, 32\).*base needs \(3, 32\)"):
        import_adapter(str(tmp_path / "saved"), base, str(tmp_path / "ours"))
    assert json.loads((tmp_path / "saved" / "adapter_config.json").read_text())["modules_to_save"]
