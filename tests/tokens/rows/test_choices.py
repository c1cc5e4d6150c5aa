import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from support.shards import write_shard

from trainrig import config
from trainrig.errors import ConfigError
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.rows.packing import (
    BestFit,
    Concatenate,
    Packing,
    PackingPlan,
    open_layout,
    write_plans,
)
from trainrig.tokens.rows.plan_files import Layout
from trainrig.tokens.shards.shard_files import ShardVocabulary
from trainrig.tokens.shards.shard_writer import EncodedDocument
from trainrig.tokens.shards.token_shards import TokenShards

VOCABULARY = ShardVocabulary(60_000, "f" * 64)
PADDING = 59_999
PACKINGS = [Concatenate(), Concatenate(shuffle_documents=True), BestFit()]


def write_documents(folder: str, shards: list[list[tuple[str, int]]]) -> None:
    """Write documents of (source, length); each token's id is its position in its source."""
    at: dict[str, int] = {}
    for number, documents in enumerate(shards):
        encoded = []
        for source, length in documents:
            start = at.get(source, 0)
            at[source] = start + length
            ids = np.arange(start, start + length)
            encoded.append(EncodedDocument("d", source, "", ids, 1, "f", 0))
        write_shard(folder, f"{number}", VOCABULARY, encoded)


def opened(folder: str, packing, length: int, seed: int = 0) -> tuple[TokenShards, Layout]:
    if isinstance(packing, BestFit):
        plans = PackingPlan(best_fit=(length,))
    else:
        plans = PackingPlan(shuffle_documents=packing.shuffle_documents, seed=seed)
    write_plans(folder, plans, padding=PADDING)
    shards = TokenShards.open(folder)
    return shards, open_layout(packing, shards, length)


def read(layout: Layout, source: str, window: int, span: int, length: int):
    ids, targets = np.full((2, span * length), -1)
    pieces = layout.read(source, window, span, ids, targets)
    return ids, targets, pieces


def read_rows(layout: Layout, source: str, length: int):
    return [read(layout, source, w, 1, length) for w in range(layout.windows(source))]


def read_all_rows(tmp_path: Path, packing, lengths: list[int], length: int):
    folder = str(tmp_path / "train")
    write_documents(folder, [[("web", n) for n in lengths]])
    rows = read_rows(opened(folder, packing, length)[1], "web", length)
    return [(ids.tolist(), targets.tolist(), pieces.tolist()) for ids, targets, pieces in rows]


documents = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["web", "wiki"]), st.integers(1, 30)), min_size=1, max_size=9
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@given(shards=documents, length=st.integers(1, 12), seed=st.integers(0, 9))
@tries(max_examples=30)
def test_each_token_is_a_target_once_an_epoch_but_the_stated_remainder(
    packing, shards, length, seed
):
    with tempfile.TemporaryDirectory() as folder:
        write_documents(folder, shards)
        reader, layout = opened(folder, packing, length, seed)
        for source in reader.sources:
            tokens = reader.tokens(source)
            starts = reader.find_document_starts(source, np.arange(reader.count_documents(source)))
            rows = read_rows(layout, source, length)
            trained = [t for _, targets, _ in rows for t in targets.tolist() if t != IGNORE]
            assert len(trained) == len(set(trained))
            never = set(range(tokens)) - set(trained)
            if isinstance(packing, BestFit):
                # The first token of each document that begins a row is never a target; all others
                # are.
                assert never == {int(ids[0]) for ids, _, _ in rows} & set(starts.tolist())
            else:
                # The first token of the stream, and the tokens after its last whole row.
                order = (
                    read_stream(reader, source, seed)
                    if packing.shuffle_documents
                    else range(tokens)
                )
                left_over = (tokens - 1) % length
                assert never == {order[0], *order[tokens - left_over :]}


def read_stream(shards: TokenShards, source: str, seed: int) -> list[int]:
    """Return the tokens of all documents in the shuffled order, from rows of one token."""
    folder = shards.folder
    _, layout = opened(folder, Concatenate(shuffle_documents=True), 1, seed)
    rows = read_rows(layout, source, 1)
    if not rows:
        return [0]
    return [int(ids[0]) for ids, _, _ in rows] + [int(rows[-1][1][0])]


@pytest.mark.slow
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@given(shards=documents, length=st.integers(1, 12))
@tries(max_examples=30)
def test_rows_match_their_pieces_and_targets_are_the_next_ids(packing, shards, length):
    with tempfile.TemporaryDirectory() as folder:
        write_documents(folder, shards)
        reader, layout = opened(folder, packing, length)
        for source in reader.sources:
            starts = reader.find_document_starts(source, np.arange(reader.count_documents(source)))
            counts = []
            for ids, targets, pieces in read_rows(layout, source, length):
                text = ids[ids != PADDING]
                numbers = np.searchsorted(starts, text, side="right") - 1
                # A piece begins where the text jumps, or where another document begins.
                begins = np.append(True, (np.diff(text) != 1) | (np.diff(numbers) != 0))
                assert pieces.tolist() == [[p, numbers[p]] for p in np.flatnonzero(begins)]
                assert (ids[len(text) :] == PADDING).all()
                trained = targets != IGNORE
                following = np.append(ids[1:], targets[-1])
                assert targets[trained].tolist() == following[trained].tolist()
                # Within a piece no position is ignored: an ignored position ends a piece.
                ends = {place - 1 for place, _ in pieces.tolist()} | {*range(len(text) - 1, length)}
                assert set(np.flatnonzero(~trained).tolist()) <= ends
                counts.append(int(trained.sum()))
            windows = np.arange(layout.windows(source))
            assert layout.targets(source, windows, 1).tolist() == counts


