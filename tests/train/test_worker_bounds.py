import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import config
from trainrig.config import Settings
from trainrig.errors import ConfigError
from trainrig.train.worker_bounds import WorkerBounds, Workers, parse_bounds


class Part(Settings):
    workers: Workers = 1


@pytest.mark.parametrize(
    ("written", "meant"),
    [(1, WorkerBounds(1, 1)), (4, WorkerBounds(4, 4)), ([2, 8], WorkerBounds(2, 8))],
)
def test_a_number_is_fixed_and_a_pair_leaves_room(written, meant):
    assert parse_bounds(config.build(Part, {"workers": written}, "run.toml").workers) == meant


@pytest.mark.parametrize("written", [0, -1, [0, 2], [3, 2]])
def test_what_cannot_be_met_is_refused(written):
    with pytest.raises(ConfigError, match=r"^run\.toml: workers.*fewest <= most"):
        config.build(Part, {"workers": written}, "run.toml")


@pytest.mark.parametrize("written", ["2", 1.5, True, [1], [1, 2, 3], [1, "2"]])
def test_what_is_no_number_or_pair_is_refused(written):
    with pytest.raises(ConfigError, match=r"^run\.toml: workers: should be 1 or more, or \[fewest"):
        config.build(Part, {"workers": written}, "run.toml")


@pytest.mark.slow
@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 50), st.integers(1, 4))
def test_the_size_is_the_largest_that_fits_and_is_allowed(least, more, room, multiple):
    """Workers that compute a micro-batch together come and go together."""
    least, most = multiple * least, multiple * (least + more)
    allowed = parse_bounds((least, most), multiple)
    fitting = [size for size in range(least, most + 1, multiple) if size <= room]
    assert allowed.fit_within(room) == (max(fitting) if fitting else None)
