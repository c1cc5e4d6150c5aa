import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.tokens.rows.best_fit import pack_best_fit


def pack_one_by_one(lengths: list[int], capacity: int) -> list[int]:
    """Return best-fit-decreasing rows by its definition: every piece is tried in every row."""
    spaces: list[int] = []
    since: list[int] = []  # when the row got its present space
    row_of = [0] * len(lengths)
    for now, piece in enumerate(sorted(range(len(lengths)), key=lambda p: (-lengths[p], p))):
        fitting = [row for row, space in enumerate(spaces) if space >= lengths[piece]]
        if fitting:
            row = min(fitting, key=lambda row: (spaces[row], since[row]))
        else:
            row = len(spaces)
            spaces.append(capacity)
            since.append(now)
        spaces[row] -= lengths[piece]
        since[row] = now
        row_of[piece] = row
    return row_of


@given(st.data(), st.integers(1, 40))
def test_packing_by_length_equals_one_piece_at_a_time(data, capacity):
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=120))
    rows = pack_best_fit(np.array(lengths, dtype=np.int64), capacity)
    assert rows.tolist() == pack_one_by_one(lengths, capacity)


@pytest.mark.parametrize(("capacity", "deviation"), [(64, 1.0), (200, 2.0), (1000, 1.2)])
def test_packing_web_like_documents_equals_one_piece_at_a_time(capacity, deviation):
    drawn = np.random.default_rng(capacity).lognormal(4.0, deviation, 2_000)
    lengths = np.clip(drawn, 1, capacity).astype(np.int64)
    assert pack_best_fit(lengths, capacity).tolist() == pack_one_by_one(lengths.tolist(), capacity)


def test_a_row_takes_the_longest_piece_and_then_the_best_fit():
    # 6 and 5 begin rows of 8. 3 fits the second exactly, 2 the first. 1 needs a third.
    assert pack_best_fit(np.array([1, 2, 3, 5, 6]), 8).tolist() == [2, 0, 1, 1, 0]


def test_no_pieces_need_no_rows():
    assert pack_best_fit(np.array([], dtype=np.int64), 8).tolist() == []
