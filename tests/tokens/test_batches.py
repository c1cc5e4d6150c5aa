import collections
import hashlib
import itertools
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

from trainrig.config import build
from trainrig.errors import ConfigError, DataError
from trainrig.tokens.batches import (
    SLOTS,
    BatchSettings,
    MicroBatch,
    Mixture,
    PretrainBatches,
    local,
    permuted,
)
from trainrig.tokens.shards import EncodedDocument, TokenShards, Vocabulary, write_shard

# A source of the tests below holds ids that count up from its own thousand: an id tells its place.
BASE = {"news": 10_000, "web": 20_000, "wiki": 30_000}
DOCUMENT = 7  # tokens of each document, but for the last of a source

Make = Callable[..., TokenShards]


def write_counting(folder: str, **tokens: int) -> TokenShards:
    """Shards with so many tokens by source, in documents that share two files."""
    documents = []
    for source, count in tokens.items():
        for first in range(0, count, DOCUMENT):
            ids = BASE[source] + np.arange(first, min(first + DOCUMENT, count))
            url = f"https://{source}.example/{first}"
            documents.append(EncodedDocument(f"{source}-{first}", source, url, ids, 1, "f", first))
    documents.sort(key=lambda document: document.corpus_row)  # sources take turns
    half = len(documents) // 2
    write_shard(folder, "0", Vocabulary(60_000, "tokenizer"), documents[:half])
    write_shard(folder, "1", Vocabulary(60_000, "tokenizer"), documents[half:])
    return TokenShards.open(folder)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda **tokens: write_counting(str(tmp_path), **tokens)


def settings(**changed: object) -> BatchSettings:
    return BatchSettings(**{"sequence_length": 4, "global_batch": 6, "micro_batch": 2} | changed)


def targets_of(batches: PretrainBatches, steps: int) -> list[int]:
    micro_batches = itertools.chain.from_iterable(batches.at(step) for step in range(steps))
    return [int(t) for micro_batch in micro_batches for t in micro_batch.targets.ravel()]


# --- permutations


@tries(deadline=None)
@given(st.integers(1, 3_000), st.text(max_size=5))
def test_a_permutation_takes_each_number_to_another_one(size, key):
    assert sorted(permuted(np.arange(size), size, key)) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 63, 64, 65, 4_096, 65_537, 104_729])
def test_sizes_at_the_edges_of_the_network_are_permuted_whole(size):
    assert (np.sort(permuted(np.arange(size), size, "k")) == np.arange(size)).all()


def test_a_permutation_is_computed_number_by_number():
    whole = permuted(np.arange(1_000), 1_000, "k")
    some = np.array([999, 3, 3, 512])
    assert (permuted(some, 1_000, "k") == whole[some]).all()


def test_a_permutation_of_very_many_needs_no_memory():
    size = 10**15 + 37
    ends = np.array([0, 1, size - 2, size - 1])
    found = permuted(ends, size, "k")
    assert len(set(found.tolist())) == 4 and ((found >= 0) & (found < size)).all()


def test_another_key_gives_another_permutation():
    permutations = {tuple(permuted(np.arange(100), 100, f"{key}")) for key in range(50)}
    assert len(permutations) == 50


@pytest.mark.parametrize("size", [2, 3, 7, 50])
def test_every_place_is_as_likely(size):
    """Chi-squared over (number, place) for 500 keys; its mean is (size - 1)^2."""
    keys = 500
    counts = np.zeros((size, size))
    for key in range(keys):
        counts[np.arange(size), permuted(np.arange(size), size, str(key))] += 1
    expected = keys / size
    degrees = (size - 1) ** 2
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < degrees + 6 * np.sqrt(2 * degrees)


def test_neighbours_do_not_stay_neighbours():
    """Chance leaves two pairs side by side, and a third of the size between the two of a pair."""
    size = 100_000
    steps = np.diff(permuted(np.arange(size), size, "k"))
    assert (np.abs(steps) == 1).sum() < 20
    assert abs(np.abs(steps).mean() / size - 1 / 3) < 0.01


