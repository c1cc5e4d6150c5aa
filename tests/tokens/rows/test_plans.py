import contextlib
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from support.shards import write_shard

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.tokens.permutation import permute_indices
from trainrig.tokens.rows import best_fit, concatenated
from trainrig.tokens.rows.packing import BestFit, Concatenate, PackingPlan, open_layout, write_plans
from trainrig.tokens.shards.block_cache import BLOCK, WAYS, BlockCache
from trainrig.tokens.shards.flat_arrays import SUMS, compute_block_sums
from trainrig.tokens.shards.shard_files import ShardVocabulary
from trainrig.tokens.shards.shard_writer import EncodedDocument
from trainrig.tokens.shards.token_shards import TokenShards

SHUFFLED = Concatenate(shuffle_documents=True)
PLANS = PackingPlan(shuffle_documents=True, seed=3, best_fit=(8, 4))
PADDING = 1


def write_documents(folder: str, shards: list[list[tuple[str, int]]]) -> None:
    """Write documents of (source, length); the ids of each are its number in its shard."""
    for number, documents in enumerate(shards):
        encoded = [
            EncodedDocument("d", source, "", np.full(length, 5 + index), 1, "f", index)
            for index, (source, length) in enumerate(documents)
        ]
        write_shard(folder, f"{number}", ShardVocabulary(1_000, "f" * 64), encoded)


