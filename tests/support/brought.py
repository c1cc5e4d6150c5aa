"""Tokenizers like the families' published ones, built of their own parts and trained here."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.tokens.tokenizers.tokenizer_kinds import GPT_2_WORDS, LLAMA_3_WORDS

TEXTS = (
    "the quick brown fox jumps over the lazy dog, and then the fox sleeps",
    "What is the sea?\n\nThe sea is a grey mirror; the sea is salt water.",
    "def add(a, b):\n    return a + b  # 12345 numbers, 67 more",
    "Ein Bär, ein Fluß, der Himmel über Köln; naïve café, 猫が好き",
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_2_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA_3_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def _byte_level(words: str, special: list[str], normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(BPE(ignore_merges=bool(words == LLAMA_3_WORDS)))
    tokenizer.normalizer = normalizer
    if words == GPT_2_WORDS:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(words), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    tokenizer.add_special_tokens(special)  # added after the merges, as in these families
    return tokenizer


def _sentencepiece(special: list[str], prefix_space: bool) -> Tokenizer:
    tokenizer = Tokenizer(BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replace = normalizers.Replace(" ", "▁")
    steps: list[Any] = [
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
    ]  # fmt: skip
    if prefix_space:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = replace
    tokenizer.decoder = decoders.Sequence(steps)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = BpeTrainer(
        vocab_size=len(special) + 256 + 90,
        special_tokens=[*special, *bytes_],
        limit_alphabet=45,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    described = json.loads(tokenizer.to_str())
    # Bytes are entries of the model, not added tokens that are matched in texts.
    described["added_tokens"] = [t for t in described["added_tokens"] if t["content"] in special]
    return Tokenizer.from_str(json.dumps(described))


def _begin(tokenizer: Tokenizer, token: str) -> Tokenizer:
    tokenizer.post_processor = TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B",
        special_tokens=[(token, tokenizer.token_to_id(token))],
    )  # fmt: skip
    return tokenizer


def _gpt2() -> tuple[Tokenizer, dict[str, Any], str | None]:
    return (
        _byte_level(GPT_2_WORDS, ["<|endoftext|>"]),
        {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"},
        None,
    )


def _llama2() -> tuple[Tokenizer, dict[str, Any], str | None]:
    config = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": None, "padding_side": "left"}
    tokenizer = _sentencepiece(["<unk>", "<s>", "</s>"], prefix_space=True)
    return _begin(tokenizer, "<s>"), config | {"add_bos_token": True}, LLAMA_2_TEMPLATE


def _llama3() -> tuple[Tokenizer, dict[str, Any], str | None]:
    special = [
        "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>",
        "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
    ]  # fmt: skip
    tokenizer = _byte_level(LLAMA_3_WORDS, special)
    config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    return _begin(tokenizer, "<|begin_of_text|>"), config, LLAMA_3_TEMPLATE


def _qwen() -> tuple[Tokenizer, dict[str, Any], str | None]:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = LLAMA_3_WORDS.replace("{1,3}", "")
    tokenizer = _byte_level(words, special, normalizers.NFC())
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    config = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return tokenizer, config | {"add_bos_token": False}, CHATML


def _gemma() -> tuple[Tokenizer, dict[str, Any], str | None]:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = _sentencepiece(special, prefix_space=False)
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    return _begin(tokenizer, "<bos>"), config, GEMMA_TEMPLATE


FAMILIES: dict[str, Callable[[], tuple[Tokenizer, dict[str, Any], str | None]]] = {
    "gpt2": _gpt2, "llama2": _llama2, "llama3": _llama3, "qwen": _qwen, "gemma": _gemma,
}  # fmt: skip


@cache
def brought(family: str) -> TokenizerFiles:
    """Return the tokenizer of `family` and its side files."""
    tokenizer, config, template = FAMILIES[family]()
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, **config}
    described["clean_up_tokenization_spaces"] = False
    files = {"tokenizer_config.json": json.dumps(described, indent=2)}
    if template:
        files["chat_template.jinja"] = template
    ends = [config["eos_token"], *(["<|end_of_text|>"] if family == "llama3" else [])]
    generation = {"eos_token_id": [tokenizer.token_to_id(end) for end in ends]}
    files["generation_config.json"] = json.dumps(generation | {"temperature": 0.6, "top_p": 0.9})
    return TokenizerFiles(tokenizer.to_str(), files)


def write(family: str, folder: Any) -> None:
    """Write the files of `family` into `folder`."""
    files = brought(family)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(files.tokenizer)
    for name, text in files.beside.items():
        (folder / name).write_text(text)
