import itertools
import random
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from support.searching import look, shelve
from support.text_signatures import hash_text, shingle

from trainrig.corpus.dedup.dedup_decisions import BY_LIKENESS, BY_TEXT, BY_URL, DIGEST
from trainrig.corpus.dedup.keep_rules import ContentHash, Longest
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.shingle_similarity import Verification
from trainrig.corpus.signatures.signatures import Signatures
from trainrig.corpus.url_keys import compute_url_key

# Bands of one row over single words: among few words, many pairs meet, some in several bands.
SMALL = MinHash(bands=5, rows=1, permutations=5, recall=0.01, shingle_words=1, threshold=0.4)
Document = tuple[str, str, str]  # id, URL, text

texts = st.lists(st.sampled_from("abcdef"), min_size=0, max_size=6).map(" ".join)
urls = st.sampled_from(["http://a.example/1", "http://www.a.example/1#top", "http://b/2", ""])
files = st.lists(st.lists(st.tuples(urls, texts), max_size=6), min_size=1, max_size=4)


def add_ids(files: list[list[tuple[str, str]]]) -> list[list[Document]]:
    """Return the texts with ids in an order different from the files'."""
    numbers = itertools.count()
    return [[(f"{1 + next(numbers) * 37 % 101:032x}", *row) for row in file] for file in files]


def search(folder: Path, files: list[list[Document]], **changes):
    split_indexes = [
        shelve(folder, str(number), Signatures.of(documents, SMALL))
        for number, documents in enumerate(files)
    ]
    return look(folder, split_indexes, **{"minhash": SMALL, **changes})


def search_in_order(files: list[list[Document]], urls: bool) -> dict[str, tuple]:
    """Return the same answer by a loop over all documents."""
    documents = [document for file in files for document in file]
    made = Signatures.of(documents, SMALL)
    order = sorted(range(len(documents)), key=lambda n: (-len(documents[n][2]), documents[n][0]))
    fell: dict[int, tuple] = {}
    firsts: dict[bytes, int] = {}
    for n in order if urls else []:
        if (
            documents[n][1]
            and (first := firsts.setdefault(compute_url_key(documents[n][1]), n)) != n
        ):
            fell[n] = (BY_URL, first, np.nan)
    firsts = {}
    for n in order:
        if n not in fell and (first := firsts.setdefault(hash_text(documents[n][2]), n)) != n:
            fell[n] = (BY_TEXT, first, 1.0)
    near: dict[int, tuple] = {}
    unlike = [n for n in order if n not in fell]
    sets = [set(np.split(made.shingles, made.ends[:-1])[n].tolist()) for n in range(len(documents))]
    for n in unlike:
        found = []
        for before in unlike[: unlike.index(n)]:
            likeness = len(sets[n] & sets[before]) / len(sets[n] | sets[before])
            meets = (made.keys[n] == made.keys[before]).any()
            if meets and likeness >= SMALL.threshold and before not in near:
                found.append((-likeness, unlike.index(before)))
        if found:
            likeness, before = min(found)
            near[n] = (BY_LIKENESS, unlike[before], -likeness)
    for n, (kind, first, _) in fell.items():
        if kind == BY_TEXT and first in near:
            fell[n] = near[first]
    fell |= near
    for n, (kind, first, likeness) in list(fell.items()):
        if kind == BY_URL and first in fell:
            fell[n] = (BY_URL, fell[first][1], likeness)
    return {
        documents[n][0]: (kind, documents[first][0], likeness)
        for n, (kind, first, likeness) in fell.items()
    }


def same(found, expected) -> bool:
    # Repr compares NaN as equal to itself.
    return repr(sorted(found.items())) == repr(sorted(expected.items()))


@pytest.mark.slow
@given(files, st.booleans(), st.booleans(), st.sampled_from([1, 3, 2**17]))
@tries(max_examples=30, deadline=None)
def test_the_passes_decide_as_one_loop_over_all_documents_does(files, apart, by_url, held):
    documents = add_ids(files)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("trainrig.corpus.dedup.candidates.BATCH", held),
        mock.patch("trainrig.corpus.dedup.document_refs.MAX_BUFFERED", held),
        mock.patch("trainrig.corpus.dedup.verified_pairs._ROW_GROUP", held),
    ):
        searched = search(Path(folder), documents, apart=apart, urls=by_url)
        assert same(searched.decisions(), search_in_order(documents, by_url))


