"""Classifiers and answer finders compared with random models of Transformers: logits and files."""

import json
import re

import pytest
import torch
from support import brought, peer_models

from trainrig import cli
from trainrig.errors import ConfigError, DataError
from trainrig.models.architecture.decoder_config import DecoderConfig, parameter_shapes
from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.decoder import initialise
from trainrig.models.encoder import build_model
from trainrig.models.families import read_config
from trainrig.models.families.safetensors_files import PlannedTensor
from trainrig.models.huggingface import HubFolder, write_folder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.train import checkpoint

SMALL = {
    "vocab_size": 331, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 66, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
MODERN = {"cls_token_id": None, "sep_token_id": None, "local_attention": 8}
LABELS = ("sport", "politics", "weather")
CLASSIFIERS = {
    "bert": ("Bert", {}),
    "electra": ("Electra", {"embedding_size": 24}),
    "roberta": ("Roberta", {"type_vocab_size": 1}),
    "modernbert": ("ModernBert", MODERN),
    "modernbert-mean": (
        "ModernBert",
        MODERN | {"classifier_pooling": "mean", "norm_bias": True, "classifier_bias": True},
    ),
    "llama": ("Llama", {"num_key_value_heads": 2}),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}),
}
FINDERS = {name: CLASSIFIERS[name] for name in ("bert", "electra", "roberta", "modernbert")}
DETECTORS = {f"electra-{width}": ("Electra", {"embedding_size": width}) for width in (24, 32)}
LENGTHS = (20, 13, 7)  # lengths of three rows, padded to the longest
IDS = torch.randint(2, 331, (3, 20), generator=torch.Generator().manual_seed(1))
THERE = (torch.arange(20) < torch.tensor(LENGTHS)[:, None]).long()
IDS = torch.where(THERE > 0, IDS, 1)
BOUND = 1e-5


def make(transformers, name, ending, folder):
    """Return a random Transformers model, saved to `folder`, and trainrig's model of it."""
    kind, settings = {**CLASSIFIERS, **DETECTORS}[name]
    labels = {"id2label": dict(enumerate(LABELS))} if ending == "SequenceClassification" else {}
    small = {"vocab_size": 331, "pad_token_id": 1} if kind == "GPT2" else SMALL
    return peer_models.make_encoder(transformers, kind, ending, small | settings | labels, folder)


def inputs(config, segments):
    """Return the inputs of trainrig's model: a position of each row, and each token's segment."""
    places = torch.tensor(LENGTHS) - 1
    if config.bidirectional:
        places = torch.zeros(3, dtype=torch.long)
    given = {"places_N": torch.arange(3) * 20 + places} if config.head == "classes" else {}
    if config.bidirectional:
        given["documents_BS"] = THERE
        if segments is not None:
            given["segments_BT"] = segments
    return given


def reads_segments(config):
    return getattr(config, "segments", 0) > 1


@torch.no_grad()
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classes_are_transformers_and_keep_their_names(name, transformers, tmp_path):
    theirs, ours, hub = make(transformers, name, "SequenceClassification", tmp_path)
    assert (hub.config.head, hub.config.labels) == ("classes", LABELS)
    segments = (torch.arange(20) >= 5).long().expand(3, -1) if reads_segments(hub.config) else None
    more = {} if segments is None else {"token_type_ids": segments}
    expected = theirs(IDS, attention_mask=THERE, **more).logits
    assert expected.std() > 0.05
    found = ours(IDS, **inputs(hub.config, segments)).logits
    assert found.shape == (3, 3)
    assert (found - expected).abs().max() <= BOUND
    out = tmp_path / "out"
    family = write_folder(str(out), hub.config, ours.state_dict().__getitem__, hub.files)
    assert (out / "config.json").read_bytes() == (tmp_path / "config.json").read_bytes()
    assert 'pipeline_tag: "text-classification"' in (out / "README.md").read_text()
    back = peer_models.reload(transformers.AutoModelForSequenceClassification, out)
    assert (back(IDS, attention_mask=THERE, **more).logits - found).abs().max() <= BOUND
    assert back.config.id2label == dict(enumerate(LABELS))
    # Only the names of the classes change.
    renamed = hub.config.with_head("classes", ("a", "b", "c"))
    write_folder(str(tmp_path / "renamed"), renamed, ours.state_dict().__getitem__, hub.files)
    written = json.loads((tmp_path / "renamed" / "config.json").read_text())
    assert written["id2label"] == {"0": "a", "1": "b", "2": "c"}
    assert read_config(written, "config.json") == (family, renamed)


@torch.no_grad()
@pytest.mark.parametrize("name", FINDERS)
def test_spans_are_transformers(name, transformers, tmp_path):
    theirs, ours, hub = make(transformers, name, "QuestionAnswering", tmp_path)
    assert hub.config.head == "spans"
    segments = (torch.arange(20) >= 5).long().expand(3, -1) if reads_segments(hub.config) else None
    more = {} if segments is None else {"token_type_ids": segments}
    there = theirs(IDS, attention_mask=THERE, **more)
    expected = torch.stack([there.start_logits, there.end_logits], dim=-1)
    assert expected.std() > 0.05
    found = ours(IDS, **inputs(hub.config, segments)).logits
    assert ((found - expected) * THERE[:, :, None]).abs().max() <= BOUND
    out = tmp_path / "out"
    write_folder(str(out), hub.config, ours.state_dict().__getitem__, hub.files)
    back = peer_models.reload(transformers.AutoModelForQuestionAnswering, out)
    again = back(IDS, attention_mask=THERE, **more)
    assert ((again.start_logits - found[:, :, 0]) * THERE).abs().max() <= BOUND
    assert 'pipeline_tag: "question-answering"' in (out / "README.md").read_text()