def permuted_one_by_one(number: int, size: int, key: str) -> int:
    """The same permutation in whole numbers of Python, which cannot overflow."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    digest = hashlib.blake2b(key.encode(), digest_size=64).digest()
    while True:
        left, right = number >> half, number & (2**half - 1)
        for at in range(0, 64, 8):
            word = right ^ int.from_bytes(digest[at : at + 8], "little")
            word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
            left, right = right, left ^ (word ^ word >> 31) & (2**half - 1)
        number = left << half | right
        if number < size:
            return number


@tries(deadline=None)
@given(st.integers(1, 2**62), st.text(max_size=5), st.data())
def test_permutations_agree_with_a_twin_that_takes_one_number_at_a_time(size, key, data):
    index = data.draw(st.lists(st.integers(0, size - 1), max_size=5))
    expected = [permuted_one_by_one(number, size, key) for number in index]
    assert permuted(np.array(index, dtype=np.int64), size, key).tolist() == expected


def test_permutations_are_the_same_as_ever():
    # Written down once: a change would alter the order of every run's data.
    assert permuted(np.arange(10), 10, "0\n0\nweb").tolist() == [2, 8, 9, 7, 3, 4, 6, 1, 5, 0]


# --- mixtures


def sources_of(mixture: Mixture, samples: int) -> list[str]:
    sources, _ = mixture.places(np.arange(samples))
    return [mixture.sources[number] for number in sources]


def test_a_mixture_of_two_to_one_worked_by_hand():
    mixture = Mixture.of({"a": 2.0, "b": 1.0})
    # a's slots of 3 are due before 2 and 3, b's before 3; the tie at 3 goes to the first name.
    assert "".join(sources_of(mixture, 6)) == "aabaab"
    _, before = mixture.places(np.arange(6))
    assert before.tolist() == [0, 1, 0, 2, 3, 1]


def test_a_mixture_of_one_to_two_to_five_worked_by_hand():
    # Each may stand from, and must before: a 0-8; b 0-4 4-8; c 0-2 1-4 3-5 4-7 6-8.
    mixture = Mixture.of({"a": 1.0, "b": 2.0, "c": 5.0})
    assert "".join(sources_of(mixture, 8)) == "cbcccabc"


weights = st.dictionaries(
    st.sampled_from("abcdefghij"),
    st.one_of(st.integers(1, 50), st.floats(0.01, 10.0)),
    min_size=1,
)


@tries(max_examples=25, deadline=None)  # each builds a table of SLOTS
@given(weights, st.integers(0, 10**12))
def test_every_prefix_of_every_mixture_is_within_one_sample_of_the_shares(weights, start):
    mixture = Mixture.of(weights)
    total = sum(weights.values())
    for source, share in mixture.shares.items():
        assert abs(share - weights[source] / total) <= 1 / SLOTS
    samples = np.concatenate([np.arange(2_000), start + np.arange(50)])
    sources, before = mixture.places(samples)
    length = sum(mixture.slots)
    for number, slots in enumerate(mixture.slots):
        # In whole numbers, |count - share k| < 1, before each sample of the source and after it.
        of = sources == number
        assert (np.abs(before[of] * length - slots * samples[of]) < length).all()
        assert (np.abs((before[of] + 1) * length - slots * (samples[of] + 1)) < length).all()


@tries(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_whole_weights_are_met_exactly_and_within_one_at_every_prefix(slots):
    mixture = Mixture.of({f"{n:02}": float(count) for n, count in enumerate(slots)})
    length = sum(slots)
    sources, before = mixture.places(np.arange(2 * length))
    counts = np.zeros(len(slots), dtype=int)
    for k, (source, ordinal) in enumerate(zip(sources, before, strict=True), 1):
        assert ordinal == counts[source]  # numbered without gap or repeat
        counts[source] += 1
        for number, count in enumerate(counts):  # |count - share k| < 1, in whole numbers
            assert abs(count * length - slots[number] * k) < length
    assert counts.tolist() == [2 * count for count in slots]


def test_decimal_weights_are_exact():
    # DoReMi's for Pile-CC, OpenWebText2, Books3 and the rest (arXiv:2305.10429).
    mixture = Mixture.of({"cc": 0.6057, "owt": 0.1019, "books": 0.0224, "rest": 0.27})
    assert mixture.shares == {"cc": 0.6057, "owt": 0.1019, "books": 0.0224, "rest": 0.27}


def test_only_the_ratios_of_weights_matter():
    assert Mixture.of({"a": 7.0, "b": 3.0}).slots == (7, 3)
    assert Mixture.of({"a": 70.0, "b": 30.0}).slots == (7, 3)
    assert Mixture.of({"a": 0.7, "b": 0.3}).slots == (7, 3)


def test_a_weight_too_small_for_a_slot_is_refused_not_rounded_up():
    with pytest.raises(ConfigError, match=r"'tiny' would be 1.0e-07 .* at least 1e-05 of the sum"):
        Mixture.of({"big": 1.0, "tiny": 1e-7})


def test_a_source_of_weight_0_is_left_out():
    assert Mixture.of({"a": 1.0, "b": 0.0}).sources == ("a",)


# --- batches


def test_the_first_batch_of_one_source_is_its_windows_in_the_order_of_the_permutation(make):
    batches = PretrainBatches(make(web=26), settings(seed=3))  # 6 windows of 4, and 1 id over
    order = permuted(np.arange(6), 6, "3\n0\nweb")
    micro_batches = batches.at(0)
    assert [m.ids.shape for m in micro_batches] == [(2, 4)] * 3
    for number, window in enumerate(order):
        micro_batch, row = micro_batches[number // 2], number % 2
        first = BASE["web"] + 4 * window
        assert micro_batch.ids[row].tolist() == [first, first + 1, first + 2, first + 3]
        assert micro_batch.targets[row].tolist() == [first + 1, first + 2, first + 3, first + 4]
        assert micro_batch.samples[row] == number
    assert {m.ids.dtype for m in micro_batches} == {np.dtype(np.int64)}


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
    assert batches.windows == {"web": windows}
    expected = [BASE["web"] + t for t in range(1, windows * length + 1)]
    assert tokens - 1 - len(expected) < length  # the rest is less than a window
    seen = targets_of(batches, 2 * windows)
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
    assert sorted(targets_of(batches, 1)) == expected


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


def test_the_sizes_of_batches_do_not_change_what_a_sample_is(make):
    shards = make(web=200, wiki=90)
    small = PretrainBatches(shards, settings(global_batch=3, micro_batch=1))
    large = PretrainBatches(shards, settings(global_batch=12, micro_batch=4))
    assert targets_of(small, 8) == targets_of(large, 2)
    assert small.fingerprint == large.fingerprint


IN_ANOTHER_PROCESS = """
import sys
import numpy as np
from trainrig.tokens.batches import BatchSettings, PretrainBatches
from trainrig.tokens.shards import TokenShards
settings = BatchSettings(sequence_length=4, global_batch=6, micro_batch=2, seed=5)
batches = PretrainBatches(TokenShards.open(sys.argv[1]), settings)
print(batches.fingerprint, *(int(t) for m in batches.at(1_000_003) for t in m.targets.ravel()))
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
    assert done.stdout.split() == [batches.fingerprint, *map(str, targets)]


