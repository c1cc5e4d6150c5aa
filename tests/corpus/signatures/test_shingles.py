import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from support.text_signatures import jaccard, shingle

from trainrig.corpus.signatures.normalised_texts import (
    IDEOGRAM,
    MARK,
    SYLLABLE,
    WORD,
    NormalisedTexts,
    build_letter_table,
)
from trainrig.corpus.signatures.shingles import finalise_hash, shingle_texts

words = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=30)
# Characters that lower-casing and \w treat specially: "İ" becomes two characters, a sigma at the
# end of a word differs from one within, U+0307 and the full stop split words, "²" and "ⅷ" do not.
DIFFICULT = "aB_9.' \n\0é\u0130i\u0307\u03a3\u03c3\u03c2ẞßﬁ²ⅧЖж\ud800𐐀𝔄Ǆ"
# In the alphabet of st.text they would be as rare as any other character.
difficult = st.lists(st.sampled_from(DIFFICULT) | st.characters(), max_size=40).map("".join)
whole = st.lists(st.sampled_from("aİΣσ天") | st.characters(codec="utf-8"), max_size=40).map("".join)


def plain(split: list[str], n: int) -> set[tuple[str, ...]]:
    length = min(n, len(split))
    return {tuple(split[i : i + length]) for i in range(len(split) - length + 1)}


def find_words(text: str) -> list[str]:
    """Return the words by the definition for scripts with spaces between words."""
    return re.findall(r"\w+", text.lower())


def is_spaced(text: str) -> bool:
    return not (
        build_letter_table()[[ord(c) for c in text.lower()]] & (IDEOGRAM | SYLLABLE | MARK)
    ).any()


@given(words, words, st.integers(1, 6))
def test_hashes_are_to_each_other_as_the_shingles_themselves(a, b, n):
    ours = jaccard(shingle(" ".join(a), n), shingle(" ".join(b), n))
    sets = plain(a, n), plain(b, n)
    assert ours == len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@given(words, st.integers(1, 6))
def test_shingles_are_sorted_and_unique(split, n):
    found = shingle(" ".join(split), n)
    assert found.dtype == np.uint32
    assert (np.diff(found.astype(object)) > 0).all()
    assert len(found) == len(plain(split, n))


@given(difficult.filter(is_spaced), st.integers(1, 3))
@tries(max_examples=500)
def test_words_equal_those_of_python_on_lower_cased_text(text, n):
    split = find_words(text)
    assert len(shingle(text, n)) == len(plain(split, n))
    # Separators and case may change: the words are the same, and so are their hashes.
    assert np.array_equal(shingle(text, n), shingle(" ".join(split), n))
    assert np.array_equal(shingle(text, n), shingle(text.lower(), n))


def test_every_character_of_unicode_is_classed_and_lower_cased_as_python_does():
    table = build_letter_table()
    codes = np.arange(0x110000)
    characters = ["?" if chr(code) in "İΣ" else chr(code) for code in codes.tolist()]
    lower = np.array([ord(character.lower()) for character in characters])
    tabled = table[np.array([ord(character) for character in characters])]
    assert np.array_equal(tabled & 0x1FFFFF, lower)
    is_word = [bool(re.match(r"\w", chr(code))) for code in lower.tolist()]
    assert np.array_equal(tabled & WORD > 0, is_word)
    # A text that was lower-cased beforehand does not change any more.
    assert np.array_equal(table[lower] & 0x1FFFFF, lower)


@given(st.lists(difficult, max_size=8), st.integers(1, 6))
def test_many_texts_have_the_shingles_of_each(texts, n):
    found, ends = shingle_texts(NormalisedTexts.of(texts), n)
    alone = [shingle(text, n) for text in texts]
    assert ends.tolist() == np.cumsum([len(shingles) for shingles in alone]).tolist()
    assert np.array_equal(found, np.concatenate([np.empty(0, np.uint32), *alone]))


