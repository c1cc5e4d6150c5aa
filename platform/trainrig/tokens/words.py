"""Where a text is cut into words before any merge; merges never cross these cuts."""

from typing import Literal

import tokenizers
from tokenizers import pre_tokenizers

LLAMA_3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def word_splitter(words: Literal["gpt2", "llama3"]) -> pre_tokenizers.PreTokenizer:
    """Cuts a text into words, and writes their bytes in byte-level characters."""
    if words == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    cut = pre_tokenizers.Split(tokenizers.Regex(LLAMA_3_WORDS), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([cut, to_bytes])