def test_a_sample_is_located_where_its_ids_are_from(make):
    shards = make(web=100, wiki=60)
    batches = PretrainBatches(shards, settings())
    for step in (0, 1, 9):
        for micro_batch in batches.at(step):
            for ids, sample in zip(micro_batch.ids, micro_batch.samples, strict=True):
                where = batches.locate(int(sample))
                assert where.sample == sample
                window = shards.window(where.source, where.start, 5)
                assert window[:4].tolist() == ids.tolist()
                assert where.start == 4 * where.window
                owners = [shards.document_at(where.source, where.start + t).id for t in range(5)]
                assert [d.id for d in where.documents] == list(dict.fromkeys(owners))


def test_epochs_are_counted_by_source(make):
    batches = PretrainBatches(make(web=41), settings())  # 10 windows
    assert [batches.locate(sample).epoch for sample in (0, 9, 10, 29, 30)] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(
    "changed",
    [{"seed": 1}, {"sequence_length": 5}, {"weights": {"web": 2.0, "wiki": 1.0}}],
)
def test_the_fingerprint_changes_with_what_samples_depend_on(make, changed):
    shards = make(web=100, wiki=60)
    alike = {"weights": {"web": 1.0, "wiki": 1.0}}
    before = PretrainBatches(shards, settings(**alike)).fingerprint
    assert PretrainBatches(shards, settings(**alike | changed)).fingerprint != before


