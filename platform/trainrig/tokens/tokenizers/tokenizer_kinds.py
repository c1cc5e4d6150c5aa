"""All kinds of tokenizers that a run file can name, and how each is trained.

To add a kind, write settings that have a `kind` and a `train` method. Add the class to `Tokenizer`
in tokens/tokenizer.py, and a line to the table in this module's tests, which check the properties
that all kinds share.

No vocabulary entry crosses the border of a word. WordPiece splits each word into the longest
entries that fit, left to right. Of all ways to cut a word into entries, Unigram uses the most
probable one.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

import tokenizers
from pydantic import model_validator
from tokenizers import decoders, models, pre_tokenizers, trainers

from trainrig.config import Field, Settings
from trainrig.errors import DataError
from trainrig.processes.interruptible import InterruptibleCall
from trainrig.tokens.special_tokens import list_special_tokens
from trainrig.tokens.tokenizers.entry_bytes import BYTE_ENTRIES, list_byte_characters
from trainrig.tokens.tokenizers.unigram_training import choose_pieces

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


class Trained(Settings):
    """A tokenizer with a vocabulary of a given size, in which special tokens come first.

    Every kind is lossless for any text, produces no special token from text, and gives the same
    file, byte for byte, for the same texts in any order and on any number of threads.
    """

    # Number and description of the entries that every vocabulary of this kind has, so that it can
    # encode any text, such as (256, "bytes").
    required_entries: ClassVar[tuple[int, str]]

    # Number of entries in the vocabulary, including special tokens and reserved slots.
    vocabulary: int = 32_768
    # Number of special tokens without a meaning, <|reserved_0|> and so on, that can be given one in
    # later training.
    reserved: int = Field(default=0, ge=0)
    # Number of special tokens <extra_id_0> and so on, which mark spans left out of a text.
    # SpanCorruption and UL2 need them.
    sentinels: int = Field(default=0, ge=0)
    # Additional special tokens, after all others: ["<|mask|>"] for masked prediction, or
    # ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"] for filling in the middle.
    extra: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_vocabulary_size(self) -> Self:
        names = self.special
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"extra: {twice!r} is a special token already; leave it out")
        if "" in self.extra:
            raise ValueError("extra: a special token has an empty name; leave it out")
        if self.vocabulary < self.least:
            entries, what = self.required_entries
            raise ValueError(
                f"vocabulary ({self.vocabulary} entries) cannot hold {entries} {what}, "
                f"{len(names) - self.reserved} special tokens and {self.reserved} reserved slots; "
                f"set it to {self.least} or more"
            )
        return self

    @property
    def least(self) -> int:
        """Number of entries of the smallest vocabulary that can encode any text."""
        return self.required_entries[0] + len(self.special)

    @property
    def special(self) -> list[str]:
        """The special tokens in the order of their ids, including reserved slots."""
        return list_special_tokens(self.reserved, self.sentinels, self.extra)


class CountedTexts:
    """Iterable over texts that counts the texts and their bytes."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._source = texts
        self.texts = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._source:
            self.texts += 1
            self.bytes += len(text.encode())
            yield text


def check_vocabulary_reached(settings: Trained, reached: int, counted: CountedTexts) -> None:
    """Raise DataError if training reached fewer entries than `settings.vocabulary`.

    `reached` is the number of entries of the trained tokenizer: short texts allow few.
    """
    if reached < settings.vocabulary:
        raise DataError(
            f"tokenizer.vocabulary: {counted.texts} texts of {counted.bytes} bytes allow at most "
            f"{reached} entries, not {settings.vocabulary}; set it to {reached} or less, or give "
            f"more text"
        )


def serialise_tokenizer(
    tokenizer: tokenizers.Tokenizer, changes: Mapping[str, Any] | None = None
) -> bytes:
    """Return the `tokenizer.json` of `tokenizer` as bytes, with top-level `changes` applied."""
    text = tokenizer.to_str()
    if changes:
        changed = json.dumps(json.loads(text) | changes)
        text = tokenizers.Tokenizer.from_str(changed).to_str()
    return bytes(text, "utf-8")


# Bytes after which a word is cut, in training by byte-pair encoding only. Each merge walks all
# words that contain its pair, so that a word of a megabyte (a protein, base64) costs as much as all
# others together. The longest words of running text, in scripts without spaces, have some hundred
# bytes.
LONGEST_TRAINED_WORD = 1_000


def _train_by_library(
    tokenizer: tokenizers.Tokenizer, texts: Iterable[str], trainer: trainers.Trainer
) -> CountedTexts:
    """Train `tokenizer` such that a signal can stop it; return the counts of `texts`."""
    counted = CountedTexts(texts)
    call = InterruptibleCall()
    call.run(lambda: tokenizer.train_from_iterator(call.feed(counted), trainer))
    return counted