def drop_all_in_order(documents: list[list[Document]], by_url: bool) -> dict[str, int]:
    """Return the kind of each dropped document if none with a copy stays, by a loop over pairs.

    A document with similar and with equal texts counts as similar.
    """
    flat = [document for file in documents for document in file]
    fell = search_in_order(documents, by_url)
    sent = {id for id, (kind, _, _) in fell.items() if kind == BY_URL}
    compared = [document for document in flat if document[0] not in sent]
    made = Signatures.of(compared, SMALL)
    sets = [set(np.split(made.shingles, made.ends[:-1])[n].tolist()) for n in range(len(compared))]
    kinds = {id: BY_URL for id in sent}
    equal = defaultdict(list)
    for id, _, text in compared:
        equal[hash_text(text)].append(id)
    for ids in equal.values():
        kinds |= dict.fromkeys(ids, BY_TEXT) if len(ids) > 1 else {}
    similar = set()
    for one, other in itertools.combinations(range(len(compared)), 2):
        likeness = len(sets[one] & sets[other]) / len(sets[one] | sets[other])
        meets = (made.keys[one] == made.keys[other]).any()
        if meets and likeness >= SMALL.threshold:
            texts = [hash_text(compared[n][2]) for n in (one, other)]
            if texts[0] != texts[1]:
                similar |= {*equal[texts[0]], *equal[texts[1]]}
    return kinds | dict.fromkeys(similar, BY_LIKENESS)


@pytest.mark.slow
@given(files, st.booleans(), st.booleans())
@tries(max_examples=30, deadline=None)
def test_all_copies_are_dropped_at_any_number_of_partitions(files, apart, by_url):
    documents = add_ids(files)
    with tempfile.TemporaryDirectory() as folder:
        searched = search(Path(folder), documents, apart=apart, urls=by_url, all_copies=True)
        found = {id: kind for id, (kind, _, _) in searched.decisions().items()}
        wanted = drop_all_in_order(documents, by_url)
        assert found.keys() == wanted.keys()
        assert {id for id in found if found[id] == BY_URL} == {
            id for id in wanted if wanted[id] == BY_URL
        }


@pytest.mark.parametrize("apart", [False, True])
def test_of_copies_none_stays_and_the_first_repeats_nothing(tmp_path, apart):
    text = make_prose(1)
    files = [
        [make_page(1, text), make_page(2, change_words(text, 60)), make_page(3, make_prose(3))],
        [make_page(4, make_prose(3).upper()), make_page(5, make_prose(5))],
    ]
    found = find(tmp_path, files, apart=apart, all_copies=True).decisions()
    kinds = {int(id, 16): kind for id, (kind, _, _) in found.items()}
    assert kinds == {1: BY_LIKENESS, 2: BY_LIKENESS, 3: BY_TEXT, 4: BY_TEXT}
    nothing = "0" * 32
    partners = {int(id, 16): partner for id, (_, partner, _) in found.items()}
    assert sorted(n for n, partner in partners.items() if partner == nothing) in ([1, 3], [2, 3])


@pytest.fixture(autouse=True, scope="module")
def _without_fsync():
    """Skip fsync for many small files, which need not survive a power failure."""
    with mock.patch("os.fsync"):
        yield


DEFAULT = MinHash()
WORDS = [f"word{n}" for n in range(400)]


def change_words(text: str, *places: int) -> str:
    """Return `text` with another word at each of `places`, which changes five shingles each."""
    words = text.split()
    for place in places:
        words[place] = f"other{place}"
    return " ".join(words)


def make_prose(number: int, words: int = 120) -> str:
    dice = random.Random(number)
    return " ".join(dice.choices(WORDS, k=words))


def make_page(number: int, text: str) -> Document:
    return (f"{number:032x}", f"http://a/{number}", text)


def find(folder: Path, files: list[list[Document]], minhash: MinHash = DEFAULT, **changes):
    split_indexes = [
        shelve(folder, str(number), Signatures.of(documents, minhash))
        for number, documents in enumerate(files)
    ]
    return look(folder, split_indexes, minhash, **changes)


ALL_IDENTICAL = [[make_page(n, make_prose(1)) for n in range(1, 40)]]
ALL_DISTINCT = [[make_page(n, make_prose(n)) for n in range(1, 40)]]
EMPTY = [[make_page(n, "") for n in range(1, 4)], [make_page(4, "word")]]
ONE_WORD = [[make_page(n, word) for n, word in enumerate(["a", "b", "a", "c"], 1)]]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("files", "kept"),
    [
        (ALL_IDENTICAL, 1),
        (ALL_DISTINCT, 39),
        (EMPTY, 2),
        (ONE_WORD, 3),
        ([[], []], 0),
        ([[make_page(1, "Émile Zola")], [make_page(2, "ÉMILE  zola")]], 1),
    ],
)
def test_odd_crawls_are_decided_like_any(tmp_path, files, kept, apart):
    found = find(tmp_path, files, apart=apart)
    assert sum(map(len, files)) - len(found.decisions()) == kept


