"""Rules that split a text into words before tokenization; no vocabulary entry crosses a split."""

from typing import Literal

import tokenizers
from tokenizers import pre_tokenizers

# "gpt2" keeps a number whole. "llama3" (arXiv:2407.21783) splits it into groups of three digits,
# and a word includes a punctuation mark directly before it.
Words = Literal["gpt2", "llama3"]
# "none" does not split at all. Entries may then be phrases, and training costs far more.
WordsOrNone = Literal["gpt2", "llama3", "none"]

# Pattern from GPT-2's encoder.py (Radford et al. 2019).
GPT_2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# "none" does split here: the names of trainrig's special tokens begin like this. The other rules
# separate letters from punctuation, so no entry can be such a name; without any split one could.
NAME_BEGINS = "<|"


def make_word_splitter(words: WordsOrNone) -> pre_tokenizers.PreTokenizer:
    """Return a splitter into words that writes the words' bytes as byte-level characters."""
    if words == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([make_plain_splitter(words), to_bytes])


def make_plain_splitter(words: WordsOrNone) -> pre_tokenizers.PreTokenizer:
    """Return a splitter into words that leaves the words' text as it is."""
    if words == "none":
        return pre_tokenizers.Split(NAME_BEGINS, behavior="isolated")
    pattern = {"gpt2": GPT_2_WORDS, "llama3": LLAMA_3_WORDS}[words]
    return pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