@pytest.mark.parametrize("name", FINDERS)
def test_a_model_of_masked_prediction_is_written_as_a_classifier(name, transformers, tmp_path):
    """Write the export of a `posttrain` run whose config.json named another head."""
    *_, hub = make(transformers, name, "MaskedLM", tmp_path)
    config = hub.config.with_head("classes", LABELS)
    generator = torch.Generator().manual_seed(3)
    state = {n: torch.randn(s, generator=generator) for n, s in parameter_shapes(config).items()}
    out = tmp_path / "out"
    write_folder(str(out), config, state.__getitem__, hub.files)
    theirs = peer_models.reload(transformers.AutoModelForSequenceClassification, out)
    assert theirs.config.id2label == dict(enumerate(LABELS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem_type": "multi_label_classification"}, "problem_type is 'multi_label"),
        ({"id2label": {"0": "LABEL_0"}}, "has one output, which is a regression"),
    ],
)
def test_a_classifier_that_we_would_compute_otherwise_is_refused(changes, message):
    given = {
        "model_type": "bert", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 331,
        "num_hidden_layers": 2, "num_attention_heads": 4,
        "architectures": ["BertForSequenceClassification"],
    }  # fmt: skip
    assert read_config(given, "x/config.json")[1].labels == ("LABEL_0", "LABEL_1")
    with pytest.raises(DataError, match=re.escape(message)):
        read_config(given | changes, "x/config.json")


def test_a_head_without_the_names_that_it_needs_is_refused():
    sizes = {"layers": 1, "channels": 8, "heads": 1, "vocabulary": 64}
    for head, labels in (("classes", ()), ("classes", ("a",)), ("tokens", ("a", "b"))):
        with pytest.raises(ValueError, match="labels names"):
            DecoderConfig.model_validate(sizes | {"head": head, "labels": labels})
    with pytest.raises(ValueError, match="choose an encoder"):
        DecoderConfig.model_validate(sizes | {"head": "spans"})


@torch.no_grad()
@pytest.mark.parametrize("width", [24, 32])
def test_a_discriminator_equals_transformers_and_exports_unchanged(width, transformers, tmp_path):
    theirs, ours, hub = make(transformers, f"electra-{width}", "PreTraining", tmp_path)
    assert hub.config.head == "replaced"
    segments = (torch.arange(20) >= 5).long().expand(3, -1)
    expected = theirs(IDS, attention_mask=THERE, token_type_ids=segments).logits
    found = ours(IDS, **inputs(hub.config, segments)).logits.squeeze(-1)
    assert expected.std() > 0.05
    assert (found - expected).abs()[THERE > 0].max() <= BOUND
    out = tmp_path / "out"
    write_folder(str(out), hub.config, ours.state_dict().__getitem__, hub.files)
    assert (out / "config.json").read_bytes() == (tmp_path / "config.json").read_bytes()
    back = transformers.AutoModel.from_pretrained(out, attn_implementation="eager").eval()
    states = back(IDS, attention_mask=THERE, token_type_ids=segments).last_hidden_state
    mine = ours.compute_states(IDS, documents_BS=THERE, segments_BT=segments)
    assert (states - mine).abs()[THERE > 0].max() <= BOUND


@torch.no_grad()
def test_a_discriminator_and_its_generator_export_separately(transformers, tmp_path):
    config = EncoderConfig.model_validate(
        {
            "preset": "electra-small", "layers": 2, "channels": 32, "heads": 4, "vocabulary": 320,
            "feedforward_channels": 64, "positions": 32, "embedding_channels": 24,
            "generator": {"channels": 16, "heads": 2}, "initial_std": 0.2,
        }
    )  # fmt: skip
    model = build_model(config)
    initialise(model, 3)
    files = TokenizerFiles(brought.brought("gpt2").tokenizer)
    run = str(tmp_path / "run")
    tensors = model.state_dict()
    planned = {
        name: PlannedTensor(tuple(tensor.shape), tensor.clone) for name, tensor in tensors.items()
    }
    checkpoint.write_model(run, config, files.tokenizer, planned, {})
    with pytest.raises(SystemExit) as ended:
        cli.main(["export", run, str(tmp_path / "discriminator")])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        cli.main(["export", run, str(tmp_path / "generator"), "--generator"])
    assert ended.value.code == 0
    ids = 2 + IDS % 300
    whole = model(ids, replace=lambda _: ids)
    found = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "discriminator").eval()
    assert (found(ids).logits - whole.detected.logits.squeeze(-1)).abs().max() <= BOUND
    drawn = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "generator").eval()
    assert (drawn(ids).logits - whole.generated.logits).abs().max() <= BOUND
    with pytest.raises(ConfigError, match="without a generator"):
        imported = str(tmp_path / "imported")
        import_checkpoint(str(tmp_path / "discriminator"), imported)
        export_checkpoint(imported, str(tmp_path / "none"), HubFolder(), generator=True)