def test_a_text_that_is_everywhere_has_a_row_for_each_stretch(tmp_path):
    pages = [make_page(n, make_prose(1)) for n in range(1, 61)]
    found = find(tmp_path, [pages[:20], pages[20:50], pages[50:]], apart=True, urls=True)
    assert len(found.decisions()) == 59
    for kind, rows in (("text", 3), ("url", 60)):
        parts = [
            found.search.find_part(f"{kind}-keys", range(3), n, DIGEST).count for n in range(3)
        ]
        assert sum(parts) == rows


def test_many_near_copies_keep_one_for_any_bucket_size(tmp_path):
    # Three times as many documents as a bucket pairs among themselves.
    family = [make_page(n, change_words(make_prose(1), n % 100)) for n in range(1, 201)]
    found = find(tmp_path, [family[:90], family[90:]], apart=True)
    assert len(found.decisions()) == len(family) - 1
    assert len({cluster for cluster in found.clusters().values()}) == 1


@pytest.mark.parametrize("apart", [False, True])
def test_similar_documents_are_one_cluster_kept_or_not(tmp_path, apart):
    chain = " ".join(make_prose(n, 12) for n in range(30))
    words = chain.split()
    # Similarities of 0.85 for neighbours, and 0.75.
    parts = [" ".join(words[start : start + 320]) for start in (0, 20, 40)]
    files = [
        [make_page(n, text) for n, text in enumerate(parts, 7)],
        [make_page(1, make_prose(99))],
    ]
    found = find(tmp_path, [*files, [make_page(2, make_prose(99).upper())]], apart=apart)
    assert set(found.decisions()) <= {f"{8:032x}", f"{9:032x}", f"{1:032x}", f"{2:032x}"}
    assert {found.clusters()[f"{n:032x}"] for n in (7, 8, 9)} == {f"{7:032x}"}
    assert found.clusters()[f"{1:032x}"] == found.clusters()[f"{2:032x}"] == f"{1:032x}"


def test_every_pair_from_the_floor_up_is_evidence(tmp_path):
    texts = [
        make_prose(1),
        change_words(make_prose(1), 10),
        change_words(make_prose(1), 10, 60),
        change_words(make_prose(1), 30, 90),
    ]
    found = find(
        tmp_path,
        [[make_page(n, text) for n, text in enumerate(texts[:2], 1)],
         [make_page(n, text) for n, text in enumerate(texts[2:], 3)]],
        verification=Verification(evidence_floor=0.5),
        minhash=MinHash(bands=64, rows=2, threshold=0.9),
        apart=True,
    )  # fmt: skip
    rows = [
        row
        for split_index in found.search.split_indexes
        for row in pq.read_table(split_index.pairs).to_pylist()
    ]
    sets = [set(shingle(text, 5).tolist()) for text in texts]
    expected = {
        (f"{a + 1:032x}", f"{b + 1:032x}"): len(sets[a] & sets[b]) / len(sets[a] | sets[b])
        for a, b in itertools.combinations(range(4), 2)
    }
    assert {tuple(sorted((row["a"], row["b"]))): row["similarity"] for row in rows} == expected
    assert min(expected.values()) < 0.9 < max(expected.values())
    assert found.found.evidence == 6
    assert found.found.verified == sum(likeness >= 0.9 for likeness in expected.values())
    assert found.found.clusters == 1
    assert set(found.decisions()) == {f"{2:032x}"}  # pairs below the threshold decide nothing


def read_evidence(found: Any) -> list[Any]:
    return [
        pq.read_table(split_index.pairs).to_pylist() for split_index in found.search.split_indexes
    ]


@pytest.mark.slow
@pytest.mark.parametrize("held", [1, 7])
def test_how_many_pairs_are_held_at_a_time_changes_no_evidence(tmp_path, held):
    texts = [change_words(make_prose(n % 4), n % 30, n % 7) for n in range(80)]
    pages = [make_page(n, text) for n, text in enumerate(texts, 1)]
    files = [pages[:20], pages[20:45], pages[45:]]
    expected = read_evidence(find(tmp_path / "whole", files))
    with (
        mock.patch("trainrig.corpus.dedup.candidates.BATCH", held),
        mock.patch("trainrig.corpus.dedup.document_refs.MAX_BUFFERED", held),
        mock.patch("trainrig.corpus.dedup.verified_pairs._ROW_GROUP", held),
        mock.patch("trainrig.corpus.dedup.verification_passes._SLICE", held),
        mock.patch("trainrig.corpus.dedup.sorted_runs.PIECE", held),
    ):
        assert read_evidence(find(tmp_path / "apart", files, apart=True)) == expected
    assert sum(map(len, expected)) > 400