SHARDS = [
    [("web", 12), ("web", 3), ("web", 2), ("wiki", 7), ("wiki", 1)],
    [("web", 1), ("web", 5), ("wiki", 9)],
]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Write two shards of two sources, and their plans."""
    folder = str(tmp_path / "train")
    write_documents(folder, SHARDS)
    write_plans(folder, PLANS, padding=PADDING)
    return folder


def rows(folder: str, packing, length: int, cache: BlockCache | None = None):
    shards = TokenShards.open(folder, cache)
    layout = open_layout(packing, shards, length, cache)
    found = []
    for source in shards.sources:
        for window in range(layout.windows(source)):
            ids, targets = np.zeros((2, length), dtype=np.int64)
            pieces = layout.read(source, window, 1, ids, targets)
            found.append((source, ids.tolist(), targets.tolist(), pieces.tolist()))
    return found


def test_plan_counts_equal_a_hand_count(tmp_path):
    write_documents(str(tmp_path), [[("web", n) for n in (12, 3, 2, 1, 5)]])
    counts, _ = write_plans(str(tmp_path), PackingPlan(best_fit=(4,)), padding=PADDING)
    # In the concatenation, rows of 5 ids begin at 0, 4, 8, 12, 16. The first document and the last,
    # tokens 18 to 22, are whole in no row.
    assert counts["best_fit"]["4"] == {
        "documents": 5,
        "documents_cut": 1,
        "documents_cut_if_concatenated": 2,
        "rows": 5,
        "targets": 20,
        "padding": 0,
        "bytes": sum(path.stat().st_size for path in tmp_path.glob("plans/best_fit-4.*")),
    }


@pytest.mark.parametrize("length", [3, 4, 8, 16, 50])
def test_the_documents_that_end_to_end_would_cut_are_those_that_no_row_holds(tmp_path, length):
    lengths = np.random.default_rng(length).integers(1, 20, 60).tolist()
    write_documents(str(tmp_path), [[("web", n) for n in lengths]])
    counts, _ = write_plans(str(tmp_path), PackingPlan(best_fit=(length,)), padding=PADDING)
    held = set()
    bounds = np.cumsum([0, *lengths])
    for window in range((sum(lengths) - 1) // length):
        begin = window * length
        end = window * length + length + 1
        held |= {n for n in range(60) if begin <= bounds[n] and bounds[n + 1] <= end}
    assert counts["best_fit"][str(length)]["documents_cut_if_concatenated"] == 60 - len(held)


def test_padding_and_targets_are_counted_as_rows_have_them(folder):
    counts, _ = write_plans(folder, PLANS, padding=PADDING)
    found = rows(folder, BestFit(), 8)
    assert counts["best_fit"]["8"]["rows"] == len(found)
    trained = sum(target != -100 for _, _, targets, _ in found for target in targets)
    assert counts["best_fit"]["8"]["targets"] == trained
    ids = 40  # ids of all documents; none is cut into more than two, and each cut repeats one id
    cuts = counts["best_fit"]["8"]["documents_cut"]
    assert counts["best_fit"]["8"]["padding"] == 9 * len(found) - ids - cuts


def test_a_shuffle_plan_has_16_bytes_a_document_and_is_a_permutation_of_them(folder):
    counts, files = write_plans(folder, PLANS, padding=PADDING)
    arrays = [entry.bytes for path, entry in files.items() if "/shuffle." in path]
    head = files["plans/shuffle.json"].bytes
    assert counts["shuffle"] == {"documents": 8, "bytes": sum(arrays)}
    sums = sum(entry.bytes for path, entry in files.items() if "/shuffle." in path and SUMS in path)
    assert sum(arrays) - head - sums == 16 * 8
    starts = np.fromfile(Path(folder, "plans", "shuffle.starts"), "<i8")
    assert sorted(starts[:5].tolist()) == [0, 12, 15, 17, 18]  # web
    assert sorted(starts[5:].tolist()) == [0, 7, 8]  # wiki
    places = permute_indices(np.arange(5), 5, "documents\n3\nweb")
    assert starts[places].tolist() == [0, 12, 15, 17, 18]


@pytest.mark.parametrize("chunk", [1, 3])
def test_plans_made_in_pieces_are_the_plans_made_at_once(folder, monkeypatch, chunk):
    _, at_once = write_plans(folder, PackingPlan(shuffle_documents=True), padding=PADDING)
    monkeypatch.setattr(concatenated, "CHUNK", chunk)
    _, in_pieces = write_plans(folder, PackingPlan(shuffle_documents=True), padding=PADDING)
    assert in_pieces == at_once


@pytest.mark.parametrize(("name", "bound"), [("BLOCK_DOCUMENTS", 2), ("BLOCK_ROWS", 1)])
def test_documents_packed_in_blocks_are_all_packed(folder, monkeypatch, name, bound):
    at_once = rows(folder, BestFit(), 4)
    monkeypatch.setattr(best_fit, name, bound)
    counts, _ = write_plans(folder, PLANS, padding=PADDING)
    assert counts["best_fit"]["4"]["documents"] == 8
    found = rows(folder, BestFit(), 4)
    assert len(found) > len(at_once)  # documents of different groups no longer share rows
    trained = sum(target != -100 for _, _, targets, _ in found for target in targets)
    fresh = sum(
        (number, piece[0][1]) not in seen for seen, number, piece in _iterate_with_earlier(found)
    )
    assert trained + fresh == 40


def _iterate_with_earlier(found):
    """Yield each row's source and pieces, with all (source, document) of earlier rows."""
    seen: set[tuple[str, int]] = set()
    for source, _, _, pieces in found:
        yield set(seen), source, pieces
        seen |= {(source, number) for _, number in pieces}


def test_the_same_shards_get_the_same_bytes(folder, tmp_path):
    other = str(tmp_path / "elsewhere" / "train")
    shutil.copytree(folder, other)
    shutil.rmtree(Path(other, "plans"))
    _, again = write_plans(other, PLANS, padding=PADDING)
    _, first = write_plans(folder, PLANS, padding=PADDING)
    assert again == first
    for path, entry in first.items():
        assert storage.compute_sha256(storage.join(other, path)) == entry.sha256


def test_no_plans_are_written_unless_configured(tmp_path):
    assert write_plans(str(tmp_path / "none"), PackingPlan(), padding=PADDING) == ({}, {})