@pytest.mark.slow
@pytest.mark.parametrize("packing", PACKINGS[:2], ids=str)
@given(shards=documents, length=st.integers(1, 5), span=st.integers(1, 4))
@tries(max_examples=20)
def test_a_row_of_several_windows_is_their_rows_side_by_side(packing, shards, length, span):
    with tempfile.TemporaryDirectory() as folder:
        write_documents(folder, shards)
        reader, layout = opened(folder, packing, length)
        for source in reader.sources:
            rows = read_rows(layout, source, length)
            for window in range(0, len(rows) - span + 1):
                ids, targets, pieces = read(layout, source, window, span, length)
                parts = rows[window : window + span]
                assert ids.tolist() == np.concatenate([part[0] for part in parts]).tolist()
                assert targets.tolist() == np.concatenate([part[1] for part in parts]).tolist()
                of = layout.targets(source, np.array([window]), span)
                assert of.tolist() == [span * length]
                apart = {
                    (place + offset * length, number)
                    for offset, part in enumerate(parts)
                    for place, number in part[2].tolist()
                }
                together = {(place, number) for place, number in pieces.tolist()}
                # A window that begins inside a document starts a new piece of it; a row does not.
                assert together <= apart
                assert all(place % length == 0 for place, _ in apart - together)


def test_documents_end_to_end_by_hand(tmp_path):
    assert read_all_rows(tmp_path, Concatenate(), [3, 1, 6], 4) == [
        ([0, 1, 2, 3], [1, 2, 3, 4], [[0, 0], [3, 1]]),
        ([4, 5, 6, 7], [5, 6, 7, 8], [[0, 2]]),
    ]


def test_documents_packed_by_hand(tmp_path):
    # Rows have 5 ids. The first document fills two rows and leaves 4 of its ids, which the document
    # of 1 joins. The last fills one; 3 and 2 share another. Their tokens: 0-11, 12-14, 15-16, 17,
    # 18-22.
    assert read_all_rows(tmp_path, BestFit(), [12, 3, 2, 1, 5], 4) == [
        ([0, 1, 2, 3], [1, 2, 3, 4], [[0, 0]]),
        ([4, 5, 6, 7], [5, 6, 7, 8], [[0, 0]]),
        ([18, 19, 20, 21], [19, 20, 21, 22], [[0, 4]]),
        ([8, 9, 10, 11], [9, 10, 11, 17], [[0, 0]]),
        ([12, 13, 14, 15], [13, 14, 15, 16], [[0, 1], [3, 2]]),
    ]


def test_two_documents_share_a_row_and_the_join_is_no_target(tmp_path):
    # Two documents of 6 leave 2 ids each, in a row of 5 with padding. 4 and 10 were targets before.
    assert read_all_rows(tmp_path, BestFit(), [6, 6], 4)[2] == (
        [4, 5, 10, 11],
        [5, IGNORE, 11, IGNORE],
        [[0, 0], [2, 1]],
    )


def test_no_document_that_fits_is_ever_cut_by_best_fit(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 30, 200).tolist()
    pieces = [
        number for _, _, row in read_all_rows(tmp_path, BestFit(), lengths, 20) for _, number in row
    ]
    assert all(pieces.count(n) <= 1 for n, length in enumerate(lengths) if length <= 21)


def test_another_seed_lays_documents_in_another_order(tmp_path):
    folder = str(tmp_path / "train")
    write_documents(folder, [[("web", 2)] * 50])
    orders = []
    for seed in (0, 1):
        _, layout = opened(folder, Concatenate(shuffle_documents=True), 7, seed)
        orders.append([ids.tolist() for ids, _, _ in read_rows(layout, "web", 7)])
    assert orders[0] != orders[1]


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_windows_that_a_source_does_not_have_are_refused(tmp_path, packing):
    write_documents(str(tmp_path), [[("web", 30)]])
    _, layout = opened(str(tmp_path), packing, 4)
    for window in (-1, layout.windows("web")):
        with pytest.raises(IndexError, match="web: windows"):
            read(layout, "web", window, 1, 4)


def test_best_fit_has_rows_of_one_length_only(tmp_path):
    write_documents(str(tmp_path), [[("web", 30)]])
    _, layout = opened(str(tmp_path), BestFit(), 4)
    with pytest.raises(ConfigError, match=r"length \(4\).*row of 8 is"):
        read(layout, "web", 0, 2, 4)
    with pytest.raises(ConfigError, match="use one sequence_length, or Concatenate"):
        layout.targets("web", np.array([0]), 2)


class Run(config.Settings):
    packing: Packing


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_a_run_file_names_a_packing_by_its_kind(packing):
    assert config.build(Run, {"packing": packing.model_dump()}, "run.toml").packing == packing


def test_a_packing_that_does_not_exist_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"no kind 'BestFt'.*'BestFit'"):
        config.build(Run, {"packing": {"kind": "BestFt"}}, "run.toml")