@given(st.lists(st.none() | whole, max_size=8))
def test_a_column_gives_the_bytes_of_its_strings(texts):
    halves = [texts[: len(texts) // 2], texts[len(texts) // 2 :]]
    for kind in (pa.string(), pa.large_string()):
        column = pa.chunked_array(halves, kind)
        found = NormalisedTexts.from_arrow(column.slice(1))
        expected = NormalisedTexts.of([text or "" for text in texts[1:]])
        assert (found.starts - found.starts[0]).tolist() == expected.starts.tolist()
        here = found.data[found.starts[0] : found.starts[-1]]
        assert here.tobytes() == expected.data.tobytes()


def test_text_that_is_not_utf_8_is_refused():
    torn = pa.array([b"fine", b"torn \xe4\xb8"]).view(pa.string())
    with pytest.raises(pa.ArrowInvalid):
        NormalisedTexts.from_arrow(pa.chunked_array([torn]))


@pytest.mark.parametrize("size", [1, 5, 9, 100])
def test_blocks_hold_texts_that_fit_and_oversized_texts_alone(size):
    lengths = [3, 0, 2, 20, 1, 1, 4, 0]
    texts = NormalisedTexts.of(["x" * length for length in lengths])
    blocks = texts.find_blocks(size)
    assert [text for first, end in blocks for text in range(first, end)] == list(range(8))
    for first, end in blocks:
        assert sum(lengths[first:end]) <= size or end == first + 1
    assert NormalisedTexts.of([]).find_blocks(size) == []


def test_case_and_signs_do_not_matter_and_the_order_of_words_does():
    assert np.array_equal(shingle("The cat, sat!", 2), shingle("the CAT sat", 2))
    assert not np.array_equal(shingle("cat the", 2), shingle("the cat", 2))


@pytest.mark.parametrize("text", ["", "one", "one two three four", "...", "ก", "天", "ที่"])
def test_a_text_shorter_than_a_shingle_is_one_shingle(text):
    assert len(shingle(text, 5)) == 1


def test_a_short_text_is_similar_only_to_itself():
    texts = ["", "one", "one two", "two one", "天", "天天", "ที่", "ท"]
    found = [shingle(text, 5) for text in texts]
    assert [[jaccard(a, b) for b in found] for a in found] == np.eye(len(texts)).tolist()


CHINESE = "今天早上我们一家人去公园散步看见很多老人在湖边打太极拳孩子们在草地上放风筝"
THAI = "ประเทศไทยมีอาหารอร่อยมากมายนักท่องเที่ยวจากทั่วโลกเดินทางมาเพื่อลิ้มลองรสชาติ"


@pytest.mark.parametrize(("text", "letters_a_word"), [(CHINESE, 2), (THAI, 4)])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_without_spaces_a_shingle_spans_the_letters_of_equally_many_words(text, letters_a_word, n):
    flags = build_letter_table()[[ord(c) for c in text]]
    clusters = re.findall(r"\w[^\w]*", text)  # letters with their marks
    assert len(clusters) == (flags & WORD > 0).sum()
    whole = {tuple(clusters[i : i + n * letters_a_word]) for i in range(len(clusters))}
    # At the end of the text, the last n - 1 letters start no shingle.
    assert len(shingle(text, n)) == len(clusters) - n + 1
    assert len(whole) == len(clusters)
    # One letter of another kind in the middle is in n shingles.
    middle = len(clusters) // 2
    changed = "".join([*clusters[:middle], "ฮ" if letters_a_word == 4 else "龘"])
    changed += "".join(clusters[middle + 1 :])
    a = shingle(text, n)
    b = shingle(changed, n)
    assert len(np.setdiff1d(a, b)) == min(n * letters_a_word, middle + 1)


def test_without_spaces_marks_count_and_scripts_part_words():
    assert not np.array_equal(shingle("ที่ดีมาก", 1), shingle("ทดมาก", 1))
    assert np.array_equal(shingle("Python語", 1), shingle("python 語", 1))
    assert np.array_equal(shingle("ไทยabc", 1), shingle("ไทย abc", 1))
    assert not np.array_equal(shingle("カ\u3099", 1), shingle("カ", 1))


def test_near_copies_are_as_similar_without_spaces_as_with():
    # One word in fifty is changed, in a language with spaces and in Chinese of equal word count.
    generator = np.random.default_rng(5)
    spaced = [f"w{number}" for number in generator.integers(0, 9999, 500)]
    unspaced = [chr(0x4E00 + number) for number in generator.integers(0, 3000, 1000)]
    alike = []
    for split, step, blank in ((spaced, 50, " "), (unspaced, 100, "")):
        other = [word if i % step else split[i - 1] for i, word in enumerate(split)]
        alike.append(jaccard(*(shingle(blank.join(words), 5) for words in (split, other))))
    assert alike[0] == pytest.approx(alike[1], abs=0.03)
    assert 0.8 < alike[0] < 0.85


def test_the_hash_of_a_text_is_the_same_on_every_machine():
    # A change of these values invalidates every signature on disk.
    assert shingle("The mill", 5).tolist() == [979373985]
    assert shingle("天气", 1).tolist() == [2121289807, 2737615883]


def test_mixing_is_murmur_hash_3s_finaliser():
    # The known fixed point, and the value of fmix64(1).
    assert finalise_hash(np.uint64(0)) == 0
    assert finalise_hash(np.uint64(1)) == 0xB456BCFC34C2CB2C
