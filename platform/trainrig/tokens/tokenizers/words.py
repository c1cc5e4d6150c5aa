"""Where a text is cut into words before anything else; no entry crosses these cuts."""

from typing import Literal

import tokenizers
from tokenizers import pre_tokenizers

# "gpt2" keeps a number whole; "llama3" (arXiv:2407.21783) cuts it into groups of three digits and
# puts a mark before a word into the word.
Words = Literal["gpt2", "llama3"]
# "none": no words at all. Entries may be phrases, and training costs far more.
WordsOrNone = Literal["gpt2", "llama3", "none"]

# GPT-2's encoder.py (Radford et al. 2019).
GPT_2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The one cut that "none" makes: how the names of our special tokens begin. The other kinds of words
# part letters from marks, so no entry can be such a name; without any cut one could be learned.
NAME_BEGINS = "<|"


def make_word_splitter(words: WordsOrNone) -> pre_tokenizers.PreTokenizer:
    """Cuts a text into words, and writes their bytes in byte-level characters."""
    if words == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([make_plain_splitter(words), to_bytes])


def make_plain_splitter(words: WordsOrNone) -> pre_tokenizers.PreTokenizer:
    """Cuts a text into words, and leaves them the text that they are."""
    if words == "none":
        return pre_tokenizers.Split(NAME_BEGINS, behavior="isolated")
    pattern = {"gpt2": GPT_2_WORDS, "llama3": LLAMA_3_WORDS}[words]
    return pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
