"""Prompts of tasks in chat form, by the templates of published models."""

import importlib.util
import json
from pathlib import Path

import pytest
import tokenizers

from trainrig.evaluate.engine.request_encoding import encode_chat_prompt
from trainrig.tokens.tokenizers.encode import Encoder

transformers = pytest.importorskip("transformers")
SPECIAL = [
    *("<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>"),
]
NAMED = {"bos_token": "<bos>", "eos_token": "<eos>"}
TURNS = [("user", "1 + 1?"), ("assistant", "2"), ("user", "2 + 2?")]


@pytest.fixture(scope="module")
def library():
    """Return a tokenizer that puts a BOS before each text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(special_tokens=SPECIAL, initial_alphabet=alphabet)
    made.train_from_iterator(["sky"], trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    return made


@pytest.mark.parametrize("name", ["qwen3", "llama3", "llama3_1", "gemma3"])
def test_a_prompt_is_rendered_by_the_models_own_template_with_one_bos(name, library):
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("TRL is not installed")
    template = (Path(found.origin).parent / "chat_templates" / f"{name}.jinja").read_text()
    files = {"chat_template.jinja": template, "tokenizer_config.json": json.dumps(NAMED)}
    encoder = Encoder(library.to_str(), beside=files)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **NAMED)
    expected = theirs.apply_chat_template(
        [{"role": role, "content": words} for role, words in TURNS],
        chat_template=template,
        add_generation_prompt=True,
        return_dict=False,
    )
    ids = encode_chat_prompt(encoder, TURNS)
    assert ids == expected
    assert ids.count(0) == ("bos_token" in template)
