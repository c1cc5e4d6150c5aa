"""Screening: runs that are not fitted are listed with the rule that excludes them."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trainrig.errors import DataError
from trainrig.scaling.laws import runs_screening
from trainrig.scaling.laws.runs_files import read_table
from trainrig.scaling.laws.runs_screening import Exclusions, screen
from trainrig.scaling.laws.runs_table import RunsTable

DATA = Path(os.environ.get("TRAINRIG_TEST_DATA", "")) / "scaling"


def make_grid(sizes: int = 4, tokens: int = 4, **more: object) -> RunsTable:
    n, d = np.meshgrid(np.geomspace(1e6, 1e8, sizes), np.geomspace(1e8, 1e10, tokens))
    loss = 1.8 + 400 / n.ravel() ** 0.34 + 400 / d.ravel() ** 0.28
    return RunsTable.of(parameters=n.ravel(), tokens=d.ravel(), loss=loss, **more)  # type: ignore[arg-type]


def replace_loss(runs: RunsTable, row: int, loss: float) -> RunsTable:
    losses = runs.loss.copy()
    losses[row] = loss
    return replace(runs, loss=losses)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (np.nan, "its loss is nan, not a finite number"),
        (np.inf, "its loss is inf"),
        (-1.0, "its loss is -1, but must be above 0"),
        (
            9.0,
            "outlier (residual +154%): its loss is 9, above the loss of 'row 12'",
        ),
    ],
)
def test_a_run_without_a_usable_loss_is_left_out_and_listed(loss: float, reason: str) -> None:
    runs = make_grid()
    screened = screen(replace_loss(runs, 15, loss))
    assert len(screened.runs) == 15
    [left_out] = screened.left_out
    assert left_out.name == "row 16"
    assert reason in left_out.reason


def test_runs_that_stopped_or_diverged_are_left_out_and_points_along_the_way_kept_apart() -> None:
    state = ["end"] * 12 + ["along", "unfinished", "diverged", "failed"]
    screened = screen(make_grid(state=state))
    assert (len(screened.runs), len(screened.along)) == (12, 13)
    assert [one.name for one in screened.left_out] == ["row 14", "row 15", "row 16"]
    assert "stopped before its end" in screened.left_out[0].reason
    assert "its trial failed" in screened.left_out[2].reason


def test_a_run_worse_for_repeating_its_tokens_has_not_diverged() -> None:
    runs = replace_loss(make_grid(unique_tokens=1e7), 15, 9.0)
    assert len(screen(runs).runs) == 16


def test_an_outlier_is_no_divergence_unless_its_record_says_so_and_may_be_kept() -> None:
    runs = replace_loss(make_grid(), 15, 9.0)
    [left_out] = screen(runs).left_out
    assert "diverged" not in left_out.reason
    assert "--outliers keep" in left_out.reason
    assert screen(runs, Exclusions(outliers="keep")).left_out == ()
    state = ["end"] * 15 + ["diverged"]
    [given_up] = screen(replace(runs, state=np.array(state)), Exclusions(outliers="keep")).left_out
    assert given_up.reason == "it diverged"


def test_the_highest_losses_fall_by_name_and_only_when_asked() -> None:
    screened = screen(make_grid(), Exclusions(highest_losses=2))
    assert [one.name for one in screened.left_out] == ["row 1", "row 5"]
    assert screened.left_out[1].reason.endswith("is the 2nd highest")
    assert len(screen(make_grid()).left_out) == 0


def test_losses_above_a_bound_fall() -> None:
    runs = make_grid()
    bound = float(np.sort(runs.loss)[-3])
    assert len(screen(runs, Exclusions(above=bound)).left_out) == 2


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("unit", ["nats per token", "bits per byte"] * 8, "8 of 16 runs give their"),
        ("tokenizer", ["a", "b"] * 8, r"2 tokenizers \(a, b\)"),
        ("recipe", ["web", "books"] * 8, r"2 recipes \(web, books\), .*--recipe"),
    ],
)
def test_a_table_that_mixes_what_does_not_compare_is_refused(
    column: str, values: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        screen(make_grid(**{column: values}))


def test_a_table_of_which_nothing_is_left_says_why() -> None:
    with pytest.raises(DataError, match=r"16 runs.*row 1: its loss"):
        screen(replace(make_grid(), loss=np.full(16, np.nan)))


@pytest.mark.data
@pytest.mark.skipif("TRAINRIG_TEST_DATA" not in os.environ, reason="TRAINRIG_TEST_DATA")
@pytest.mark.parametrize(
    ("place", "ordinal"),
    [
        (1, ""),
        (2, "2nd "),
        (4, "4th "),
        (11, "11th "),
        (13, "13th "),
        (21, "21st "),
        (112, "112th "),
    ],
)
def test_places_are_written_as_ordinals(place: int, ordinal: str) -> None:
    assert runs_screening._format_ordinal(place) == ordinal


@pytest.mark.skipif("TRAINRIG_TEST_DATA" not in os.environ, reason="TRAINRIG_TEST_DATA")
def test_the_five_highest_losses_of_the_chinchilla_figure_leave_240() -> None:
    runs = read_table(str(DATA / "chinchilla_extracted.csv"))
    assert len(screen(runs).runs) == 245
    kept = screen(runs, Exclusions(highest_losses=5)).runs
    assert len(kept) == 240
    assert kept.loss.max() < np.sort(runs.loss)[-5]


@pytest.mark.data
@pytest.mark.skipif("TRAINRIG_TEST_DATA" not in os.environ, reason="TRAINRIG_TEST_DATA")
@pytest.mark.parametrize("name", ["datablations_lt4B", "gadre_small_runs", "olmo_ladder_190M_1B"])
def test_no_published_run_is_taken_for_diverged(name: str) -> None:
    runs = read_table(str(DATA / f"{name}.csv"))
    for recipe in np.unique(runs.recipe):
        assert screen(runs.select(runs.recipe == recipe)).left_out == ()
