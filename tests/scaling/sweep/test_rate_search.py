import json
import math

import pytest

from trainrig import config
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.sweep.rate_search import (
    ASHA,
    RateBatchPair,
    RateSearch,
    TriedPair,
    find_best_pair,
    list_pairs,
    list_rungs,
    name_drawn_pair,
    parse_pair,
    read_search_result,
    write_search_result,
)
from trainrig.scaling.sweep.trial_process import choose_pair

SEARCH = RateSearch(
    parameters=1e4, tokens=1e5, rate_factors=(2.0, 0.5, 1.0), batch_factors=(1.0, 0.5)
)


def test_a_grid_tries_each_rate_with_each_batch():
    assert len(list_pairs(SEARCH)) == 6 and RateBatchPair(0.5, 1.0) in list_pairs(SEARCH)
    for pair in list_pairs(RateSearch(parameters=1e4, tokens=1e5, rate_factors=(1e-7, 1 / 3, 3e8))):
        assert parse_pair(pair.name) == pair
    assert name_drawn_pair(SEARCH, {"rate": 1 / 3, "batch": 2 / 3}) == RateBatchPair(
        0.333333, 0.666667
    )


@pytest.mark.parametrize(
    ("scheduler", "steps", "expected"),
    [
        (None, 100, (100,)),
        (ASHA(), 100, (25, 50, 100)),
        (ASHA(first=0.1, keep=3), 100, (10, 30, 90, 100)),
        (ASHA(first=0.9), 10, (9, 10)),
        (ASHA(first=0.3), 1, (1,)),
    ],
)
def test_rungs_are_multiples_of_the_first_and_the_end(scheduler, steps, expected):
    assert list_rungs(scheduler, steps) == expected


def test_the_best_is_chosen_among_finished_trials(tmp_path):
    tried = [
        TriedPair(RateBatchPair(0.5, 1.0), 3.0, 100, whole=True),
        TriedPair(RateBatchPair(1.0, 1.0), 2.9, 100, whole=True),
        # This pair stopped early, so it was never compared at full length.
        TriedPair(RateBatchPair(2.0, 1.0), 2.5, 50, whole=False),
        TriedPair(RateBatchPair(4.0, 1.0), math.nan, 10, whole=True),
    ]
    assert find_best_pair(tried) == RateBatchPair(1.0, 1.0)
    assert find_best_pair(tried[2:]) is None
    write_search_result(str(tmp_path), SEARCH, RateBatchPair(2.0, 1.0), tried)
    assert read_search_result(str(tmp_path)) == RateBatchPair(2.0, 1.0)
    found = json.loads((tmp_path / "search.json").read_text())
    assert found["at_an_edge"] == ["rate", "batch"]
    assert [pair["loss"] for pair in found["tried"]] == [3.0, 2.9, 2.5, None]
    assert read_search_result(str(tmp_path / "other")) is None


def test_a_search_in_which_all_diverged_says_so(tmp_path):
    class Swept:
        output = str(tmp_path)

    with pytest.raises(DataError, match=r"all 1 pairs .* lower search\.rate_factors"):
        choose_pair(Swept(), [TriedPair(RateBatchPair(4.0, 1.0), math.nan, 10, whole=False)])


def test_a_search_among_one_is_refused():
    data = {"parameters": 1e4, "tokens": 1e5, "rate_factors": [1.0]}
    with pytest.raises(ConfigError, match="leave nothing to search"):
        config.build(RateSearch, data, "sweep.toml")
