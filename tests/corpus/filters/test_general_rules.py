import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import config
from trainrig.corpus.curation_settings import Curation
from trainrig.corpus.filters.general_rules import Score
from trainrig.corpus.limits import PercentileThreshold
from trainrig.errors import ConfigError

COLUMNS = {
    "quality": np.array([0.1, 0.9, 0.5, 0.7, np.nan]),
    "language": np.array(["en", "en", "de", "de", "fr"]),
}


def broken(score: Score, columns: dict[str, np.ndarray] = COLUMNS) -> list[bool]:
    (limit,) = score.iterate_limits()
    if isinstance(limit, PercentileThreshold):
        limit = limit.bind(limit.resolve(columns))
    return limit.mark_broken(columns).tolist()


def test_bounds_by_value() -> None:
    assert broken(Score(signal="quality", least=0.5)) == [True, False, False, False, False]
    assert broken(Score(signal="quality", most=0.5)) == [False, True, False, True, False]
    only = Score(signal="quality", least=0.6, languages=("de",))
    assert broken(only) == [False, False, True, False, False]


def test_the_best_share_stays() -> None:
    half = Score(signal="quality", keep_highest=0.5)
    assert broken(half) == [True, False, True, False, False]
    lowest = Score(signal="quality", keep_lowest=0.25)
    assert broken(lowest) == [False, True, True, True, False]


def test_the_best_share_of_each_language_stays() -> None:
    half = Score(signal="quality", keep_highest=0.5, by_language=True)
    assert broken(half) == [True, False, True, False, False]
    lowest = Score(signal="quality", keep_lowest=0.5, by_language=True)
    assert broken(lowest) == [False, True, False, True, False]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_the_wanted_number_and_ties_are_kept(values: list[int], share: float) -> None:
    column = np.array(values, float)
    columns = {"quality": column, "language": np.full(len(values), "en")}
    stays = ~np.array(broken(Score(signal="quality", keep_highest=share), columns))
    wanted = max(1, round(share * len(values)))
    assert stays.sum() >= wanted
    assert (column > column[stays].min()).sum() < wanted  # too few without the ties
    assert column[stays].min() > column[~stays].max() if (~stays).any() else True


def test_nothing_at_all_has_no_cut() -> None:
    nothing = {"quality": np.empty(0), "language": np.empty(0, np.str_)}
    assert broken(Score(signal="quality", keep_highest=0.5), nothing) == []
    assert broken(Score(signal="quality", keep_highest=0.5, by_language=True), nothing) == []


def test_a_cut_that_was_not_placed_cannot_decide() -> None:
    (limit,) = Score(signal="quality", keep_highest=0.5).iterate_limits()
    with pytest.raises(ValueError, match="thresholds are not bound"):
        limit.mark_broken(COLUMNS)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ({"signal": "words"}, r"least, most, keep_highest.*keep_lowest is set"),
        ({"signal": "words", "least": 3.0, "most": 2.0}, "no value is at least 3.0 and at most 2"),
        (
            {"signal": "words", "most": 2.0, "by_language": True},
            "by_language applies only to keep_high",
        ),
        ({"signal": "words", "keep_highest": 1.5}, r"keep_highest: .*less than 1"),
        ({"signal": "wordz", "most": 2.0}, r"'wordz', but source .* did you mean 'words'\?"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(score: dict[str, object], message: str) -> None:
    source = {"name": "web", "paths": ["a"], "filters": [{"kind": "Score", **score}]}
    data = {"stage": "curate", "output": "out", "sources": [source]}
    with pytest.raises(ConfigError, match=message):
        config.build(Curation, data, "run.toml")
