import collections
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from pydantic import ValidationError
from support.shards import write_shard

from trainrig.config import build
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import describe_table_difference
from trainrig.tokens.batches import MicroBatch
from trainrig.tokens.permutation import permute_indices
from trainrig.tokens.rows.batch_stages import BatchSettings
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary, TokenShards

# Each source below has ids that count up from its own base, so an id shows its position.
BASE = {"news": 10_000, "web": 20_000, "wiki": 30_000}
DOCUMENT = 7  # tokens of each document, except for the last of a source

Make = Callable[..., TokenShards]


def write_counting(folder: str, **tokens: int) -> TokenShards:
    """Write shards with the given tokens of each source, in documents spread over two files."""
    documents = []
    for source, count in tokens.items():
        for first in range(0, count, DOCUMENT):
            ids = BASE[source] + np.arange(first, min(first + DOCUMENT, count))
            url = f"https://{source}.example/{first}"
            documents.append(EncodedDocument(f"{source}-{first}", source, url, ids, 1, "f", first))
    documents.sort(key=lambda document: document.corpus_row)  # sources alternate
    half = len(documents) // 2
    write_shard(folder, "0", ShardVocabulary(60_000, "tokenizer"), documents[:half])
    write_shard(folder, "1", ShardVocabulary(60_000, "tokenizer"), documents[half:])
    return TokenShards.open(folder)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda **tokens: write_counting(str(tmp_path), **tokens)


def settings(**changed: object) -> BatchSettings:
    return BatchSettings(**{"sequence_length": 4, "global_batch": 6, "micro_batch": 2} | changed)


def list_targets(batches: PretrainBatches, steps: int) -> list[int]:
    micro_batches = itertools.chain.from_iterable(batches.at(step) for step in range(steps))
    return [int(t) for micro_batch in micro_batches for t in micro_batch.targets.ravel()]


# --- permutations


def test_the_first_batch_of_one_source_is_its_windows_in_the_order_of_the_permutation(make):
    batches = PretrainBatches(make(web=26), settings(seed=3))  # 6 windows of 4, and 1 id over
    order = permute_indices(np.arange(6), 6, "3\n0\nweb")
    micro_batches = batches.at(0)
    assert [m.ids.shape for m in micro_batches] == [(2, 4)] * 3
    for number, window in enumerate(order):
        micro_batch = micro_batches[number // 2]
        row = number % 2
        first = BASE["web"] + 4 * window
        assert micro_batch.ids[row].tolist() == [first, first + 1, first + 2, first + 3]
        assert micro_batch.targets[row].tolist() == [first + 1, first + 2, first + 3, first + 4]
        assert micro_batch.samples[row] == number
    assert {m.ids.dtype for m in micro_batches} == {np.dtype(np.int64)}


def test_losses_are_divided_by_sums_over_micro_batches_and_never_by_0(make):
    class Counts:
        def denominators(self, step, samples, targets):
            return {"tokens": int(targets.sum()), "first": int((samples == 0).sum()), "none": 0}

    batches = PretrainBatches(make(web=26), settings(), corruption=Counts())  # 3 micro-batches
    assert batches.denominators(0) == {"tokens": 24, "first": 1, "none": 1}


@pytest.mark.slow
@tries(max_examples=50, deadline=None)
@given(length=st.integers(1, 9), tokens=st.integers(2, 60), seed=st.integers(0, 2**40))
def test_each_token_is_a_target_exactly_once_an_epoch_but_the_stated_rest(
    tmp_path_factory, length, tokens, seed
):
    tokens = max(tokens, length + 1)
    shards = write_counting(str(tmp_path_factory.mktemp("shards")), web=tokens)
    batches = PretrainBatches(
        shards, settings(sequence_length=length, global_batch=1, micro_batch=1, seed=seed)
    )
    windows = (tokens - 1) // length
    expected = [BASE["web"] + t for t in range(1, windows * length + 1)]
    assert tokens - 1 - len(expected) < length  # the rest is less than a window
    seen = list_targets(batches, 2 * windows)
    assert sorted(seen[: len(expected)]) == expected  # the first epoch
    assert sorted(seen[len(expected) :]) == expected  # the second


def test_with_no_weights_all_sources_end_their_epochs_together(make):
    shards = make(news=41, web=121, wiki=17)  # 10, 30 and 4 windows
    batches = PretrainBatches(shards, settings(global_batch=44, micro_batch=4))
    expected = sorted(
        BASE[source] + t
        for source, count in [("news", 41), ("web", 121), ("wiki", 17)]
        for t in range(1, count)
    )
    assert sorted(list_targets(batches, 1)) == expected


@pytest.mark.slow
def test_epochs_and_sources_and_seeds_are_shuffled_differently(make):
    shards = make(web=401, wiki=401)  # 100 windows each
    batches = PretrainBatches(shards, settings(global_batch=200))

    def windows(batches: PretrainBatches, step: int, source: str) -> list[int]:
        found = (batches.locate(sample) for sample in range(200 * step, 200 * step + 200))
        return [location.window for location in found if location.source == source]

    orders = [
        windows(batches, 0, "web"),
        windows(batches, 1, "web"),
        windows(batches, 0, "wiki"),
        windows(PretrainBatches(shards, settings(global_batch=200, seed=1)), 0, "web"),
    ]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_samples_follow_the_weights(make):
    shards = make(web=401, wiki=41)
    weights = {"web": 3.0, "wiki": 1.0}
    batches = PretrainBatches(shards, settings(global_batch=100, weights=weights))
    drawn = collections.Counter(batches.locate(sample).source for sample in range(100))
    assert drawn == {"web": 75, "wiki": 25}


def test_any_step_can_be_had_first(make):
    shards = make(web=200, wiki=90)
    in_order = [PretrainBatches(shards, settings()).at(step) for step in range(12)]
    for step in (11, 0, 7):
        assert_same(PretrainBatches(shards, settings()).at(step), in_order[step])


def assert_same(some: tuple[MicroBatch, ...], others: tuple[MicroBatch, ...]) -> None:
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.targets, other.targets)
        np.testing.assert_array_equal(one.samples, other.samples)
        np.testing.assert_array_equal(one.sources, other.sources)
        np.testing.assert_array_equal(one.pieces, other.pieces)


