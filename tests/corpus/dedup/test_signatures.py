import itertools
import os
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig.corpus.dedup import pairs as pairing
from trainrig.corpus.dedup import signatures
from trainrig.corpus.dedup.minhash import MinHash
from trainrig.corpus.dedup.pairs import Fallen
from trainrig.corpus.dedup.shingles import jaccard, shingle
from trainrig.corpus.dedup.signature_file import load_columns
from trainrig.corpus.dedup.signatures import (
    Copy,
    Ranking,
    band_pairs,
    load_arrays,
    save_arrays,
)
from trainrig.corpus.dedup.signing import Signatures

# Bands of one row over single words: of a few words, many pairs meet, and in several bands.
SMALL = MinHash(bands=5, rows=1, shingle_words=1, threshold=0.4)
Document = tuple[str, str]  # id, text

texts = st.lists(st.sampled_from("abcdef"), min_size=0, max_size=6).map(" ".join)
files = st.lists(st.lists(texts, max_size=6), min_size=1, max_size=4)


def named(files: list[list[str]]) -> list[list[Document]]:
    """The texts with ids of their own."""
    numbers = itertools.count()
    # Ids in an order of their own, so that places and numbers differ.
    return [[(f"{next(numbers) * 37 % 101:032x}", text) for text in texts] for texts in files]


def written(folder: Path, files: list[list[Document]], settings: MinHash = SMALL) -> list[str]:
    paths = [str(folder / f"{number}.arrow") for number in range(len(files))]
    for path, documents in zip(paths, files, strict=True):
        with_urls = [(identity, f"http://{identity}", text) for identity, text in documents]
        Signatures.of(with_urls, settings).save(path)
    return paths


def union_over_bands(paths: list[str], ranking: Ranking) -> Counter[tuple[int, int]]:
    pairs_of = band_pairs(paths, ranking, SMALL)
    found: Counter[tuple[int, int]] = Counter()
    # In any order: each band is looked at by whichever worker takes it.
    for band in reversed(range(SMALL.bands)):
        pairs, similarities = pairs_of(band)
        assert len(pairs) == len(similarities)
        found.update((int(a), int(b)) for a, b in pairs)
    return found


def brute_force(paths: list[str], ranking: Ranking, bucket: int) -> set[tuple[int, int]]:
    """All pairs alike enough that share a key, of documents that are no exact copies; of each
    bucket, those with one of its first `bucket` documents."""
    found = [Signatures.load(path) for path in paths]
    keys = np.concatenate([file.keys for file in found])
    shingles = [file.shingles_of(nth) for file in found for nth in range(len(file.ids))]
    order = [p for p in np.argsort(ranking.numbers).tolist() if ranking.repeats[p] < 0]
    pairs = set()
    for band in range(keys.shape[1]):
        for later in order:
            before = order[: order.index(later)]
            for a in [p for p in before if keys[p, band] == keys[later, band]][:bucket]:
                if jaccard(shingles[a], shingles[later]) >= SMALL.threshold:
                    pairs.add((int(ranking.numbers[a]), int(ranking.numbers[later])))
    return pairs


@given(files, st.sampled_from([1, 2, 64]))
@tries(max_examples=60)
def test_the_bands_together_find_each_pair_that_shares_a_key_once(files, bucket):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(pairing, "FULL_BUCKET", bucket)
        patch.setattr(signatures, "FULL_BUCKET", bucket)
        paths = written(Path(folder), named(files))
        ranking = Ranking.of(paths)
        found = union_over_bands(paths, ranking)
        assert set(found) == brute_force(paths, ranking, bucket)
        assert set(found.values()) <= {1}


def test_a_pair_is_verified_once_whatever_number_of_bands_it_meets_in(tmp_path, monkeypatch):
    calls = Counter()

    def counted(a, b):
        calls[a.tobytes(), b.tobytes()] += 1
        return jaccard(a, b)

    monkeypatch.setattr(signatures, "jaccard", counted)
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    paths = written(tmp_path, named([[" ".join(words), " ".join(words[1:])]]))
    keys = load_columns(paths[0], ["keys"])["keys"]
    assert (keys[0] == keys[1]).sum() >= 2
    assert union_over_bands(paths, Ranking.of(paths)) == {(0, 1): 1}
    assert list(calls.values()) == [1]


