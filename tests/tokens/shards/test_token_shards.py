import contextlib
import json
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from support.shards import write_shard

from trainrig import manifest, storage
from trainrig.errors import DataError
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.flat_arrays import SUMS, compute_block_sums
from trainrig.tokens.shards.shard_files import ENDINGS
from trainrig.tokens.shards.shard_writer import INDEX_ROW_GROUP
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary, TokenShards

VOCABULARY = ShardVocabulary(60_000, "f" * 64)


def make_document(
    source: str, ids: list[int], name: str = "d", url: str = "https://a.example/1"
) -> EncodedDocument:
    return EncodedDocument(
        name, source, url, np.array(ids, dtype=np.uint32), 10 * len(ids), f"{source}.parquet", 7
    )


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Write two shards of two sources, one of which is in several pieces."""
    folder = str(tmp_path / "train")
    write_shard(
        folder,
        "0-a",
        VOCABULARY,
        [
            make_document("web", [10, 11, 0], "w0"),
            make_document("web", [12, 0], "w1"),
            make_document("wiki", [50, 51, 0], "k0"),
            make_document("web", [13, 0], "w2"),
        ],
    )
    write_shard(
        folder,
        "1-b",
        VOCABULARY,
        [make_document("web", [14, 0], "w3"), make_document("wiki", [52, 0], "k1")],
    )
    return folder


WEB = [10, 11, 0, 12, 0, 13, 0, 14, 0]
WIKI = [50, 51, 0, 52, 0]


def test_each_source_is_one_array_across_shards_and_other_sources(folder):
    shards = TokenShards.open(folder)
    assert shards.sources == ("web", "wiki")
    assert (shards.tokens("web"), shards.tokens("wiki")) == (9, 5)
    assert shards.read_window("web", 0, 9).tolist() == WEB
    assert shards.read_window("wiki", 0, 5).tolist() == WIKI


def test_every_window_is_its_slice(folder):
    shards = TokenShards.open(folder)
    for source, whole in (("web", WEB), ("wiki", WIKI)):
        for start in range(len(whole)):
            for length in range(1, len(whole) - start + 1):
                found = shards.read_window(source, start, length).tolist()
                assert found == whole[start : start + length]


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 10), (8, 2), (9, 1), (0, 0)])
def test_a_window_beyond_the_source_is_refused(folder, start, length):
    with pytest.raises(IndexError, match=r"web: ids .* of 9 tokens"):
        TokenShards.open(folder).read_window("web", start, length)


def test_every_position_knows_its_document(folder):
    shards = TokenShards.open(folder)
    names = [shards.read_documents("web", position, 1)[0].id for position in range(9)]
    assert names == ["w0", "w0", "w0", "w1", "w1", "w2", "w2", "w3", "w3"]
    assert [shards.read_documents("wiki", p, 1)[0].id for p in range(5)] == ["k0"] * 3 + ["k1"] * 2
    found = shards.read_documents("wiki", 4, 1)[0]
    assert (found.url, found.length, found.text_bytes) == ("https://a.example/1", 2, 20)
    assert (found.corpus_file, found.corpus_row) == ("wiki.parquet", 7)


def test_a_window_knows_all_its_documents_in_order(folder):
    shards = TokenShards.open(folder)
    assert [d.id for d in shards.read_documents("web", 2, 6)] == ["w0", "w1", "w2", "w3"]
    assert [d.id for d in shards.read_documents("web", 3, 2)] == ["w1"]


sources_and_lengths = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 5)), min_size=1, max_size=12
)


@pytest.mark.slow
@tries(max_examples=50, deadline=None)  # each example writes shards
@given(sources_and_lengths, st.integers(1, 4), st.data())
def test_any_shards_equal_their_concatenated_documents(
    tmp_path_factory, documents, per_shard, data
):
    folder = str(tmp_path_factory.mktemp("shards"))
    whole: dict[str, list[int]] = {}
    owners: dict[str, list[str]] = {}
    starts: dict[str, list[int]] = {}
    encoded = []
    for number, (source, length) in enumerate(documents):
        ids = list(range(number * 10, number * 10 + length))
        encoded.append(make_document(source, ids, str(number)))
        starts.setdefault(source, []).append(len(whole.get(source, [])))
        whole.setdefault(source, []).extend(ids)
        owners.setdefault(source, []).extend([str(number)] * length)
    for shard, first in enumerate(range(0, len(encoded), per_shard)):
        write_shard(folder, f"{shard:03}", VOCABULARY, encoded[first : first + per_shard])
    shards = TokenShards.open(folder)
    assert {source: shards.tokens(source) for source in shards.sources} == {
        source: len(ids) for source, ids in sorted(whole.items())
    }
    assert list(shards.sources) == sorted(whole)
    source = data.draw(st.sampled_from(sorted(whole)))
    start = data.draw(st.integers(0, len(whole[source]) - 1))
    end = data.draw(st.integers(start + 1, len(whole[source])))
    assert shards.read_window(source, start, end - start).tolist() == whole[source][start:end]
    found = [d.id for d in shards.read_documents(source, start, end - start)]
    assert found == list(dict.fromkeys(owners[source][start:end]))
    begins = starts[source]
    assert shards.count_documents(source) == len(begins)
    numbers = np.array(data.draw(st.lists(st.integers(0, len(begins)), max_size=6)), dtype=np.int64)
    expected = [*begins, len(whole[source])]
    assert shards.find_document_starts(source, numbers).tolist() == [expected[n] for n in numbers]
    positions = np.arange(start, end)
    names = [shards.document(source, n).id for n in shards.find_document_numbers(source, positions)]
    assert names == owners[source][start:end]
    inside = [begin for begin in begins if start < begin < end]
    assert shards.find_boundaries(source, start, end - start).tolist() == inside


def test_reads_may_fill_any_integer_type(folder):
    out = np.full(6, -1, dtype=np.int64)
    TokenShards.open(folder).read_into("web", 3, out[1:5])
    assert out.tolist() == [-1, 12, 0, 13, 0, -1]


def test_numbers_and_positions_beyond_a_source_are_refused(folder):
    shards = TokenShards.open(folder)
    for number in (-1, 5):
        with pytest.raises(IndexError, match=r"web: documents .* of 5"):
            shards.find_document_starts("web", np.array([0, number]))
    for position in (-1, 9):
        with pytest.raises(IndexError, match=r"web: tokens .* of 9"):
            shards.find_document_numbers("web", np.array([position]))
    with pytest.raises(IndexError, match=r"wiki: document 2 of 2"):
        shards.document("wiki", 2)
    nothing = np.array([], dtype=np.int64)
    assert shards.find_document_starts("web", nothing).tolist() == []
    assert shards.find_document_numbers("web", nothing).tolist() == []


def test_a_copy_sent_to_another_process_reads_the_same(folder):
    shards = TokenShards.open(folder)
    shards.read_window("web", 0, 2)  # maps its files; maps are not pickled
    sent = pickle.loads(pickle.dumps(shards))
    assert sent.read_window("web", 0, 9).tolist() == WEB
    assert sent.fingerprint == shards.fingerprint


def test_documents_beyond_one_row_group_of_the_index_are_found(tmp_path):
    count = 2 * INDEX_ROW_GROUP + 3
    write_shard(
        str(tmp_path), "a", VOCABULARY, (make_document("web", [7], str(n)) for n in range(count))
    )
    shards = TokenShards.open(str(tmp_path))
    start = INDEX_ROW_GROUP - 1
    length = INDEX_ROW_GROUP + 2
    found = [int(stored.id) for stored in shards.read_documents("web", start, length)]
    assert found == list(range(start, start + length))
    assert shards.document("web", count - 1).id == str(count - 1)


@pytest.mark.parametrize(
    ("vocabulary", "expected"),
    [(65_536, b"\x02\x01\xff\xff"), (65_537, b"\x02\x01\x00\x00\xff\xff\x00\x00")],
)
def test_ids_are_little_endian_in_the_smallest_type_for_the_vocabulary(
    tmp_path, vocabulary, expected
):
    ids = [0x0102, 0xFFFF]
    write_shard(str(tmp_path), "a", ShardVocabulary(vocabulary, "t"), [make_document("web", ids)])
    assert (tmp_path / "a.bin").read_bytes() == expected
    assert TokenShards.open(str(tmp_path)).read_window("web", 0, 2).tolist() == ids


def test_the_summary_counts_written_documents(tmp_path):
    documents = [
        make_document("web", [1, 0]),
        make_document("wiki", [2, 3, 0]),
        make_document("web", [4]),
    ]
    summary = write_shard(str(tmp_path), "a", VOCABULARY, iter(documents))
    assert (summary.documents, summary.tokens, summary.text_bytes) == (3, 6, 60)
    assert summary.tokens_of == {"web": 3, "wiki": 3}


def test_the_summary_has_the_sums_of_all_files(folder):
    summary = write_shard(folder, "0-a", VOCABULARY, [make_document("web", [1, 0])])
    assert sorted(summary.files) == sorted(f"0-a{ending}" for ending in ENDINGS)
    for name, entry in summary.files.items():
        assert entry == manifest.compute_file_sum(f"{folder}/{name}")


def test_documents_are_grouped_by_source_in_order(folder):
    assert (
        Path(f"{folder}/0-a.bin").read_bytes()
        == np.array([10, 11, 0, 12, 0, 13, 0, 50, 51, 0], "<u2").tobytes()
    )
    assert Path(f"{folder}/0-a.ends").read_bytes() == np.array([3, 5, 7, 10], "<i8").tobytes()
    write_shard(
        folder, "2-c", VOCABULARY, [make_document("wiki", [5, 6]), make_document("web", [7])]
    )
    # Sources are ordered by name.
    assert np.fromfile(f"{folder}/2-c.bin", "<u2").tolist() == [7, 5, 6]
    head = json.loads(Path(f"{folder}/0-a.json").read_text())
    assert head["format"] == 3
    assert head["runs"] == [["web", 3, 7], ["wiki", 1, 3]]
    assert head["tokens_sha256"] == storage.compute_sha256(f"{folder}/0-a.bin")
    assert head["ends_sha256"] == storage.compute_sha256(f"{folder}/0-a.ends")


def test_the_index_can_be_read_by_any_tool(folder):
    table = pq.read_table(f"{folder}/0-a.index.parquet")
    assert table["offset"].to_pylist() == [0, 3, 5, 7]
    assert table["length"].to_pylist() == [3, 2, 2, 3]
    assert table["id"].to_pylist() == ["w0", "w1", "w2", "k0"]
    assert table["source"].to_pylist() == ["web", "web", "web", "wiki"]


def test_the_same_documents_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_shard(str(tmp_path / name), "a", VOCABULARY, [make_document("web", [1, 2, 0])])
    for ending in ENDINGS:
        one, two = (tmp_path / name / f"a{ending}" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("ids", [[5, 60_000], [2**31]])
def test_an_id_beyond_the_vocabulary_is_never_written(tmp_path, ids):
    with pytest.raises(ValueError, match="beyond a vocabulary of 60000"):
        write_shard(str(tmp_path), "a", VOCABULARY, [make_document("web", ids)])
    assert list(tmp_path.iterdir()) == []


def test_a_negative_id_is_never_written(tmp_path):
    ignored = EncodedDocument("d", "web", "", np.array([1, -100]), 1, "f", 0)
    with pytest.raises(ValueError, match="ids from -100 to 1"):
        write_shard(str(tmp_path), "a", VOCABULARY, [ignored])


def test_a_document_without_even_an_end_is_refused(tmp_path):
    with pytest.raises(ValueError, match="document d has no ids"):
        write_shard(str(tmp_path), "a", VOCABULARY, [make_document("web", [])])


def test_an_empty_shard_is_a_shard(folder):
    assert write_shard(folder, "2-c", VOCABULARY, []).tokens_of == {}
    shards = TokenShards.open(folder)
    assert shards.read_window("web", 0, 9).tolist() == WEB


def test_shards_that_are_all_empty_have_no_sources(tmp_path):
    write_shard(str(tmp_path), "a", VOCABULARY, [])
    assert TokenShards.open(str(tmp_path)).sources == ()


def rewrite(path: Path, data: bytes) -> None:
    """Write data with matching checksums, as the original writer would."""
    path.write_bytes(data)
    Path(f"{path}{SUMS}").write_bytes(compute_block_sums([data]))


def rewrite_head(path: Path, **changed: object) -> None:
    entries = json.loads(path.read_text()) | changed
    del entries["sum"]
    path.write_text(json.dumps(entries | {"sum": manifest.digest(entries)}))


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def set_newer_format(path: Path) -> None:
    rewrite_head(path, format=4)


def set_older_format(path: Path) -> None:
    rewrite_head(path, format=2)


def drop_runs(path: Path) -> None:
    rewrite_head(path, runs=None)


def change_runs(path: Path) -> None:
    rewrite_head(path, runs=[["web", 2, 5]])


def rename_source(path: Path) -> None:
    path.write_text(path.read_text().replace('"web"', '"wec"'))  # one bit


@pytest.mark.parametrize(
    ("ending", "damage", "message"),
    [
        (".bin", shorten, "6 bytes, but its header records 4 tokens, 8 bytes"),
        (".bin", grow, "10 bytes, but its header records 4 tokens, 8 bytes"),
        (".bin", Path.unlink, "missing, though its shard is finished; tokenize again"),
        (".ends", shorten, "14 bytes, but its header records 2 documents, 16 bytes"),
        (".ends", Path.unlink, "missing, though its shard is finished"),
        (".index.parquet", shorten, "bytes, but its header records an index of 2 documents"),
        (".index.parquet", Path.unlink, "missing, though its shard is finished"),
        (".json", Path.unlink, "missing, so its shard was never finished, or an older trainrig"),
        (".json", shorten, "not the header of a token shard"),
        (".json", empty, "not the header of a token shard"),
        (".json", set_newer_format, "has format 4, but this trainrig reads 3; upgrade trainrig"),
        (".json", set_older_format, "has format 2, but this trainrig reads 3; tokenize again"),
        (
            ".json",
            rename_source,
            "damaged: it has changed since it was written; tokenize again",
        ),
        (".bin.sums", Path.unlink, "missing, though its shard is finished"),
        (".ends.sums", empty, "0 bytes, but its header records sums of 2 documents, 4 bytes"),
        (".json", drop_runs, "not the header of a token shard (runs: "),
        (".json", change_runs, "its runs have 2 documents and 5 tokens"),
    ],
)
def test_a_shard_that_is_not_whole_is_named(folder, ending, damage, message):
    path = Path(folder, f"1-b{ending}")
    damage(path)
    with pytest.raises(DataError) as refused:
        TokenShards.open(folder)
    assert str(path) in str(refused.value) and message in str(refused.value)


@pytest.mark.parametrize("damage", [shorten, empty, Path.unlink])
@pytest.mark.parametrize("mapped", [True, False])
def test_tokens_that_are_cut_off_after_opening_are_named(folder, damage, mapped):
    shards = TokenShards.open(folder)
    if mapped:
        shards.read_window("web", 7, 2)
    damage(Path(folder, "1-b.bin"))
    if mapped and damage is Path.unlink:  # the map keeps the file alive
        assert shards.read_window("web", 7, 2).tolist() == [14, 0]
        return
    with pytest.raises(DataError, match=r"1-b\.bin: .*since it was opened"):
        shards.read_window("web", 7, 2)


def test_ids_beyond_the_vocabulary_are_named_with_their_file(folder):
    path = Path(folder, "1-b.bin")
    rewrite(path, b"\xff" * path.stat().st_size)
    shards = TokenShards.open(folder)
    assert shards.read_window("web", 0, 7).tolist() == WEB[:7]  # reads the other shard
    with pytest.raises(DataError) as refused:
        shards.read_window("web", 6, 2)
    assert str(refused.value) == (
        f"{path}: id 65535 in tokens 0 to 1, but its vocabulary has 60000 entries; tokenize again"
    )


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ([-1] * 4, -1),
        ([0] * 4, 0),
        ([2**62] * 4, 2**62),
        ([5, 3, 7, 10], 3),  # within the shard, but descending
        ([3, 5, 6, 10], 6),  # the run's last document ends before the run
    ],
)
def test_invalid_document_ends_are_named_with_their_file(folder, ends, found):
    path = Path(folder, "0-a.ends")
    rewrite(path, np.array(ends, "<i8").tobytes())
    shards = TokenShards.open(folder)
    message = rf"^{path}: a document ends at token {found}, which is impossible for 3 documents"
    asked = [
        lambda: shards.find_document_starts("web", np.arange(4)),
        lambda: shards.find_document_numbers("web", np.arange(7)),
        lambda: shards.find_boundaries("web", 0, 7),
    ]
    refused = 0
    for ask in asked:
        try:
            ask()
        except DataError as error:
            assert re.match(message, str(error)) and str(error).endswith("; tokenize again")
            refused += 1
    assert refused, "no way to read it found it"


@pytest.mark.slow
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 11), min_size=4, max_size=4))
@tries(max_examples=100)
def test_readers_stay_inside_their_source_or_refuse_for_any_document_ends(tmp_path_factory, ends):
    folder = tmp_path_factory.mktemp("shards")
    documents = [
        make_document(s, [1] * n) for s, n in (("web", 3), ("web", 2), ("web", 2), ("wiki", 3))
    ]
    write_shard(str(folder), "a", VOCABULARY, documents)
    rewrite(folder / "a.ends", np.array(ends, "<i8").tobytes())
    shards = TokenShards.open(str(folder))
    for ask, least, most in (
        (lambda: shards.find_document_starts("web", np.array([2, 0, 3, 1])), 0, 7),
        (lambda: shards.find_document_numbers("web", np.array([6, 0, 3])), 0, 2),
        (lambda: shards.find_document_numbers("wiki", np.array([1])), 0, 0),
        (lambda: shards.find_boundaries("web", 0, 7), 1, 6),
    ):
        with contextlib.suppress(DataError):
            assert all(least <= found <= most for found in ask().tolist())


def test_an_index_that_is_lost_or_torn_after_opening_is_named(folder):
    shards = TokenShards.open(folder)
    index = Path(folder, "1-b.index.parquet")
    index.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"1-b\.index\.parquet: not the index of a token shard"):
        shards.read_documents("web", 8, 1)[0]
    index.unlink()
    with pytest.raises(DataError, match=r"1-b\.index\.parquet: deleted since it was opened"):
        shards.read_documents("web", 8, 1)[0]
    assert shards.read_window("web", 7, 2).tolist() == [14, 0]  # this read needs no damaged file


ASKED = {
    ".bin": lambda shards: shards.read_window("web", 0, 9),
    ".ends": lambda shards: shards.find_boundaries("web", 0, 9),
    ".index.parquet": lambda shards: shards.read_documents("web", 0, 9),
}


@pytest.mark.parametrize("ending", ASKED)
@pytest.mark.parametrize("when", ["before", "while it is open", "after it was read"])
def test_one_bit_that_flips_is_found_and_its_file_named(folder, ending, when):
    ask = ASKED[ending]
    path = Path(folder, f"0-a{ending}")
    shards = TokenShards.open(folder)
    if when == "after it was read":
        ask(shards)
    with path.open("r+b") as file:  # changes the file in place: maps change too
        data = file.read()
        at = data.index(b"w1") if ending == ".index.parquet" else 1
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))
    if when == "before":
        shards = TokenShards.open(folder)
    with pytest.raises(DataError) as refused:
        ask(shards)
    assert str(refused.value).startswith(f"{path}: ")
    if ending != ".index.parquet":
        assert "damaged: block 0 (bytes 0 to" in str(refused.value)


def test_shards_of_two_tokenizers_do_not_mix(folder):
    write_shard(folder, "2-c", ShardVocabulary(60_000, "another"), [make_document("web", [1])])
    with pytest.raises(DataError, match=r"2-c: made with another tokenizer than .*0-a"):
        TokenShards.open(folder)


def test_a_folder_without_shards_names_one_with_shards(folder):
    above = str(Path(folder).parent)
    with pytest.raises(DataError, match=rf"no token shards .* here; there are some in {folder}"):
        TokenShards.open(above)
    with pytest.raises(DataError, match=f"^{above}/nothing: no such folder"):
        TokenShards.open(f"{above}/nothing")
    empty = Path(above, "empty")
    empty.mkdir()
    with pytest.raises(DataError, match="`trainrig tokenize` makes them"):
        TokenShards.open(str(empty))


def test_the_fingerprint_depends_on_the_content_alone(folder, tmp_path):
    moved = shutil.copytree(folder, tmp_path / "moved")
    fingerprint = TokenShards.open(folder).fingerprint
    assert TokenShards.open(f"{moved}/").fingerprint == fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        [make_document("web", [14, 1], "w3")],  # another token
        [make_document("news", [14, 0], "w3")],  # another source
        [
            make_document("web", [14], "w3"),
            make_document("web", [0], "w4"),
        ],  # another number of documents
    ],
)
def test_the_fingerprint_changes_with_tokens_and_sources(folder, changed):
    before = TokenShards.open(folder).fingerprint
    write_shard(folder, "1-b", VOCABULARY, [*changed, make_document("wiki", [52, 0], "k1")])
    assert TokenShards.open(folder).fingerprint != before


def test_the_fingerprint_changes_with_the_ends_of_documents(tmp_path):
    prints = set()
    for name, cut in (("one", 1), ("two", 2)):
        pieces = [make_document("web", [1, 2, 3][:cut]), make_document("web", [1, 2, 3][cut:])]
        write_shard(str(tmp_path / name), "a", VOCABULARY, pieces)
        prints.add(TokenShards.open(str(tmp_path / name)).fingerprint)
    assert len(prints) == 2


@pytest.mark.slow
def test_a_bucket_reads_as_a_disk_does(s3, tmp_path):
    dice = np.random.default_rng(0)
    for name in ("0", "1", "2"):
        lengths = dice.integers(1, 40_000, 12)
        documents = [
            make_document(source, dice.integers(0, 60_000, length).tolist(), f"{name}{number}")
            for number, (source, length) in enumerate(
                zip(["web", "wiki"] * 6, lengths, strict=True)
            )
        ]
        for folder in (f"{s3}/train", str(tmp_path / "train")):
            write_shard(folder, name, VOCABULARY, documents)
    cache = BlockCache(folder=str(tmp_path / "blocks"))
    near = TokenShards.open(str(tmp_path / "train"))
    far = TokenShards.open(f"{s3}/train", cache)
    assert far.fingerprint == near.fingerprint
    for source in near.sources:
        tokens = near.tokens(source)
        for start, end in np.sort(dice.integers(0, tokens, (20, 2)), axis=1).tolist():
            window = (source, start, end - start + 1)
            assert (far.read_window(*window) == near.read_window(*window)).all()
            assert far.find_boundaries(*window).tolist() == near.find_boundaries(*window).tolist()
            assert far.read_documents(*window) == near.read_documents(*window)
        positions = dice.integers(0, tokens, 50)
        numbers = near.find_document_numbers(source, positions)
        assert (far.find_document_numbers(source, positions) == numbers).all()
        starts = near.find_document_starts(source, numbers)
        assert (far.find_document_starts(source, numbers) == starts).all()


def test_shards_in_a_bucket_are_opened_by_a_listing_and_their_headers(proxy, s3):
    for number in range(5):
        write_shard(f"{s3}/train", f"{number}", VOCABULARY, [make_document("web", [1, 2, 0])])
    proxy.count()
    assert TokenShards.open(f"{s3}/train").tokens("web") == 15
    assert proxy.count() == {"GET": 5, "LIST": 1}


def test_a_shard_that_is_torn_or_lost_in_a_bucket_is_named(s3, tmp_path):
    cache = BlockCache(folder=str(tmp_path))
    for name in ("a", "b"):
        write_shard(f"{s3}/train", name, VOCABULARY, [make_document("web", [1, 2, 0])])
    shards = TokenShards.open(f"{s3}/train", cache)
    storage.write(f"{s3}/train/b.bin", b"\1\0")
    with pytest.raises(DataError, match=r"b\.bin: 2 bytes, but 3 elements .* since it was opened"):
        shards.read_window("web", 3, 3)
    with pytest.raises(DataError, match=r"b\.bin: 2 bytes.*header records 3 tokens"):
        TokenShards.open(f"{s3}/train", cache)
    storage.delete(f"{s3}/train/b.bin")
    with pytest.raises(DataError, match=r"b\.bin: deleted since"):
        shards.read_window("web", 3, 3)
    with pytest.raises(DataError, match=r"b\.bin: missing, though"):
        TokenShards.open(f"{s3}/train", cache)
