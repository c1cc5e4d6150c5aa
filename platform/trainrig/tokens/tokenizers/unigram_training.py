"""Training of a unigram model's pieces and probabilities (Kudo 2018, arXiv:1804.10959, 3.2).

SentencePiece trains the model. It is given the sorted words with their counts, and one thread: sums
over several threads differ in their last bits. So the same words always give the same pieces.

Characters with a meaning in SentencePiece, such as its `▁` for a space, are replaced by private
characters that the words do not contain, and put back in the pieces.
"""

import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set

import sentencepiece

COVERAGE = 0.9995  # share of all characters in the text that the alphabet has, as in SentencePiece
# Candidates for each wanted piece. SentencePiece takes a million for any vocabulary, with which
# small vocabularies need 1% more pieces for a text.
CANDIDATES = 10
# Share of the pieces that each round keeps. With SentencePiece's default of 0.75, training takes
# half of the time and texts need 0.3% more pieces.
KEPT_BY_A_ROUND = 0.9
# Characters after which a word is cut, in training only.
WORD_LIMIT = 32
FLOOR = 1e-9  # probability of a piece that is never seen: once in 10^9 pieces
SPACE = "\u2581"  # the piece that SentencePiece makes of the space after a word
HELD_BACK = " \0\t\n\r\u2581\u2585"  # characters with a meaning in SentencePiece or its input
PRIVATE_USE = range(0xE000, 0x110000)  # includes other characters, which are as good


def choose_pieces(count_of: Mapping[str, int], wanted: int, always: str) -> dict[str, float]:
    """Return at most `wanted` pieces, with the logarithms of their probabilities, for some words.

    Args:
        count_of: The words, with the number of their occurrences.
        wanted: Number of pieces; the result has fewer only if the words have too few strings that
            occur twice.
        always: Characters that are pieces whatever the words; at most `wanted`. The most common
            other characters follow, until all but 0.05% of the words' characters are covered.

    Returns:
        Log-probability by piece, most probable first.
    """
    uses: Counter[str] = Counter()
    for word, count in sorted(count_of.items()):
        for character in word:
            uses[character] += count
    scores = {character: math.log(FLOOR) for character in always}
    room = wanted - len(set(always) - uses.keys())
    if alphabet := _choose_alphabet(uses, room, always):
        scores |= _train(count_of, room, alphabet)
    return dict(sorted(scores.items(), key=lambda piece: (-piece[1], piece[0])))


def _choose_alphabet(uses: Counter[str], room: int, always: str) -> set[str]:
    """Return the characters of the words that are pieces; others are encoded as their bytes."""
    alphabet = set(always) & uses.keys()
    left = uses.total()
    uncovered = (1 - COVERAGE) * left
    for character, count in sorted(uses.items(), key=lambda use: (-use[1], use[0])):
        if left <= uncovered or (character not in alphabet and len(alphabet) == room):
            break
        alphabet.add(character)
        left -= count
    return alphabet


def _train(count_of: Mapping[str, int], wanted: int, alphabet: Set[str]) -> dict[str, float]:
    """Return the log-probabilities of the pieces, among them all of `alphabet`."""
    free = (chr(code) for code in PRIVATE_USE if chr(code) not in alphabet)
    unknown = next(free)
    stands_for = {character: next(free) for character in HELD_BACK}
    written = defaultdict(lambda: " ", {ord(c): stands_for.get(c, c) for c in alphabet})
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_write_words(count_of, written),
        model_writer=model,
        input_format="tsv",
        model_type="unigram",
        vocab_size=wanted + 2,  # the unknown piece and SPACE come on top
        hard_vocab_limit=False,
        seed_sentencepiece_size=CANDIDATES * wanted,
        shrinking_factor=KEPT_BY_A_ROUND,
        character_coverage=1.0,
        required_chars="".join(sorted(alphabet)).translate(written),
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        split_by_number=False,
        unk_id=0,
        unk_piece=unknown,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    read = str.maketrans({mark: character for character, mark in stands_for.items()})
    pieces = {trained.id_to_piece(i): trained.get_score(i) for i in range(1, len(trained))}
    others = math.log(max(FLOOR, 1 - math.exp(pieces.pop(SPACE))))  # their share without SPACE
    return {piece.translate(read): min(score - others, 0.0) for piece, score in pieces.items()}


def _write_words(count_of: Mapping[str, int], written: Mapping[int, str]) -> Iterator[str]:
    """Yield lines of a word, a tab and a count; a word ends at characters outside the alphabet.

    A string is a candidate if it occurs with different neighbours. So a word that occurs twice is
    written twice, once with a space behind it: otherwise a word that is part of no other would be
    no candidate. The last line is a space alone, so that there is always a piece to train.
    """
    for word, count in sorted(count_of.items()):
        for part in word.translate(written).split(" "):
            for start in range(0, len(part), WORD_LIMIT):
                text = part[start : start + WORD_LIMIT]
                yield f"{text}\t{max(1, count - 1)}"
                if count > 1:
                    yield f"{text} \t1"
    yield " \t1"
