"""Special tokens: those that no text makes, only code that means to."""

from collections.abc import Mapping, Sequence

END_OF_TEXT = "<|end_of_text|>"
PAD = "<|pad|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END_OF_TURN = "<|end_of_turn|>"
BEGIN_OF_TEXT = "<|begin_of_text|>"
SYSTEM = "<|system|>"
MASK = "<|mask|>"  # one that we train has it if its `extra` tokens name it
# In tokenizers that we train, their ids are their places here: 0 … 6.
SPECIAL_TOKENS = (END_OF_TEXT, PAD, USER, ASSISTANT, END_OF_TURN, BEGIN_OF_TEXT, SYSTEM)

# What published tokenizers call these roles, where they do not use our names.
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


# What objectives other than next-token prediction ask a tokenizer for: no role of a text, so that
# each is found by these names alone. Where published tokenizers have one, its name is taken.
# What stands before, after and in place of the middle, arXiv:2207.14255.
FIM_PREFIX = ("<|fim_prefix|>", "<fim_prefix>", "<｜fim▁begin｜>")  # Qwen; StarCoder; DeepSeek
FIM_SUFFIX = ("<|fim_suffix|>", "<fim_suffix>", "<｜fim▁hole｜>")
FIM_MIDDLE = ("<|fim_middle|>", "<fim_middle>", "<｜fim▁end｜>")
# Say which denoiser a row is of: the names of the paper, arXiv:2205.05131, and of its checkpoints.
MODES: Mapping[str, tuple[str, ...]] = {
    "R": ("[R]", "[NLU]"),
    "S": ("[S]", "[S2S]"),
    "X": ("[X]", "[NLG]"),
}


def name_sentinel(number: int) -> str:
    """The name of the token that stands for span `number`, from 0, of those left out (T5's)."""
    return f"<extra_id_{number}>"


def list_special_tokens(reserved: int, sentinels: int = 0, extra: Sequence[str] = ()) -> list[str]:
    """The special tokens of a tokenizer that we train, by id: ours, `reserved` slots, `sentinels`
    and `extra` ones.

    A slot is a special token without a meaning yet. A model that has one can be taught it later
    without its vocabulary growing.
    """
    slots = (f"<|reserved_{slot}|>" for slot in range(reserved))
    return [*SPECIAL_TOKENS, *slots, *map(name_sentinel, range(sentinels)), *extra]


def find_named(tokens: Mapping[str, int], names: Sequence[str]) -> int | None:
    """The id of the first of `names` that is among `tokens`; None: none is."""
    return next((tokens[name] for name in names if name in tokens), None)


def find_role_id(tokens: Mapping[str, int], role: str) -> int | None:
    """The id that plays `role` (`END_OF_TEXT`, `PAD`, …) among the special tokens `tokens`.

    Our own name wins over published ones, so an imported tokenizer's `</s>` is its end of text
    unless it has an `<|end_of_text|>` too. Any other special token is found by its own name. None
    if there is none such.
    """
    for name in (role, *PUBLISHED_NAMES.get(role, ())):
        if name in tokens:
            return tokens[name]
    return None