@pytest.mark.slow
def test_rows_are_the_same_from_a_bucket(folder, s3, tmp_path):
    for path in Path(folder).glob("*.*"):
        storage.write(f"{s3}/train/{path.name}", path.read_bytes())
    cache = BlockCache(folder=str(tmp_path / "blocks"), bytes=WAYS * BLOCK)
    _, there = write_plans(f"{s3}/train", PLANS, cache, padding=PADDING)
    _, here = write_plans(folder, PLANS, padding=PADDING)
    assert there == here
    for packing in (Concatenate(), SHUFFLED, BestFit()):
        assert rows(f"{s3}/train", packing, 4, cache) == rows(folder, packing, 4)


@pytest.mark.parametrize("packing", [Concatenate(), SHUFFLED, BestFit()], ids=str)
def test_a_layout_travels_to_another_process(folder, packing):
    layout = open_layout(packing, TokenShards.open(folder), 4)
    row = np.zeros((2, 2, 4), dtype=np.int64)
    pieces = [
        reader.read("web", 1, 1, *row[number]).tolist()
        for number, reader in enumerate((layout, pickle.loads(pickle.dumps(layout))))
    ]
    assert pieces[0] == pieces[1]
    assert np.array_equal(row[0], row[1])
    assert row[0].any()


def test_a_missing_plan_names_the_needed_setting(folder):
    shards = TokenShards.open(folder)
    with pytest.raises(ConfigError) as caught:
        open_layout(BestFit(), shards, 16)
    assert str(caught.value) == (
        f"{folder}/plans/best_fit-16.json: the plan does not exist; there are plans "
        "for 4, 8; tokenize with 16 in `best_fit` under `[plans]`, or use the packing Concatenate"
    )
    shutil.rmtree(Path(folder, "plans"))
    with pytest.raises(ConfigError, match=r"tokenize with `shuffle_documents = true` under `\[pl"):
        open_layout(SHUFFLED, shards, 4)
    with pytest.raises(ConfigError, match=r"plan does not exist.*4 in"):
        open_layout(BestFit(), shards, 4)


@pytest.mark.parametrize("packing", [SHUFFLED, BestFit()], ids=str)
def test_a_plan_for_other_shards_is_refused(folder, tmp_path, packing):
    other = str(tmp_path / "other")
    write_documents(other, SHARDS[::-1])
    shutil.copytree(Path(folder, "plans"), Path(other, "plans"))
    with pytest.raises(DataError, match="made for shards"):
        open_layout(packing, TokenShards.open(other), 4)


def test_a_plan_that_is_torn_or_of_another_format_is_refused(folder):
    shards = TokenShards.open(folder)
    head = Path(folder, "plans", "shuffle.json")
    starts = Path(folder, "plans", "shuffle.starts")
    whole = head.read_bytes()
    head.write_text(json.dumps(json.loads(whole) | {"format": 1}))
    with pytest.raises(DataError, match=r"format 1, but.*trainrig reads 2"):
        open_layout(SHUFFLED, shards, 4)
    head.write_bytes(whole.replace(b'"web"', b'"wec"'))  # one bit
    with pytest.raises(DataError, match=r"shuffle.json.*changed since"):
        open_layout(SHUFFLED, shards, 4)
    head.write_bytes(whole[:40])
    with pytest.raises(DataError, match=r"shuffle.json.*not a packing plan"):
        open_layout(SHUFFLED, shards, 4)
    head.write_bytes(whole)
    starts.write_bytes(starts.read_bytes()[:-8])
    with pytest.raises(DataError, match=r"shuffle.starts: 56 bytes.*plan records 64"):
        open_layout(SHUFFLED, shards, 4)
    starts.unlink()
    with pytest.raises(DataError, match=r"shuffle.starts: missing"):
        open_layout(SHUFFLED, shards, 4)


def rewrite(path: Path, data: bytes) -> None:
    """Write data with matching checksums, as the original writer would."""
    path.write_bytes(data)
    Path(f"{path}{SUMS}").write_bytes(compute_block_sums([data]))


