"""Tables of runs: round trips to disk, and one-line errors for missing columns."""

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from trainrig.errors import DataError
from trainrig.scaling.laws.runs_columns import OTHER_UNITS, SYNONYMS
from trainrig.scaling.laws.runs_files import read_table
from trainrig.scaling.laws.runs_table import NUMBERS, TEXTS, RunsTable, join_tables

PUBLISHED = Path(os.environ.get("TRAINRIG_TEST_DATA", "")) / "scaling"
published = [
    pytest.mark.data,
    pytest.mark.skipif("TRAINRIG_TEST_DATA" not in os.environ, reason="TRAINRIG_TEST_DATA"),
]


def make_three_runs() -> RunsTable:
    return RunsTable.of(
        parameters=[1e6, 2e6, 4e6],
        tokens=[1e8, 1e8, 2e8],
        loss=[3.0, np.nan, 2.5],
        embedding_parameters=[1e5, np.nan, 3e5],
        tokenizer="sha256:12",
        losses={"web": [3.0, 2.0, 1.0], "code": [1.0, np.nan, 2.0]},
        counts="non-embedding",
    )


def test_missing_columns_are_derived_from_the_others() -> None:
    runs = make_three_runs()
    assert runs.flops.tolist() == runs.flops_6nd.tolist() == [6e14, 1.2e15, 4.8e15]
    assert runs.trial.tolist() == runs.name.tolist() == ["row 1", "row 2", "row 3"]
    assert set(runs.state) == {"end"}
    assert np.isnan(runs.seconds).all()


def test_a_table_comes_back_as_it_was_written_and_the_same_bytes_again(tmp_path: Path) -> None:
    runs = make_three_runs()
    first = tmp_path / "runs.parquet"
    second = tmp_path / "again.parquet"
    runs.write(str(first))
    back = read_table(str(tmp_path))
    for name in (*TEXTS, *NUMBERS):
        assert np.array_equal(
            getattr(back, name), getattr(runs, name), equal_nan=name in NUMBERS
        ), name
    for source, values in runs.losses.items():
        assert np.array_equal(back.losses[source], values, equal_nan=True)
    stored = pq.read_table(first)
    assert (stored["embedding_parameters"].null_count, stored["loss"].null_count) == (1, 0)
    back.write(str(second))
    assert first.read_bytes() == second.read_bytes()


def test_a_table_may_have_no_row(tmp_path: Path) -> None:
    """A sweep without a finished run gives an empty table: scalars repeat for no row."""
    none = RunsTable.of(parameters=[], tokens=[], loss=[], recipe="web", unique_tokens=1e9)
    none.write(str(tmp_path / "runs.parquet"))
    back = read_table(str(tmp_path))
    assert len(none) == len(back) == 0 and none.name.tolist() == back.recipe.tolist() == []
    assert len(RunsTable.of(parameters=1e6, tokens=1e8, loss=3.0)) == 1


def test_rows_are_selected_in_every_column() -> None:
    picked = make_three_runs().select(np.array([2, 0]))
    assert picked.parameters.tolist() == [4e6, 1e6]
    assert picked.losses["code"].tolist() == [2.0, 1.0]
    assert picked.name.tolist() == ["row 3", "row 1"]


def test_tables_are_joined_with_the_sources_of_either() -> None:
    other = RunsTable.of(parameters=1.0, tokens=1.0, loss=[1.0], losses={"web": [0.5]})
    joined = join_tables([make_three_runs(), other])
    assert len(joined) == 4
    assert joined.losses["web"][3] == 0.5
    assert np.isnan(joined.losses["code"][3])


def test_embeddings_are_counted_in_only_where_all_are_known() -> None:
    runs = make_three_runs()
    with pytest.raises(DataError, match="1 of 3 runs do not say"):
        runs.count_embeddings()
    total = runs.select(np.array([0, 2])).count_embeddings()
    assert total.parameters.tolist() == [1.1e6, 4.3e6]
    assert total.flops_6nd.tolist() == pytest.approx([6.6e14, 5.16e15])
    assert (total.counts, total.flops[0]) == ("total", 6e14)