def test_an_excerpt_is_removed_by_containment_alone(tmp_path):
    whole = make_prose(1, 200)
    excerpt = " ".join(make_prose(1, 200).split()[:120])
    files = [[make_page(1, whole), make_page(2, excerpt)]]
    many = MinHash(bands=64, rows=1, permutations=64, threshold=0.9)
    assert find(tmp_path / "jaccard", files, many).decisions() == {}
    contained = Verification(measure="containment")
    fell = find(tmp_path / "contained", files, many, verification=contained).decisions()
    assert fell == {f"{2:032x}": (BY_LIKENESS, f"{1:032x}", 1.0)}


@pytest.mark.parametrize("rule", [Longest(), ContentHash()])
def test_the_order_of_files_and_documents_changes_nothing(tmp_path, rule):
    texts = [change_words(make_prose(n % 7), *range(n % 5)) for n in range(40)]
    documents = [make_page(n, text) for n, text in enumerate(texts, 1)]
    fell = []
    for turn, dice in enumerate([None, random.Random(1), random.Random(2)]):
        mixed = list(documents)
        if dice:
            dice.shuffle(mixed)
        split_indexes = [
            shelve(tmp_path / str(turn), str(n), Signatures.of(part, MinHash()), rule)
            for n, part in enumerate([mixed[:11], mixed[11:30], mixed[30:]][:: -1 if turn else 1])
        ]
        found = look(
            tmp_path / str(turn), split_indexes, MinHash(), keep=rule, apart=bool(turn % 2)
        )
        fell.append((found.decisions(), found.clusters()))
    assert fell[0] == fell[1] == fell[2]
    assert 10 < len(fell[0][0]) < 40


@pytest.mark.parametrize("apart", [False, True])
def test_copies_of_a_copy_in_their_own_file_repeat_the_first_of_all(tmp_path, apart):
    longest = make_prose(1) + " end"
    near = change_words(make_prose(1), 60)
    files = [
        [make_page(n, near) for n in (1, 2, 3)],
        [make_page(n, near) for n in (4, 5)] + [make_page(n, make_prose(2)) for n in (6, 7)],
        [make_page(8, longest)] + [make_page(n, make_prose(2)) for n in (9, 10)],
    ]
    # Three captures of the first page's URL follow, each shorter than the one before.
    files[1] += [(f"{n:032x}", "http://a/1", make_prose(n)[:-n]) for n in (11, 12)]
    found = find(tmp_path, files, apart=apart, urls=True)
    first = {id: (kind, of) for id, (kind, of, _) in found.decisions().items()}
    kept = f"{8:032x}"
    assert first == {
        **{f"{n:032x}": (BY_LIKENESS, kept) for n in (1, 2, 3, 4, 5)},
        **{f"{n:032x}": (BY_TEXT, f"{6:032x}") for n in (7, 9, 10)},
        **{f"{n:032x}": (BY_URL, kept) for n in (11, 12)},
    }
    assert {found.clusters()[f"{n:032x}"] for n in (6, 7, 9, 10)} == {f"{6:032x}"}
    assert {found.clusters()[f"{n:032x}"] for n in (1, 2, 3, 4, 5, 8)} == {f"{1:032x}"}


@pytest.mark.parametrize("apart", [False, True])
def test_a_copy_of_a_removed_document_repeats_the_kept_one(tmp_path, apart):
    longest = make_prose(1) + " end"
    near = change_words(make_prose(1), 60)
    files = [
        [make_page(1, near)],
        [(f"{2:032x}", "http://else/", near.upper()), make_page(4, make_prose(7))],
        [make_page(3, longest), (f"{5:032x}", "http://else", "short")],
        [(f"{6:032x}", "", "no address"), (f"{7:032x}", "", "nor this one")],
    ]
    fell = find(tmp_path, files, apart=apart, urls=True).decisions()
    likeness = fell[f"{1:032x}"][2]
    assert 0.9 < likeness < 1
    assert same(
        fell,
        {
            f"{1:032x}": (BY_LIKENESS, f"{3:032x}", likeness),
            f"{2:032x}": (BY_LIKENESS, f"{3:032x}", likeness),
            f"{5:032x}": (BY_URL, f"{3:032x}", np.nan),
        },
    )