def test_two_lost_in_one_full_bucket_still_meet_in_a_later_one(tmp_path, monkeypatch):
    monkeypatch.setattr(pairing, "FULL_BUCKET", 1)
    monkeypatch.setattr(signatures, "FULL_BUCKET", 1)
    shingles = [np.arange(number, number + 9, dtype=np.uint64) for number in (100, 0, 1)]
    keys = np.array([[7, 1], [7, 2], [7, 2]], np.uint64)
    whole = Signatures(
        ids=np.array(["a", "b", "c"]),
        characters=np.array([9, 8, 7]),
        digests=np.arange(48, dtype=np.uint8).reshape(3, 16),
        urls=np.arange(48, dtype=np.uint8).reshape(3, 16),
        keys=keys,
        shingles=np.concatenate(shingles),
        ends=np.array([9, 18, 27]),
    )
    path = str(tmp_path / "a.arrow")
    whole.save(path)
    pairs_of = band_pairs([path], Ranking.of([path]), MinHash(bands=2, rows=1, threshold=0.5))
    assert pairs_of(0)[0].tolist() == []
    pairs, similarities = pairs_of(1)
    assert (pairs.tolist(), similarities.tolist()) == ([[1, 2]], [8 / 10])


def test_the_numbers_go_by_length_and_then_by_id(tmp_path):
    paths = written(tmp_path, [[("d", "a b c"), ("b", "a b c d")], [], [("c", "x y z")]])
    ranking = Ranking.of(paths)
    assert ranking.ids.tolist() == ["d", "b", "c"]
    assert ranking.numbers.tolist() == [2, 0, 1]
    assert ranking.repeats.tolist() == [-1, -1, -1]


def test_a_copy_repeats_the_best_of_its_equals(tmp_path):
    equal = [("d", "a b c"), ("b", "A B\nC"), ("c", "a  b c")]  # the last one is the longest
    ranking = Ranking.of(written(tmp_path, [equal[:2], equal[2:]]))
    assert ranking.repeats.tolist() == [2, 2, -1]
    assert ranking.copies(fallen()) == {
        0: Copy("exact_duplicate", "c", 1.0),
        1: Copy("exact_duplicate", "c", 1.0),
    }


def test_of_two_captures_of_one_page_the_first_is_kept(tmp_path):
    ranking = Ranking.of(written(tmp_path, [[("a", "x y")], [("b", "z"), ("a", "x y")]]))
    assert ranking.copies(fallen()) == {2: Copy("exact_duplicate", "a", 1.0)}


def ranked(tmp_path: Path, documents: list[tuple[str, str, str]]) -> Ranking:
    path = str(tmp_path / "urls.arrow")
    Signatures.of(documents, SMALL).save(path)
    return Ranking.of([path], urls=True)


def test_of_one_url_the_best_is_kept_however_it_is_written(tmp_path):
    captures = [
        ("a", "http://www.a.example/x?utm_source=1", "k l"),
        ("b", "https://a.example/x", "k l m"),
        ("c", "http://a.example/y", "k l m n"),
    ]
    ranking = ranked(tmp_path, captures)
    assert ranking.copies(fallen()) == {0: Copy("url_duplicate", "b", None)}
    path = str(tmp_path / "urls.arrow")
    assert Ranking.of([path]).copies(fallen()) == {}  # where nobody asked


def test_no_text_is_lost_with_a_page_that_another_capture_stands_for(tmp_path):
    captures = [
        ("a", "http://a.example/x", "k l"),
        ("b", "http://a.example/x", "k l m"),
        ("c", "http://other.example", "k l"),  # as "a", which "b" stands for
    ]
    assert ranked(tmp_path, captures).copies(fallen()) == {0: Copy("url_duplicate", "b", None)}


