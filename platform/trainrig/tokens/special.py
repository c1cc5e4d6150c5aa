"""Names of special tokens, which are inserted by code and never produced from text."""

from collections.abc import Mapping, Sequence

END_OF_TEXT = "<|end_of_text|>"
PAD = "<|pad|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END_OF_TURN = "<|end_of_turn|>"
BEGIN_OF_TEXT = "<|begin_of_text|>"
SYSTEM = "<|system|>"
MASK = "<|mask|>"  # only in tokenizers trained with it among their `extra` tokens
# In tokenizers that trainrig trains, the ids are the indices in this tuple: 0 … 6.
SPECIAL_TOKENS = (END_OF_TEXT, PAD, USER, ASSISTANT, END_OF_TURN, BEGIN_OF_TEXT, SYSTEM)

# Names of these roles in published tokenizers, which may not use trainrig's names.
PUBLISHED_NAMES: Mapping[str, tuple[str, ...]] = {
    END_OF_TEXT: (
        "<|endoftext|>",  # GPT-2, GPT-NeoX, OLMo, Qwen
        "</s>",  # Llama 2, Mistral
        "<eos>",  # Gemma
        "<｜end▁of▁sentence｜>",  # DeepSeek
    ),
    PAD: (
        "<pad>",  # Gemma
        "[PAD]",
        "<|padding|>",  # GPT-NeoX, OLMo
        "<|finetune_right_pad_id|>",  # Llama 3.1
        "<｜▁pad▁｜>",  # DeepSeek
    ),
    USER: ("<｜User｜>",),  # DeepSeek
    ASSISTANT: ("<｜Assistant｜>",),  # DeepSeek
    END_OF_TURN: (
        "<|eot_id|>",  # Llama 3
        "<|im_end|>",  # Qwen
        "<end_of_turn>",  # Gemma
    ),
    BEGIN_OF_TEXT: (
        "<s>",  # Llama 2, Mistral
        "<bos>",  # Gemma
        "<｜begin▁of▁sentence｜>",  # DeepSeek
    ),
    SYSTEM: (),
    MASK: (
        "[MASK]",  # BERT, ModernBERT
        "<mask>",  # RoBERTa
    ),
}


# Tokens that objectives other than next-token prediction need. They have no role in a text, so they
# are found by these names alone: names in published tokenizers, where there are any.
# Fill in the middle (arXiv:2207.14255): before the prefix, before the suffix, before the middle.
FIM_PREFIX = ("<|fim_prefix|>", "<fim_prefix>", "<｜fim▁begin｜>")  # Qwen; StarCoder; DeepSeek
FIM_SUFFIX = ("<|fim_suffix|>", "<fim_suffix>", "<｜fim▁hole｜>")
FIM_MIDDLE = ("<|fim_middle|>", "<fim_middle>", "<｜fim▁end｜>")
# Denoisers of UL2, which mark a row: names in the paper (arXiv:2205.05131) and its checkpoints.
MODES: Mapping[str, tuple[str, ...]] = {
    "R": ("[R]", "[NLU]"),
    "S": ("[S]", "[S2S]"),
    "X": ("[X]", "[NLG]"),
}


def name_sentinel(number: int) -> str:
    """Return T5's name for the token that replaces left-out span `number`, counted from 0."""
    return f"<extra_id_{number}>"


def list_special_tokens(reserved: int, sentinels: int = 0, extra: Sequence[str] = ()) -> list[str]:
    """Return the special tokens of a tokenizer that trainrig trains, in the order of their ids.

    These are trainrig's own, `reserved` slots, `sentinels` for spans, and the `extra` ones. A slot
    is a special token without a meaning. A model can be taught one later without new entries in
    its vocabulary.
    """
    slots = (f"<|reserved_{slot}|>" for slot in range(reserved))
    return [*SPECIAL_TOKENS, *slots, *map(name_sentinel, range(sentinels)), *extra]


def find_named(tokens: Mapping[str, int], names: Sequence[str]) -> int | None:
    """Return the id of the first of `names` that is among `tokens`, or None."""
    return next((tokens[name] for name in names if name in tokens), None)


def find_role_id(tokens: Mapping[str, int], role: str) -> int | None:
    """Return the id of the token with `role` (`END_OF_TEXT`, `PAD`, …) among `tokens`, or None.

    trainrig's own name takes precedence over published names: an imported tokenizer's `</s>` is its
    end of text unless it also has `<|end_of_text|>`. A special token that is not a role is found by
    its own name.
    """
    for name in (role, *PUBLISHED_NAMES.get(role, ())):
        if name in tokens:
            return tokens[name]
    return None
