import tempfile
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig.corpus.dedup import candidate_passes
from trainrig.corpus.dedup.candidates import ENTRY, iterate_candidates, select_nearest_of_all
from trainrig.corpus.dedup.document_refs import assign_parts
from trainrig.corpus.dedup.sorted_runs import RunPart, write_run

# Some keys are far apart, and some are in one bin.
keys = st.sampled_from([n << 60 for n in range(16)] + [7 << 60 | n for n in range(4)])
rows = st.sets(st.tuples(keys, st.integers(0, 60)), max_size=120)


@given(rows, st.integers(1, 3), st.sampled_from([1, 10, 40, 1000]), st.integers(1, 50))
@tries(deadline=None)
def test_bounded_batches_of_entries_give_the_same_pairs(rows, parts, most, piece):
    table = np.array([(key, ref * 7 % 61, ref << 32, ref) for key, ref in rows], ENTRY)
    expected = select_nearest_of_all(iterate_candidates(table, earlier=50))
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("os.fsync"),
        mock.patch("trainrig.corpus.dedup.sorted_runs.PIECE", piece),
    ):
        path = f"{folder}/0.run"
        write_run(path, table, assign_parts(table["key"], parts), parts)
        found = [
            pairs
            for part in range(parts)
            for pairs in candidate_passes.iterate_candidates_of_range(
                RunPart.of([path], part, ENTRY), parts, most, 50
            )
        ]
    assert select_nearest_of_all(found).tolist() == expected.tolist()


def test_a_range_of_many_entries_is_never_held_whole(monkeypatch):
    dice = np.random.default_rng(1)
    table = np.zeros(5_000, ENTRY)
    table["key"] = dice.integers(0, 2**64, len(table), np.uint64)
    table["key"][:2_000] = table["key"][0]  # more than may be held
    table["ref"] = table["rank"] = np.arange(len(table))
    held = []

    def counted(rows, *more, **others):
        held.append(len(rows))
        return iterate_candidates(rows, *more, **others)

    monkeypatch.setattr("trainrig.corpus.dedup.candidates.iterate_candidates", counted)
    monkeypatch.setattr("trainrig.corpus.dedup.sorted_runs.PIECE", 100)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/0.run"
        write_run(path, table, np.zeros(len(table), np.int64), 1)
        found = list(
            candidate_passes.iterate_candidates_of_range(
                RunPart.of([path], 0, ENTRY), 1, 1_000, None
            )
        )
    # The first documents of the frequent key, which are paired with each other.
    assert sum(held) == 3_000 + 33
    assert max(held) <= 1_000
    assert len({a for pairs in found for a in pairs["a"].tolist()}) == 1_999