def test_a_capture_is_told_with_the_document_that_is_kept(tmp_path):
    captures = [
        ("a", "http://a.example/x", "k l"),
        ("b", "http://a.example/x", "k l m"),
        ("c", "http://other.example", "K L M"),
        ("d", "http://more.example", "k l m n"),
    ]
    ranking = ranked(tmp_path, captures)
    assert ranking.numbers.tolist() == [3, 1, 2, 0]
    assert ranking.copies(fallen((1, 0, 0.75))) == {
        0: Copy("url_duplicate", "d", None),
        1: Copy("near_duplicate", "d", 0.75),
        2: Copy("near_duplicate", "d", 0.75),
    }


def fallen(*rows: tuple[int, int, float]) -> Fallen:
    """Documents, partners (by number) and similarities."""
    documents, partners, similarities = zip(*rows, strict=True) if rows else ((), (), ())
    return Fallen(
        np.array(documents, np.int64),
        np.array(partners, np.int64),
        np.array(similarities, np.float64),
    )


def test_what_falls_is_told_by_position_with_the_id_of_the_kept_one(tmp_path):
    documents = [("a", "k l"), ("b", "k l m n"), ("c", "k l m"), ("d", "K L")]
    ranking = Ranking.of(written(tmp_path, [documents]))
    assert ranking.numbers.tolist() == [2, 0, 1, 3]
    assert ranking.copies(fallen((1, 0, 0.75))) == {
        2: Copy("near_duplicate", "b", 0.75),
        3: Copy("exact_duplicate", "a", 1.0),
    }
    # Once "a" falls to "b", what equals it is as like "b" as "a" was.
    assert ranking.copies(fallen((2, 0, 0.5))) == {
        0: Copy("near_duplicate", "b", 0.5),
        3: Copy("near_duplicate", "b", 0.5),
    }


@given(st.lists(texts, max_size=5))
@tries(max_examples=20)
def test_what_is_saved_comes_back_and_is_the_same_bytes_each_time(texts):
    (documents,) = named([texts])
    with tempfile.TemporaryDirectory() as folder:
        (path,) = written(Path(folder), [documents])
        back = Signatures.load(path)
        assert back.ids.tolist() == [identity for identity, _ in documents]
        assert back.characters.tolist() == [len(text) for text in texts]
        assert back.keys.shape == (len(texts), SMALL.bands)
        for nth, text in enumerate(texts):
            assert np.array_equal(back.shingles_of(nth), shingle(text, SMALL.shingle_words))
        ranking = Ranking.of([path])
        ranking.save(f"{folder}/ranking.npz")
        again = Ranking.load(f"{folder}/ranking.npz")
        for name in ("ids", "numbers", "repeats", "by_url"):
            assert np.array_equal(getattr(again, name), getattr(ranking, name))
        other = f"{folder}/again.arrow"
        with_urls = [(identity, f"http://{identity}", text) for identity, text in documents]
        Signatures.of(with_urls, SMALL).save(other)
        assert Path(other).read_bytes() == Path(path).read_bytes()


def test_only_the_arrays_that_are_asked_for_are_read(tmp_path):
    path = str(tmp_path / "a.npz")
    save_arrays(path, {"x": np.arange(3), "y": np.ones(2)})
    assert list(load_arrays(path, ["y"])) == ["y"]
    assert {name: list(array) for name, array in load_arrays(path).items()} == {
        "x": [0, 1, 2],
        "y": [1, 1],
    }


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of open files here")
def test_no_file_stays_open_however_many_there_are(tmp_path):
    paths = written(tmp_path, named([["a b c"], ["a b c d"]] * 20))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - iterdir() opens one more
    ranking = Ranking.of(paths)
    pairs_of = band_pairs(paths, ranking, SMALL)
    assert sum(len(pairs_of(band)[0]) for band in range(SMALL.bands)) == 1
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