@pytest.mark.parametrize("array", ["shuffle.ends", "best_fit-4.lengths"])
def test_one_bit_of_a_plan_that_flips_is_found_and_its_file_named(folder, array):
    path = Path(folder, "plans", array)
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"^{path}: damaged: block 0 \(bytes 0 to "):
        rows(folder, SHUFFLED if "shuffle" in array else BestFit(), 4)


@pytest.mark.parametrize(
    ("packing", "array", "message"),
    [
        (SHUFFLED, "shuffle.ends", "web: tokens 0 to 5 in documents 5 to 5, of 5"),
        (SHUFFLED, "shuffle.starts", "web: documents that begin at tokens -1 to -1, of 23"),
        (BestFit(), "best_fit-4.row_ends", "web: row 0 of pieces 0 to -1, of 7"),
        (BestFit(), "best_fit-4.starts", "web: row 0 begins at ids -1 to -1, of 23"),
        (BestFit(), "best_fit-4.lengths", "web: row 0 of -1 ids, of 5"),
    ],
)
def test_a_plan_whose_bytes_have_changed_is_named_with_its_file(folder, packing, array, message):
    path = Path(folder, "plans", array)
    rewrite(path, b"\xff" * path.stat().st_size)
    with pytest.raises(DataError) as refused:
        rows(folder, packing, 4)
    assert str(refused.value) == f"{path}: {message}; tokenize again"


def test_targets_of_rows_that_have_changed_are_named_with_their_file(folder):
    path = Path(folder, "plans", "best_fit-4.row_targets")
    rewrite(path, b"\xff" * path.stat().st_size)
    layout = open_layout(BestFit(), TokenShards.open(folder), 4)
    with pytest.raises(DataError, match=rf"^{path}: rows of -1 to -1 targets, of 4; tokenize agai"):
        layout.targets("web", np.array([0, 1]), 1)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> str:
    """Write shards and plans that tests damage and repair."""
    folder = str(tmp_path_factory.mktemp("plans"))
    write_documents(folder, SHARDS)
    write_plans(folder, PLANS, padding=PADDING)
    return folder


@pytest.mark.parametrize(("packing", "name"), [(SHUFFLED, "shuffle"), (BestFit(), "best_fit-4")])
@tries(max_examples=150)
@given(data=st.data())
def test_no_values_of_a_plan_at_all_break_a_reader(damaged, packing, name, data):
    found = sorted(Path(damaged, "plans").glob(f"{name}.[!j]*"))
    arrays = [path for path in found if path.suffix != SUMS]
    path = data.draw(st.sampled_from(arrays))
    small = path.suffix in {".lengths", ".row_targets"}
    whole = path.read_bytes()
    values = np.frombuffer(whole, "<i4" if small else "<i8").copy()
    limits = np.iinfo(values.dtype)
    at = data.draw(st.integers(0, len(values) - 1))
    values[at:] = data.draw(st.integers(limits.min, limits.max) | st.integers(-1, 30))
    rewrite(path, values.tobytes())
    try:
        with contextlib.suppress(DataError):
            rows(damaged, packing, 4)
    finally:
        rewrite(path, whole)


def test_layouts_of_other_plans_have_other_fingerprints(folder):
    shards = TokenShards.open(folder)
    layouts = [
        open_layout(packing, shards, length)
        for packing, length in [(Concatenate(), 4), (SHUFFLED, 4), (BestFit(), 4), (BestFit(), 8)]
    ]
    assert layouts[0].fingerprint == ""
    assert len({layout.fingerprint for layout in layouts}) == 4
    write_plans(folder, PLANS.model_copy(update={"seed": 4}), padding=PADDING)
    assert open_layout(SHUFFLED, shards, 4).fingerprint != layouts[1].fingerprint
    assert open_layout(BestFit(), shards, 4).fingerprint == layouts[2].fingerprint
