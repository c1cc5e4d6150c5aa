"""Roles of special tokens, found in the files of published tokenizers."""

import json
import pickle

import pytest
from support.brought import brought, write

from trainrig.errors import DataError
from trainrig.tokens.special_tokens import ROLES, TokenizerFiles, find_special_tokens
from trainrig.tokens.tokenizers.encode import Encoder

TEXTS = (
    "the sea is salt",
    " two  spaces",
    "x = 1\n\ty",
    "naïve 猫 Köln",
    "<|im_end|></s><eos>",
    "",
)

# The token of each role, and the ids that end an answer.
EXPECTED = {
    "gpt2": ("<|endoftext|>", "<|endoftext|>", None, None, {"<|endoftext|>"}, None),
    "llama2": ("<s>", "</s>", None, "</s>", {"</s>"}, "<s>"),
    "llama3": (
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|finetune_right_pad_id|>",
        "<|eot_id|>",
        {"<|eot_id|>", "<|end_of_text|>"},
        "<|begin_of_text|>",
    ),
    "qwen": (None, "<|endoftext|>", "<|endoftext|>", "<|im_end|>",
             {"<|im_end|>", "<|endoftext|>"}, None),
    "gemma": ("<bos>", "<eos>", "<pad>", "<end_of_turn>", {"<eos>", "<end_of_turn>"}, "<bos>"),
}  # fmt: skip


@pytest.mark.parametrize("family", EXPECTED)
def test_roles_are_found_in_the_files(family):
    found = find_special_tokens(brought(family))
    tokens = [found.begin, found.end, found.pad, found.end_of_turn]
    *texts, stops, prefix = EXPECTED[family]
    assert [token and token.text for token in tokens] == texts
    assert set(found.stop_ids) == {found.names[token] for token in stops}
    assert found.prefix == ((found.names[prefix],) if prefix else ())
    assert found.padding == (found.pad or found.end).id


@pytest.mark.parametrize("family", EXPECTED)
def test_texts_come_back_and_ids_are_the_librarys(family):
    transformers = pytest.importorskip("transformers")
    files = brought(family)
    encoder = Encoder.of(files)
    config = json.loads(files.beside["tokenizer_config.json"])
    roles = {key: value for key, value in config.items() if key.endswith("_token") and value}
    from tokenizers import Tokenizer

    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(files.tokenizer), **roles
    )
    for text, ids in zip(TEXTS, encoder.encode_batch(TEXTS), strict=True):
        assert encoder.decode_text(ids.tolist()) == text
        if "<" not in text:
            assert ids.tolist() == theirs.encode(text, add_special_tokens=False)
        assert not set(ids.tolist()) & set(encoder.special_ids.values())
    assert encoder.adds_space == (family == "llama2")
    again = pickle.loads(pickle.dumps(encoder))
    assert again.special_tokens == encoder.special_tokens


def test_an_unknown_role_is_requested_in_one_line():
    bare = TokenizerFiles(brought("qwen").tokenizer.replace("<|endoftext|>", "<|fin|>"))
    found = find_special_tokens(bare)
    with pytest.raises(DataError, match=r"role \'end\'.*<\|fin\|>") as error:
        found.of("end")
    assert "\n" not in str(error.value)
    assert find_special_tokens(bare.with_roles({"end": "<|fin|>"})).of("end").text == "<|fin|>"
    with pytest.raises(DataError, match=r"token '<eof>'.*role 'end'"):
        find_special_tokens(bare.with_roles({"end": "<eof>"}))
    with pytest.raises(DataError, match="no role 'eos'"):
        bare.with_roles({"eos": "x"})


def test_files_are_read_from_a_folder_and_carried_as_one(tmp_path):
    write("llama3", tmp_path)
    files = TokenizerFiles.read(str(tmp_path))
    assert files.beside == brought("llama3").beside
    carried = tmp_path / "carried"
    carried.mkdir()
    (carried / "tokenizer.json").write_text(files.tokenizer)
    (carried / "brought.json").write_bytes(files.with_roles({"pad": "<|eom_id|>"}).brought)
    again = TokenizerFiles.read(str(carried))
    assert set(again.beside) == {*files.beside, ROLES}
    assert find_special_tokens(again).of("pad").text == "<|eom_id|>"
    with pytest.raises(DataError, match=r"tokenizer\.json: no such file"):
        TokenizerFiles.read(str(tmp_path / "nowhere"))


def test_the_default_of_several_templates_is_used():
    config = {
        "chat_template": [{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}]
    }
    files = TokenizerFiles("", {"tokenizer_config.json": json.dumps(config)})
    assert files.chat_template == "b"
