"""Fixtures of post-training, and small encoders with their tokenizers."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.row_run_files import ConversationEncoding

WORDS = """
    the sea is grey calm and cold a storm ship sails north goal match team wins loses by two
    three one who when where was built in harbour london 1870 ? . , ##s ##ly un ##known
"""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a Hugging Face folder of a random BERT for masked prediction with its tokenizer."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("bert")
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789", *(f"##{c}" for c in "abcdefghijklmnopqrst")]
    vocabulary = {
        word: n for n, word in enumerate(dict.fromkeys([*SPECIAL, *WORDS.split(), *letters]))
    }
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=ends
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip
    fast.save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=48, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(3)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def modernbert(bert: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a Hugging Face folder of a random ModernBERT, which has one local layer."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("modernbert")
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    tokenizer.save_pretrained(folder)
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=48, local_attention=8,
        bos_token_id=None, eos_token_id=None, cls_token_id=2, sep_token_id=3, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(3)
    transformers.ModernBertForMaskedLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def write_rows(tmp_path: Path):
    """Return `write_rows("name", rows)`, which writes a file of rows and returns its path."""

    def write(name, rows):
        path = tmp_path / f"{name}.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)

    return write


@pytest.fixture
def encode(bert, write_rows, tmp_path):
    """Return `encode(rows, output)`, which encodes rows with labels in this process."""

    def run(given_rows, output="encoded", **settings):
        given = {
            "sources": ({"source": "s", "paths": (write_rows(output, given_rows),)},),
            "tokenizer": bert, "output": str(tmp_path / output), "workers": 0, "held_out": 0,
            "sequence_length": 24, "rows": "classified",
        }  # fmt: skip
        return encode_conversations(ConversationEncoding.model_validate(given | settings))

    return run