def test_the_fingerprint_changes_with_the_shards(make):
    before = PretrainBatches(make(web=100), settings()).fingerprint
    assert PretrainBatches(make(web=101), settings()).fingerprint != before


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"web": 1.0, "wikki": 1.0}, r"has no source 'wikki'; did you mean 'wiki'\?"),
        ({"web": 1.0}, "nothing said of source 'wiki' .*; to leave it out, give it the weight 0"),
    ],
)
def test_weights_that_do_not_fit_the_sources_are_refused(make, weights, message):
    with pytest.raises(ConfigError, match=message):
        PretrainBatches(make(web=100, wiki=60), settings(weights=weights))


@pytest.mark.parametrize("weights", [None, {"web": 1.0, "wiki": 1.0}])
def test_a_source_of_less_than_a_window_is_refused_unless_it_is_left_out(make, weights):
    shards = make(web=100, wiki=4)
    with pytest.raises(DataError, match="'wiki' has 4 tokens, less than a window of 5"):
        PretrainBatches(shards, settings(weights=weights))
    left_out = PretrainBatches(shards, settings(weights={"web": 1.0, "wiki": 0.0}))
    assert left_out.windows == {"web": 24}
    PretrainBatches(shards, settings(sequence_length=3, weights=weights))  # as the message says


def test_shards_without_any_tokens_are_refused(make):
    with pytest.raises(DataError, match="hold no tokens"):
        PretrainBatches(make(), settings())


def test_there_is_no_step_before_the_first(make):
    with pytest.raises(ValueError, match="no step -1"):
        PretrainBatches(make(web=100), settings()).at(-1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"global_batch": 7}, r"\(7 sequences\) is not a multiple of .* \(2\); .* above: 8"),
        ({"weights": {"web": 0.0}}, "weights: all are 0"),
        ({"weights": {}}, "weights: all are 0 or none is given"),
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


# --- who takes which micro-batch


def batch_of(micro_batches: int) -> tuple[MicroBatch, ...]:
    nothing = np.zeros((1, 1), dtype=np.int64)
    return tuple(MicroBatch(nothing, nothing, np.array([n])) for n in range(micro_batches))


def numbers(dealt: list[tuple[MicroBatch, bool]]) -> list[tuple[int, bool]]:
    return [(int(micro_batch.samples[0]), real) for micro_batch, real in dealt]


def test_five_micro_batches_for_two_and_three_workers_by_hand():
    batch = batch_of(5)
    assert numbers(local(batch, 0, 2)) == [(0, True), (1, True), (0, False)]
    assert numbers(local(batch, 1, 2)) == [(2, True), (3, True), (4, True)]
    assert numbers(local(batch, 0, 3)) == [(0, True), (0, False)]
    assert numbers(local(batch, 1, 3)) == [(1, True), (2, True)]
    assert numbers(local(batch, 2, 3)) == [(3, True), (4, True)]


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("micro_batches", [1, 2, 5, 8, 12])
def test_the_workers_together_have_the_batch_once_in_as_many_rounds_each(micro_batches, world):
    dealt = [numbers(local(batch_of(micro_batches), rank, world)) for rank in range(world)]
    real = [number for one in dealt for number, is_real in one if is_real]
    assert real == list(range(micro_batches))
    assert {len(one) for one in dealt} == {-(-micro_batches // world)}


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank, world):
    with pytest.raises(ValueError, match=f"no rank {rank} among {world} workers"):
        local(batch_of(2), rank, world)