class ByteLevelBPE(Trained):
    """Byte-pair encoding: repeatedly makes an entry of the most common pair of neighbours.

    Sennrich et al. 2016, arXiv:1508.07909; on bytes since GPT-2 (Radford et al. 2019, section 2.2).
    Of equally common pairs the one with the lower ids is merged first.
    """

    required_entries: ClassVar[tuple[int, str]] = (256, "bytes")

    kind: Literal["ByteLevelBPE"] = "ByteLevelBPE"
    # Rule that splits texts into words, which no entry crosses: "gpt2" keeps a number whole,
    # "llama3" splits it into groups of three digits; "none" does not split, so that entries may be
    # phrases, and training costs far more.
    words: WordsOrNone = "llama3"
    # Minimum occurrences of a pair that is merged. A pair seen once says little about other text.
    min_frequency: int = Field(default=2, ge=1)

    def train(self, texts: Iterable[str]) -> bytes:
        """Return the `tokenizer.json`; raise DataError if `texts` have too few pairs to merge."""
        tokenizer = tokenizers.Tokenizer(models.BPE())
        splitter = make_word_splitter(self.words)
        tokenizer.pre_tokenizer = splitter
        if self.words != "none":
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [splitter, pre_tokenizers.FixedLength(LONGEST_TRAINED_WORD)]
            )
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocabulary,
            min_frequency=self.min_frequency,
            special_tokens=self.special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        counted = _train_by_library(tokenizer, texts, trainer)
        tokenizer.pre_tokenizer = splitter  # encoding does not cut words
        check_vocabulary_reached(self, tokenizer.get_vocab_size(), counted)
        return serialise_tokenizer(tokenizer)


# Prefix of entries that continue a word. BERT's "##" may also be text. This character never occurs
# there, because it is not a byte-level character.
CONTINUES = "‿"
# Byte-level characters after which a word is split. The time to find the longest entry grows with
# the square of a word's length, and the library encodes a longer word as unknown.
WORD_LIMIT = 100


class WordPiece(Trained):
    """BERT's tokenizer (Devlin et al. 2019, arXiv:1810.04805), made lossless.

    It works on byte-level characters, and each byte is an entry twice, at the beginning of a word
    and inside. So no word is ever unknown, and there is no entry for unknown words. Entries are
    chosen as in byte-pair encoding, not by likelihood, as in the tokenizers library.
    """

    required_entries: ClassVar[tuple[int, str]] = (
        512,
        "bytes (256 at the start of a word, 256 inside)",
    )

    kind: Literal["WordPiece"] = "WordPiece"
    # Rule that splits texts into words, which no entry crosses: "gpt2" keeps a number whole,
    # "llama3" splits it into groups of three digits.
    words: Words = "llama3"
    # Minimum occurrences of a pair that becomes an entry. A pair seen once says little about other
    # text.
    min_frequency: int = Field(default=2, ge=1)

    def train(self, texts: Iterable[str]) -> bytes:
        """Return the `tokenizer.json`; raise DataError if `texts` have too few pairs to merge."""
        tokenizer = tokenizers.Tokenizer(models.WordPiece())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [make_word_splitter(self.words), pre_tokenizers.FixedLength(WORD_LIMIT)]
        )
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(CONTINUES, ""), decoders.ByteLevel()]
        )
        trainer = trainers.WordPieceTrainer(
            vocab_size=self.vocabulary,
            min_frequency=self.min_frequency,
            # The trainer adds entries for bytes inside words only as they occur, in an order that
            # differs from run to run. As special tokens, all exist, in this order.
            special_tokens=[*self.special, *(CONTINUES + c for c in list_byte_characters())],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            continuing_subword_prefix=CONTINUES,
            show_progress=False,
        )
        counted = _train_by_library(tokenizer, texts, trainer)
        check_vocabulary_reached(self, tokenizer.get_vocab_size(), counted)
        added = json.loads(tokenizer.to_str())["added_tokens"]
        return serialise_tokenizer(tokenizer, {"added_tokens": added[: len(self.special)]})


# Characters that are always entries, so that the name of a byte entry, such as `<0x41>`, in a text
# is encoded as its characters.
PRINTABLE_ASCII = "".join(map(chr, range(0x20, 0x7F)))
# Score of entries that text must not select: special tokens by their names, and the 256 bytes, used
# only to replace a character that is not an entry. Any cut into characters has a higher score.
NEVER_CHOSEN = -1e6


class Unigram(Trained):
    """A unigram language model over pieces of words (Kudo 2018, arXiv:1804.10959).

    It works on raw text. A space in an entry is a space (SentencePiece writes `▁`, and so decodes a
    `▁` in the text as a space); nothing is added before a text, and nothing is normalised. A
    character that is not an entry is encoded as the byte entries `<0x00>` … `<0xFF>` of its UTF-8.
    The text "<0x41>" stays text.

    SentencePiece trains it: about 45 s on one core and 0.4 GB for 14 MB of text in many languages.
    """

    required_entries: ClassVar[tuple[int, str]] = (
        len(BYTE_ENTRIES) + len(PRINTABLE_ASCII),
        "bytes and printable ASCII characters",
    )

    kind: Literal["Unigram"] = "Unigram"
    # Rule that splits texts into words, which no entry crosses: "gpt2" keeps a number whole,
    # "llama3" splits it into groups of three digits.
    words: Words = "llama3"

    def train(self, texts: Iterable[str]) -> bytes:
        """Return the `tokenizer.json`; raise DataError if `texts` have too few pieces."""
        counted = CountedTexts(texts)
        cut = make_plain_splitter(self.words)
        count_of: Counter[str] = Counter()
        for text in counted:
            count_of.update(word for word, _ in cut.pre_tokenize_str(text))
        named = [*self.special, *BYTE_ENTRIES]
        wanted = self.vocabulary - len(named)
        scores = InterruptibleCall().run(lambda: choose_pieces(count_of, wanted, PRINTABLE_ASCII))
        check_vocabulary_reached(self, len(named) + len(scores), counted)
        entries = [(name, NEVER_CHOSEN) for name in named] + list(scores.items())
        tokenizer = tokenizers.Tokenizer(models.Unigram(entries, unk_id=0, byte_fallback=True))
        tokenizer.add_special_tokens(self.special)
        tokenizer.pre_tokenizer = cut
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        return serialise_tokenizer(tokenizer)