def test_tables_that_count_differently_are_not_joined() -> None:
    total = make_three_runs().select(np.array([0])).count_embeddings()
    with pytest.raises(DataError, match="non-embedding"):
        join_tables([make_three_runs(), total])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("params,tokens,loss\n", "no rows"),
        ("params,tokens,loss\n1,2\n", ":2: 2 cells under 3 headers"),
        ("params,tokens,loss\n1,2,x\n", ":2: loss should be a number, found 'x'"),
        ("params,tokens,loss\n\n1,2,3\n\n1,2,x\n", ":5: loss should be a number, found 'x'"),
        ("params,tokens,loss\n\n1,2\n", ":3: 2 cells under 3 headers"),
        ("params,tokens,bpb\n1,2,3\n", "'bpb' has losses in bits per byte.*--bytes-per-token"),
        ("params,tokens,los\n1,2,3\n", "--column loss=HEADER, or give it a known name.*val_loss"),
        ("params,loss\n1,3\n", "tokens among params, loss"),
        ("N;D;loss\n1e7;2e8;4,05\n", ":2: loss should be a number, found '4,05'"),
    ],
)
def test_a_csv_that_is_no_table_of_runs_says_why(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as raised:
        read_table(str(path))
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_columns_are_found_by_synonym_or_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("N,C,web/loss,corpus\n10,6e3,3.5,web\n20,6e3,,web\n")
    with pytest.raises(DataError, match="no column for loss"):
        read_table(str(path))
    runs = read_table(str(path), {"loss": "web/loss"})
    assert runs.tokens.tolist() == [100.0, 50.0]
    assert runs.loss[0] == 3.5
    assert np.isnan(runs.loss[1])
    assert set(runs.recipe) == {"web"}
    with pytest.raises(DataError, match="did you mean 'web/loss'"):
        read_table(str(path), {"loss": "web/los"})
    with pytest.raises(DataError, match=r"no column 'los'.*'loss'"):
        read_table(str(path), {"los": "web/loss"})


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("N,D,val/loss\n1e7,2e8,4.5\n", 4.5),
        ("model,params,tokens,loss\na,10M,200M,4.5\n", 4.5),
        ("Model Size (M),Tokens (B),loss\n10,0.2,4.5\n", 4.5),
        ("Model Size (M),Tokens (B),loss\n10M,0.2B,4.5\n", 4.5),
        ('N,D,loss\n"10,000,000",2e8,4.5\n', 4.5),
        ("n_params\ttokens\tloss\n1e7\t2e8\t4.5\n", 4.5),
        ("N;D;Validation Loss\n10M;0.2B;4.5\n", 4.5),
        ("params,tokens,perplexity\n1e7,2e8,90\n", np.log(90)),
        ("params,tokens,bits_per_token\n1e7,2e8,6\n", 6 * np.log(2)),
        ("params,tokens,bpb\n1e7,2e8,1.5\n", 1.5 * np.log(2) * 4.4),
    ],
)
def test_tables_as_people_write_them_are_read(tmp_path: Path, text: str, loss: float) -> None:
    path = tmp_path / "runs.tsv"
    path.write_text(text)
    runs = read_table(str(path), bytes_per_token=4.4)
    assert (runs.parameters[0], runs.tokens[0]) == (1e7, 2e8)
    assert runs.loss[0] == pytest.approx(loss)


def test_the_page_of_laws_lists_every_accepted_header() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "laws.md").read_text()
    known = {*SYNONYMS, *OTHER_UNITS, *(name for names in SYNONYMS.values() for name in names)}
    assert {name for name in known if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("name", ["runs.parquet", "runs.csv", "sweep"])
def test_a_missing_table_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"{name}.*: no such"):
        read_table(str(tmp_path / name))


def test_a_file_of_another_kind_is_an_error_with_the_right_kind(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Runs\n")
    with pytest.raises(DataError, match=r"README.md: no table"):
        read_table(str(tmp_path / "README.md"))


def test_a_table_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "RUNS.CSV"
    path.write_text("params,tokens,loss\n1,2,3\n", encoding="utf-8-sig")
    assert read_table(str(path)).loss.tolist() == [3.0]
    path.write_text("params,tokens,loss\n1,2,3\n", encoding="utf-16")
    with pytest.raises(DataError, match=r"RUNS\.CSV: UTF-16.*first two"):
        read_table(str(path))


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs.parquet").write_text("loss\n")
    with pytest.raises(DataError, match="not Parquet"):
        read_table(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "rows", "counts", "recipes"),
    [
        pytest.param("chinchilla_extracted", 245, "total", 1, marks=published),
        pytest.param("datablations_lt4B", 165, "total", 1, marks=published),
        pytest.param("gadre_small_runs", 95, "total", 3, marks=published),
        pytest.param("olmo_ladder_190M_1B", 24, "non-embedding", 1, marks=published),
        pytest.param("porian_optimal_pairs", 177, "non-embedding", 15, marks=published),
    ],
)
def test_published_tables_are_known_by_their_headers(
    name: str, rows: int, counts: str, recipes: int
) -> None:
    runs = read_table(str(PUBLISHED / f"{name}.csv"))
    assert (len(runs), runs.counts, len(set(runs.recipe))) == (rows, counts, recipes)
    assert (runs.flops[~np.isnan(runs.parameters)] > 0).all()


@pytest.mark.data
@pytest.mark.skipif("TRAINRIG_TEST_DATA" not in os.environ, reason="TRAINRIG_TEST_DATA")
def test_chinchillas_tokens_follow_from_its_flops() -> None:
    runs = read_table(str(PUBLISHED / "chinchilla_extracted.csv"))
    assert runs.tokens == pytest.approx(runs.flops / (6 * runs.parameters))


CURVES = "run,params,tokens,loss\n" + "".join(
    f"{run},{10 + run}M,{tokens}B,{4 - run / 10 - tokens / 10}\n"
    for run in range(7)
    for tokens in (1, 2, 4)
)


def test_points_along_a_run_are_left_out_and_said_unless_the_table_calls_them_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "curves.csv"
    path.write_text(CURVES)
    runs = read_table(str(path))
    assert runs.tokens[runs.state == "end"].tolist() == [4e9] * 7
    assert set(runs.state[runs.tokens < 4e9]) == {"along"}
    (line,) = caplog.messages
    assert "14 of 21 rows are earlier points of a run" in line and "left out" in line
    caplog.clear()
    head, *rows = CURVES.splitlines()
    path.write_text("\n".join([f"{head},state", *(f"{row},end" for row in rows)]))
    assert set(read_table(str(path)).state) == {"end"}
    assert not caplog.messages


def test_points_along_a_few_runs_are_kept_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "few.csv"
    path.write_text("\n".join(CURVES.splitlines()[:10]))
    assert set(read_table(str(path)).state) == {"end"}
    assert "count as ends" in caplog.text and "only 3 rows" in caplog.text


def test_a_table_of_ends_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ends.csv"
    path.write_text("run,params,tokens,loss\na,1e7,1e9,3\nb,1e7,2e9,2.9\n")
    assert set(read_table(str(path)).state) == {"end"}
    assert not caplog.messages