def test_batch_sizes_do_not_change_samples(make):
    shards = make(web=200, wiki=90)
    small = PretrainBatches(shards, settings(global_batch=3, micro_batch=1))
    large = PretrainBatches(shards, settings(global_batch=12, micro_batch=4))
    assert list_targets(small, 8) == list_targets(large, 2)
    assert small.data_before(8) == large.data_before(2)


IN_ANOTHER_PROCESS = """
import sys
import numpy as np
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.tokens.rows.batch_stages import BatchSettings
settings = BatchSettings(sequence_length=4, global_batch=6, micro_batch=2, seed=5)
batches = PretrainBatches(TokenShards.open(sys.argv[1]), settings)
print(*(int(t) for m in batches.at(1_000_003) for t in m.targets.ravel()))
"""


def test_another_process_has_the_same_batches(make):
    shards = make(web=200, wiki=90)
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, shards.folder],
        env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    batches = PretrainBatches(shards, settings(seed=5))
    targets = [int(t) for m in batches.at(1_000_003) for t in m.targets.ravel()]
    assert done.stdout.split() == [str(target) for target in targets]


def test_a_sample_is_located_where_its_ids_are_from(make):
    shards = make(web=100, wiki=60)
    batches = PretrainBatches(shards, settings())
    for step in (0, 1, 9):
        for micro_batch in batches.at(step):
            for ids, sample in zip(micro_batch.ids, micro_batch.samples, strict=True):
                where = batches.locate(int(sample))
                assert (where.sample, where.step) == (sample, step)
                start = 4 * where.window
                assert shards.read_window(where.source, start, 4).tolist() == ids.tolist()
                owners = [shards.read_documents(where.source, start + t, 1)[0].id for t in range(4)]
                named = {piece.place: piece.document.id for piece in where.pieces}
                assert named == {owners.index(owner): owner for owner in owners}


