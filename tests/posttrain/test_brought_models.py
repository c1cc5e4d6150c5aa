"""A Hugging Face model: imported, tuned, used in a chat, and exported."""

import json
from pathlib import Path

import pytest
import torch
from support import brought

from trainrig.errors import DataError
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.families.safetensors_files import open_tensors
from trainrig.models.huggingface import HubFolder, write_folder
from trainrig.models.token_sampling import Sampling
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint
from trainrig.posttrain.text_generator import (
    TextGenerator,
    TextRequest,
    generate_file,
    read_prompts,
)
from trainrig.posttrain.tuning.fine_tuning import posttrain
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.tokens.chat.chat_messages import Message
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.train.checkpoint import StoredModel
from trainrig.train.pretrain import pretrain
from trainrig.train.run_file.run_files import Pretraining

DRAWN = Sampling(temperature=1.2, top_p=0.95, maximum_tokens=12, seed=3)
SIZES = {"layers": 2, "channels": 32, "heads": 4, "positions": 128, "initial_std": 0.3}


def folder_of(family: str, out: Path, **changes: str) -> Path:
    """Return a Hugging Face folder with the tokenizer of `family`."""
    files = brought.brought(family)
    files = type(files)(files.tokenizer, {**files.beside, **changes})
    config = DecoderConfig(**SIZES, vocabulary=448)
    model = Decoder(config)
    initialise(model, 2)
    settings = HubFolder(dtype="bfloat16")
    write_folder(str(out), config, model.state_dict().__getitem__, files, settings)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama2", "llama3", "qwen", "gemma"])
def test_all_but_the_weights_of_a_tuned_model_is_what_was_brought(
    family, tmp_path, encode_rows, without_ray
):
    hub = folder_of(family, tmp_path / "hub")
    roles = {} if brought.brought(family).chat_template else {"end_of_turn": "<|endoftext|>"}
    import_checkpoint(str(hub), str(tmp_path / "run"), roles)
    tuned = str(tmp_path / "run")
    if not roles:  # without a chat template it cannot be tuned
        rows = [
            {
                "messages": [
                    {"role": "user", "content": "sea?"},
                    {"role": "assistant", "content": "salt " * n},
                ]
            }
            for n in (1, 2, 3, 4)
        ]
        encode_rows(rows, tokenizer=str(tmp_path / "run"))
        tuned = str(tmp_path / "tuned")
        posttrain(FineTuning.model_validate({
            "checkpoint": str(tmp_path / "run"), "conversations": str(tmp_path / "encoded"),
            "output": tuned,
            "batches": {"sequence_length": 64, "global_batch": 2, "micro_batch": 2},
            "training": {"steps": 2, "virtual_workers": 1, "held_out": {"rows": 0}},
        }))  # fmt: skip
    facts = export_checkpoint(tuned, str(tmp_path / "out"), HubFolder())
    assert facts["family"] == "llama"
    names = {path.name for path in hub.iterdir()}
    assert names == {path.name for path in (tmp_path / "out").iterdir()}
    for name in names - {"model.safetensors"}:
        assert (tmp_path / "out" / name).read_bytes() == (hub / name).read_bytes(), name
    before = open_tensors(str(hub))
    after = open_tensors(str(tmp_path / "out"))
    same = all(torch.equal(before[name].read(), after[name].read()) for name in before)
    assert same == bool(roles)  # tuned weights differ, in the dtype of the imported ones


@pytest.fixture(scope="module")
def speaker(tmp_path_factory) -> TextGenerator:
    """Return a random model with Qwen's tokenizer and template."""
    folder = tmp_path_factory.mktemp("speaker")
    import_checkpoint(str(folder_of("qwen", folder / "hub")), str(folder / "run"))
    return TextGenerator.open(str(folder / "run"))


def test_prompts_are_rendered_by_the_template_that_came_along(speaker):
    asked = (Message("system", "be kind"), Message("user", "<|im_end|> sea?"))
    ids = speaker.encode_prompt(asked)
    special = speaker.encoder.special_ids
    text = "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\n<|im_end|> sea?<|im_end|>\n"
    assert speaker.encoder.decode(ids) == text + "<|im_start|>assistant\n"
    assert ids.count(special["<|im_end|>"]) == 2  # the user's mention of it is plain text
    assert speaker.encode_prompt("sea") == speaker.encoder.encode_batch(["sea"])[0].tolist()


def test_a_request_gets_the_same_text_alone_and_in_a_batch(speaker):
    requests = [
        TextRequest(text, DRAWN.model_copy(update={"seed": seed}))
        for seed, text in enumerate(("the sea", "a", "What is the fox?", "the lazy dog sleeps"))
    ]
    together = speaker.speak_all(requests)
    assert [speaker.speak_all([request])[0] for request in requests] == together
    assert speaker.speak_all(requests[::-1]) == together[::-1]
    assert len({answer.text for answer in together}) == 4


