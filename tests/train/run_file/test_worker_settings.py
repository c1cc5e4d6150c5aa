import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import config
from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.train.run_file.worker_settings import (
    WorkerBounds,
    Workers,
    check_fallbacks,
    parse_bounds,
)


class Part(Settings):
    workers: Workers = 1


@pytest.mark.parametrize(
    ("written", "meant"),
    [(1, WorkerBounds(1, 1)), (4, WorkerBounds(4, 4)), ([2, 8], WorkerBounds(2, 8))],
)
def test_a_number_is_fixed_and_a_pair_leaves_room(written, meant):
    assert parse_bounds(config.build(Part, {"workers": written}, "run.toml").workers) == meant


@pytest.mark.parametrize("written", [0, -1, [0, 2], [3, 2]])
def test_bounds_that_cannot_be_met_are_rejected(written):
    with pytest.raises(ConfigError, match=r"^run\.toml: workers.*fewest <= most"):
        config.build(Part, {"workers": written}, "run.toml")


@pytest.mark.parametrize("written", ["2", 1.5, True, [1], [1, 2, 3], [1, "2"]])
def test_bounds_other_than_a_number_or_a_pair_are_rejected(written):
    with pytest.raises(ConfigError, match=r"run\.toml.*1 or more, or \[fewest"):
        config.build(Part, {"workers": written}, "run.toml")


@pytest.mark.slow
@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 50), st.integers(1, 4))
def test_the_size_is_the_largest_that_fits_and_is_allowed(least, more, room, multiple):
    """Workers that compute a micro-batch together join and leave together."""
    least, most = multiple * least, multiple * (least + more)
    allowed = parse_bounds((least, most), [multiple])
    fitting = [size for size in range(least, most + 1, multiple) if size <= room]
    assert allowed.fit_within(room) == (max(fitting) if fitting else None)


UNITS = st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True).map(
    lambda units: sorted(units, reverse=True)
)


@given(UNITS, st.integers(1, 20), st.integers(0, 20), st.integers(0, 50))
def test_the_first_layout_that_there_is_room_for_is_taken(units, least, more, room):
    allowed = parse_bounds((least, least + more), units)
    size = allowed.fit_within(room)
    alone = [parse_bounds((least, least + more), [unit]).fit_within(room) for unit in units]
    assert size == next((size_alone for size_alone in alone if size_alone is not None), None)
    if size is not None:
        assert alone[allowed.find_layout(size)] == size
        assert size in allowed.list_sizes()[allowed.find_layout(size)]


@given(UNITS, st.integers(1, 20), st.integers(0, 20), st.integers(0, 50))
def test_another_layout_is_taken_only_with_other_workers(units, least, more, room):
    """So a run that grows returns to its own layout, and another run keeps its layout."""
    allowed = parse_bounds((least, least + more), units)
    size = allowed.fit_within(room)
    larger = allowed.fit_within(room + 1)
    if size is not None:
        assert larger is not None and larger >= size
        assert allowed.find_layout(larger) <= allowed.find_layout(size)


def test_a_run_shrinks_through_its_layouts():
    allowed = parse_bounds((1, 8), [4, 2, 1])
    found = [allowed.fit_within(room) for room in range(10)]
    assert found == [None, 1, 2, 2, 4, 4, 4, 4, 8, 8]
    assert allowed.list_sizes() == [[4, 8], [2], [1]]


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ((3, 8), "minimum (3) is not a multiple of the replica size of any layout; use 2 or 4"),
        ((4, 8), "fallbacks[0] is never used: workers = [4, 8] always has space"),
        (4, "fallbacks[0] is never used: workers = 4 always has space"),
    ],
)
def test_workers_with_which_layouts_make_no_sense_are_refused(workers, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        check_fallbacks(parse_bounds(workers, [4, 2]))
    check_fallbacks(parse_bounds((2, 8), [4, 2]))