def test_a_micro_batch_has_the_source_and_document_of_each_piece(make):
    shards = make(web=100, wiki=60)
    batches = PretrainBatches(shards, settings(sequence_length=12))
    for micro in (micro_row for step in range(6) for micro_row in batches.at(step)):
        assert (np.diff(micro.pieces[:, 0] * 1000 + micro.pieces[:, 1]) > 0).all()
        assert sorted(set(micro.pieces[:, 0].tolist())) == list(range(len(micro.ids)))
        ends = np.append(micro.pieces[1:, 1], 0)
        for (row, place, number), end in zip(micro.pieces.tolist(), ends.tolist(), strict=True):
            source = batches.sources[micro.sources[row]]
            first = int(micro.ids[row, place]) - BASE[source]
            assert first // DOCUMENT == number
            assert place == 0 or first % DOCUMENT == 0
            inside = micro.ids[row, place : end or 12] - BASE[source]
            assert set((inside // DOCUMENT).tolist()) == {number}


def test_positions_count_from_each_documents_first_id_in_the_row(make):
    shards = make(web=100, wiki=60)
    by_document = PretrainBatches(shards, settings(sequence_length=12, attend="document"))
    across = PretrainBatches(shards, settings(sequence_length=12))
    for step in range(3):
        assert_same(by_document.at(step), across.at(step))
        for micro in by_document.at(step):
            for row in range(len(micro.ids)):
                places = micro.pieces[micro.pieces[:, 0] == row, 1].tolist()
                expected = [t - max(p for p in places if p <= t) for t in range(12)]
                assert micro.positions[row].tolist() == expected
        assert {micro.positions is None for micro in across.at(step)} == {True}


@pytest.mark.parametrize(("step", "index"), [(0, 3), (0, -1), (5, 3)])
def test_a_micro_batch_that_a_step_does_not_have_is_refused(make, step, index):
    batches = PretrainBatches(make(web=100), settings())
    assert batches.micro_batches(step) == 3
    with pytest.raises(ValueError, match=f"no micro-batch {index} among 3"):
        batches.micro_batch(step, index)


def test_epochs_are_counted_by_source(make):
    batches = PretrainBatches(make(web=41), settings())  # 10 windows
    assert [batches.locate(sample).epoch for sample in (0, 9, 10, 29, 30)] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"sequence_length": 5}, "base_sequence_length: 4 there, 5 here"),
        ({"longest_sequence_length": 8}, "longest_sequence_length: 4 there, 8 here"),
        ({"global_batch": 8}, "samples: 6 there, 8 here"),
        ({"attend": "document"}, "attend: 'window' there, 'document' here"),
        ({"weights": {"web": 2.0, "wiki": 1.0}}, r"segments[0].slots.web: 1 there, 2 here"),
    ],
)
def test_the_sample_fingerprint_names_its_settings(make, changed, named):
    shards = make(web=100, wiki=60)
    alike = {"weights": {"web": 1.0, "wiki": 1.0}}
    before = PretrainBatches(shards, settings(**alike)).data_before(1)
    after = PretrainBatches(shards, settings(**alike | changed)).data_before(1)
    assert describe_table_difference(before, after).startswith(named)
    assert json.loads(json.dumps(before)) == before  # checkpoints store it


def test_other_shards_are_other_data(make):
    before = PretrainBatches(make(web=100), settings()).data_before(1)
    after = PretrainBatches(make(web=101), settings()).data_before(1)
    assert "shards: " in describe_table_difference(before, after)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"web": 1.0, "wikki": 1.0}, r"no source 'wikki'.*'wiki'\?"),
        ({"web": 1.0}, r"source 'wiki'.*no weight.*0 to"),
    ],
)
def test_weights_that_do_not_fit_the_sources_are_refused(make, weights, message):
    with pytest.raises(ConfigError, match=message):
        PretrainBatches(make(web=100, wiki=60), settings(weights=weights))


def test_a_source_of_less_than_a_window_is_refused_unless_it_has_no_weight(make):
    shards = make(web=100, wiki=4)
    alike = {"web": 1.0, "wiki": 1.0}
    with pytest.raises(DataError, match=r"'wiki'.*4 tokens.*window of 5"):
        PretrainBatches(shards, settings(weights=alike))
    # The message suggests this length.
    PretrainBatches(shards, settings(sequence_length=3, weights=alike))
    web_alone = settings(weights={"web": 1.0, "wiki": 0.0})
    assert set(list_targets(PretrainBatches(shards, web_alone), 20)) < set(range(20_000, 20_100))


def test_a_source_of_less_than_a_window_is_left_out_where_no_weights_are_given(make):
    batches = PretrainBatches(make(web=100, wiki=4), settings())
    assert batches.left_out == ("wiki",)
    assert set(list_targets(batches, 20)) < set(range(20_000, 20_100))
    assert PretrainBatches(make(web=100, wiki=5), settings()).left_out == ()
    with pytest.raises(DataError, match="window of 5 tokens"):
        PretrainBatches(make(web=4, wiki=4), settings())


def test_shards_without_any_tokens_are_refused(make):
    with pytest.raises(DataError, match="hold no tokens"):
        PretrainBatches(make(), settings())


def test_there_is_no_step_before_the_first(make):
    with pytest.raises(ValueError, match="no step -1"):
        PretrainBatches(make(web=100), settings()).at(-1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"global_batch": 7}, r"\(7 sequences\) is not.*\(2\).*8"),
        ({"weights": {"web": 0.0}}, "weights: no weight is above 0"),
        ({"weights": {}}, "weights: no weight is above 0"),
        ({"weights": {"web": -1.0}}, "greater than or equal to 0"),
        ({"weights": {"web": float("nan")}}, "finite number"),
        ({"weights": {"web": float("inf")}}, "finite number"),
        ({"sequence_length": 0}, "greater than or equal to 1"),
        ({"micro_batch": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(changed, message):
    with pytest.raises(ValidationError, match=message):
        settings(**changed)


def test_weights_may_be_written_as_whole_numbers():
    table = {"sequence_length": 4, "global_batch": 2, "micro_batch": 2, "weights": {"web": 3}}
    assert build(BatchSettings, table, "run.toml").weights == {"web": 3.0}