def test_a_stop_text_ends_the_answer_where_it_begins_and_pieces_are_what_is_returned(speaker):
    whole = speaker.speak("the sea", DRAWN)
    for begin, length in ((2, 3), (4, 1), (1, 6)):
        stop = whole.text[begin : begin + length]
        pieces: list[str] = []
        cut = DRAWN.model_copy(update={"stop": ("nowhere", stop)})
        said = speaker.speak_all([TextRequest("the sea", cut, pieces.append)])[0]
        assert (said.text, said.stopped) == (whole.text[: whole.text.index(stop)], "stop")
        assert "".join(pieces) == said.text
    pieces = []
    free = speaker.speak_all([TextRequest("the sea", DRAWN, pieces.append)])[0]
    assert "".join(pieces) == free.text == whole.text and len(pieces) > 3


def test_a_template_without_a_prompt_for_the_assistant_is_refused(tmp_path):
    template = brought.CHATML.partition("{% if add_generation_prompt")[0]
    hub = folder_of("qwen", tmp_path / "hub", **{"chat_template.jinja": template})
    import_checkpoint(str(hub), str(tmp_path / "run"))
    with pytest.raises(DataError, match=r"nothing to prompt.*<\|im_end\|>") as told:
        TextGenerator.open(str(tmp_path / "run")).speak("sea?", DRAWN, chat=True)
    assert "\n" not in str(told.value)


def test_a_file_of_prompts_is_answered_row_by_row(tmp_path):
    hub = folder_of("qwen", tmp_path / "hub")
    import_checkpoint(str(hub), str(tmp_path / "run"))
    rows = [{"prompt": "the sea", "id": 7}, {"messages": [{"role": "user", "content": "fox?"}]},
            {"prompt": "a dog", "seed": 5}]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    places = str(tmp_path / "run"), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")
    counts = generate_file(*places, DRAWN, batch=2)
    assert counts["rows"] == 3
    said = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [{k: v for k, v in row.items() if k not in ("text", "stopped")} for row in said] == rows
    alone = TextGenerator.open(places[0])
    assert said[0]["text"] == alone.speak("the sea", DRAWN).text
    assert said[2]["text"] == alone.speak("a dog", DRAWN.model_copy(update={"seed": 5})).text
    assert not (tmp_path / "out.jsonl.parts").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{\n", r"in.jsonl:1: not JSON"),
        ('{"prompt": "a"}\n{"text": "b"}\n', r"in.jsonl:2: 'prompt'"),
        ('{"prompt": 3}\n', "in.jsonl:1: `prompt` is not text"),
        ('{"messages": "x"}\n', "in.jsonl:1: .*a row is an object"),
        ("\n", "has no rows"),
    ],
)
def test_rows_that_ask_for_nothing_are_refused_by_line(tmp_path, content, message):
    (tmp_path / "in.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        read_prompts(str(tmp_path / "in.jsonl"))
    with pytest.raises(DataError, match=r"no such file.*JSONL"):
        read_prompts(str(tmp_path / "nowhere.jsonl"))


@pytest.mark.slow
def test_pretraining_continues_an_imported_model_and_keeps_its_files(tmp_path, without_ray):
    hub = folder_of("gemma", tmp_path / "hub")
    import_checkpoint(str(hub), str(tmp_path / "run"), added=["<|tool|>"])
    stored = StoredModel(str(tmp_path / "run"))
    (tmp_path / "pages.jsonl").write_text(
        "".join(json.dumps({"text": f"{n} the sea is salt water " * 9}) + "\n" for n in range(40))
    )
    documents = ({"kind": "JSONL", "paths": (str(tmp_path / "pages.jsonl"),), "source": "pages"},)
    tokenize(Tokenization.model_validate({
        "documents": documents, "tokenizer": stored.files.where, "workers": 0,
        "output": str(tmp_path / "tokens"), "held_out": 0, "begin_of_text": True,
    }))  # fmt: skip
    pretrain(Pretraining.model_validate({
        "tokens": str(tmp_path / "tokens"), "continue_from": str(tmp_path / "run"),
        "output": str(tmp_path / "on"),
        "batches": {"sequence_length": 32, "global_batch": 2, "micro_batch": 2},
        "training": {"steps": 2, "virtual_workers": 1, "held_out": {"rows": 0}},
    }))  # fmt: skip
    export_checkpoint(str(tmp_path / "on"), str(tmp_path / "out"), HubFolder())
    for name in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (hub / name).read_bytes()
    assert "<|tool|>" in (tmp_path / "out" / "tokenizer.json").read_text()
