import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig.errors import DataError
from trainrig.tokens.shards import (
    EncodedDocument,
    ShardSummary,
    TokenShards,
    Vocabulary,
    write_shard,
)

VOCABULARY = Vocabulary(60_000, "f" * 64)


def document(
    source: str, ids: list[int], name: str = "d", url: str = "https://a.example/1"
) -> EncodedDocument:
    return EncodedDocument(
        name, source, url, np.array(ids, dtype=np.uint32), 10 * len(ids), f"{source}.parquet", 7
    )


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Two shards, two sources, one of them in pieces."""
    folder = str(tmp_path / "train")
    write_shard(
        folder,
        "0-a",
        VOCABULARY,
        [
            document("web", [10, 11, 0], "w0"),
            document("web", [12, 0], "w1"),
            document("wiki", [50, 51, 0], "k0"),
            document("web", [13, 0], "w2"),
        ],
    )
    write_shard(
        folder,
        "1-b",
        VOCABULARY,
        [document("web", [14, 0], "w3"), document("wiki", [52, 0], "k1")],
    )
    return folder


WEB = [10, 11, 0, 12, 0, 13, 0, 14, 0]
WIKI = [50, 51, 0, 52, 0]


def test_each_source_is_one_array_across_shards_and_other_sources(folder):
    shards = TokenShards.open(folder)
    assert shards.sources == ("web", "wiki")
    assert (shards.tokens("web"), shards.tokens("wiki")) == (9, 5)
    assert shards.window("web", 0, 9).tolist() == WEB
    assert shards.window("wiki", 0, 5).tolist() == WIKI


def test_every_window_is_the_slice_it_says(folder):
    shards = TokenShards.open(folder)
    for source, whole in (("web", WEB), ("wiki", WIKI)):
        for start in range(len(whole)):
            for length in range(1, len(whole) - start + 1):
                found = shards.window(source, start, length).tolist()
                assert found == whole[start : start + length]


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 10), (8, 2), (9, 1), (0, 0)])
def test_a_window_beyond_the_source_is_refused(folder, start, length):
    with pytest.raises(IndexError, match=r"web: ids .* of 9 tokens"):
        TokenShards.open(folder).window("web", start, length)


def test_every_position_knows_its_document(folder):
    shards = TokenShards.open(folder)
    names = [shards.document_at("web", position).id for position in range(9)]
    assert names == ["w0", "w0", "w0", "w1", "w1", "w2", "w2", "w3", "w3"]
    assert [shards.document_at("wiki", p).id for p in range(5)] == ["k0"] * 3 + ["k1"] * 2
    found = shards.document_at("wiki", 4)
    assert (found.url, found.length, found.text_bytes) == ("https://a.example/1", 2, 20)
    assert (found.corpus_file, found.corpus_row) == ("wiki.parquet", 7)


def test_a_window_knows_all_its_documents_in_order(folder):
    shards = TokenShards.open(folder)
    assert [d.id for d in shards.documents("web", 2, 6)] == ["w0", "w1", "w2", "w3"]
    assert [d.id for d in shards.documents("web", 3, 2)] == ["w1"]


sources_and_lengths = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 5)), min_size=1, max_size=12
)


@tries(max_examples=50, deadline=None)  # each writes shards
@given(sources_and_lengths, st.integers(1, 4), st.data())
def test_any_shards_read_as_their_documents_laid_end_to_end(
    tmp_path_factory, documents, per_shard, data
):
    folder = str(tmp_path_factory.mktemp("shards"))
    whole: dict[str, list[int]] = {}
    owners: dict[str, list[str]] = {}
    encoded = []
    for number, (source, length) in enumerate(documents):
        ids = list(range(number * 10, number * 10 + length))
        encoded.append(document(source, ids, str(number)))
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
    assert shards.window(source, start, end - start).tolist() == whole[source][start:end]
    found = [d.id for d in shards.documents(source, start, end - start)]
    assert found == list(dict.fromkeys(owners[source][start:end]))


@pytest.mark.parametrize(
    ("vocabulary", "expected"),
    [(65_536, b"\x02\x01\xff\xff"), (65_537, b"\x02\x01\x00\x00\xff\xff\x00\x00")],
)
def test_ids_lie_little_endian_in_the_smallest_type_that_holds_the_vocabulary(
    tmp_path, vocabulary, expected
):
    ids = [0x0102, 0xFFFF]
    write_shard(str(tmp_path), "a", Vocabulary(vocabulary, "t"), [document("web", ids)])
    assert (tmp_path / "a.bin").read_bytes() == expected
    assert TokenShards.open(str(tmp_path)).window("web", 0, 2).tolist() == ids


def test_the_summary_counts_what_was_written(tmp_path):
    documents = [document("web", [1, 0]), document("wiki", [2, 3, 0]), document("web", [4])]
    summary = write_shard(str(tmp_path), "a", VOCABULARY, iter(documents))
    assert summary == ShardSummary(3, 6, 60, {"web": 3, "wiki": 3})


def test_the_index_can_be_read_by_any_tool(folder):
    table = pq.read_table(f"{folder}/0-a.index.parquet")
    assert table["offset"].to_pylist() == [0, 3, 5, 8]
    assert table["length"].to_pylist() == [3, 2, 3, 2]
    assert table["id"].to_pylist() == ["w0", "w1", "k0", "w2"]


def test_the_same_documents_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_shard(str(tmp_path / name), "a", VOCABULARY, [document("web", [1, 2, 0])])
    for ending in (".bin", ".index.parquet"):
        one, two = (tmp_path / name / f"a{ending}" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("ids", [[5, 60_000], [2**31]])
def test_an_id_beyond_the_vocabulary_is_never_written(tmp_path, ids):
    with pytest.raises(ValueError, match="beyond a vocabulary of 60000"):
        write_shard(str(tmp_path), "a", VOCABULARY, [document("web", ids)])
    assert list(tmp_path.iterdir()) == []


def test_a_negative_id_is_never_written(tmp_path):
    ignored = EncodedDocument("d", "web", "", np.array([1, -100]), 1, "f", 0)
    with pytest.raises(ValueError, match="ids from -100 to 1"):
        write_shard(str(tmp_path), "a", VOCABULARY, [ignored])


def test_a_document_without_even_an_end_is_refused(tmp_path):
    with pytest.raises(ValueError, match="document d has no ids"):
        write_shard(str(tmp_path), "a", VOCABULARY, [document("web", [])])


def test_an_empty_shard_is_a_shard(folder):
    assert write_shard(folder, "2-c", VOCABULARY, []) == ShardSummary(0, 0, 0, {})
    shards = TokenShards.open(folder)
    assert shards.window("web", 0, 9).tolist() == WEB


def test_shards_that_are_all_empty_have_no_sources(tmp_path):
    write_shard(str(tmp_path), "a", VOCABULARY, [])
    assert TokenShards.open(str(tmp_path)).sources == ()


def damage_truncate(folder: Path) -> None:
    path = folder / "1-b.bin"
    path.write_bytes(path.read_bytes()[:-2])


def damage_extend(folder: Path) -> None:
    path = folder / "1-b.bin"
    path.write_bytes(path.read_bytes() + b"\0\0")


def damage_drop_index(folder: Path) -> None:
    (folder / "1-b.index.parquet").unlink()


def damage_drop_tokens(folder: Path) -> None:
    (folder / "1-b.bin").unlink()


def damage_tear_index(folder: Path) -> None:
    path = folder / "1-b.index.parquet"
    path.write_bytes(path.read_bytes()[:-10])


def damage_foreign_index(folder: Path) -> None:
    path = folder / "1-b.index.parquet"
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)


def damage_newer_format(folder: Path) -> None:
    path = folder / "1-b.index.parquet"
    table = pq.read_table(path)
    head = json.loads(table.schema.metadata[b"trainrig.shard"]) | {"format": 2}
    pq.write_table(
        table.replace_schema_metadata({b"trainrig.shard": json.dumps(head).encode()}), path
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_truncate, "1-b.bin: 6 bytes, but its index tells of 4 tokens, 8 bytes"),
        (damage_extend, "1-b.bin: 10 bytes, but its index tells of 4 tokens, 8 bytes"),
        (damage_drop_index, "1-b.index.parquet: missing, so its shard was never finished"),
        (damage_drop_tokens, "1-b.bin: 0 bytes, but its index tells of 4 tokens"),
        (damage_tear_index, "1-b.index.parquet: not the index of a token shard"),
        (damage_foreign_index, "1-b.index.parquet: not the index of a token shard"),
        (damage_newer_format, "1-b.index.parquet: a shard of format 2; this trainrig reads 1"),
    ],
)
def test_a_shard_that_is_not_whole_is_named(folder, damage, message):
    damage(Path(folder))
    with pytest.raises(DataError) as refused:
        TokenShards.open(folder)
    assert message in str(refused.value)


def test_shards_of_two_tokenizers_do_not_mix(folder):
    write_shard(folder, "2-c", Vocabulary(60_000, "another"), [document("web", [1])])
    with pytest.raises(DataError, match=r"2-c: made with another tokenizer than .*0-a"):
        TokenShards.open(folder)


def test_a_folder_without_shards_tells_where_some_are(folder):
    above = str(Path(folder).parent)
    with pytest.raises(DataError, match=rf"no token shards .* here; there are some in {folder}"):
        TokenShards.open(above)
    with pytest.raises(DataError, match="`trainrig tokenize` makes them"):
        TokenShards.open(f"{above}/nothing")


def test_the_fingerprint_is_of_the_content_wherever_it_lies(folder, tmp_path):
    moved = shutil.copytree(folder, tmp_path / "moved")
    fingerprint = TokenShards.open(folder).fingerprint
    assert TokenShards.open(f"{moved}/").fingerprint == fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        document("web", [14, 1], "w3"),  # another token
        document("news", [14, 0], "w3"),  # another source
    ],
)
def test_the_fingerprint_changes_with_tokens_and_sources(folder, changed):
    before = TokenShards.open(folder).fingerprint
    write_shard(folder, "1-b", VOCABULARY, [changed, document("wiki", [52, 0], "k1")])
    assert TokenShards.open(folder).fingerprint != before
