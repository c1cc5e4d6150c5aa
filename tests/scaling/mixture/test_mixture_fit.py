"""Fits of mixtures, from two CSV files to a run file that pretrain accepts, and errors."""

import csv
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from support.shards import write_shard

from trainrig import cli, config
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.mixture.mixture_fit import MixtureFit
from trainrig.scaling.mixture.mixture_page import write_mixture
from trainrig.scaling.mixture.mixture_proposal import find_warnings
from trainrig.scaling.mixture.mixture_runs import MixtureRuns
from trainrig.scaling.mixture.mixture_settings import MixtureSearch
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary
from trainrig.train.run_file.run_files import Pretraining

QUICK = MixtureSearch(candidates=10_000, finalists=100, draws=40)
RUN = """
stage = "pretrain"
tokens = "tokens"
output = "model"
[model]
layers = 1
channels = 32
heads = 4
positions = 48
[batches]
sequence_length = 32
global_batch = 8
micro_batch = 4
[training]
steps = 10
[training.optimizer]
kind = "AdamW"
lr = 1e-3
"""


def write(path: Path, header: list[str], rows: list[list]) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.ones(3), 30)
    losses = np.stack([3 - 0.5 * np.log(shares[:, i] + 0.01) for i in (0, 1)], axis=1)
    losses += generator.normal(0, 0.01, losses.shape)
    mixtures = write(
        folder / "mixtures.csv",
        ["run", "web", "code", "books"],
        [[i, *map(str, row)] for i, row in enumerate(shares)],
    )
    measured = write(
        folder / "losses.csv",
        ["run", "forum", "software"],
        [[i, *map(str, row)] for i, row in reversed(list(enumerate(losses)))],
    )
    return mixtures, measured


def test_rows_are_joined_by_the_runs_name_whatever_their_order(tables):
    runs = MixtureRuns.read(*tables)
    assert (runs.sources, runs.targets, len(runs)) == (
        ("web", "code", "books"),
        ("forum", "software"),
        30,
    )
    assert runs.losses[:, 0] == pytest.approx(3 - 0.5 * np.log(runs.shares[:, 0] + 0.01), abs=0.05)


@pytest.mark.slow
def test_the_record_the_section_the_run_file_and_the_page_agree(tables, tmp_path):
    run = tmp_path / "run.toml"
    run.write_text(RUN)
    settings = MixtureFit(
        mixtures=tables[0],
        losses=tables[1],
        held_out_mixtures=tables[0],
        held_out_losses=tables[1],
        run=str(run),
        search=QUICK,
    )
    out = tmp_path / "out"
    record = write_mixture(settings, str(out))
    weights = {share.source: share.weight for share in record.weights}
    assert sum(weights.values()) == pytest.approx(1, abs=1e-9)
    assert weights["books"] < min(weights["web"], weights["code"])
    assert tomllib.loads((out / "mixture.toml").read_text())["batches"]["weights"] == weights
    made = config.load(Pretraining, str(out / "pretrain.toml"))
    assert made.batches.weights == weights
    assert made.training == config.load(Pretraining, str(run)).training
    assert json.loads((out / "mixture.json").read_text())["loss"] == record.loss
    page = (out / "report.html").read_text()
    assert f"{record.loss:.4f} nats per token" in page
    assert page.count("<svg") == 2
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write_mixture(settings, str(out))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def fit_held_out(tables, tmp_path, change) -> MixtureFit:
    """Return a fit that is evaluated on runs whose losses are the fitted ones, changed."""
    rows = list(csv.reader(Path(tables[1]).read_text().splitlines()))
    changed = [
        [row[0], *(str(change(i, float(x))) for x in row[1:])] for i, row in enumerate(rows[1:])
    ]
    losses = write(tmp_path / "held.csv", rows[0], changed)
    return MixtureFit(
        mixtures=tables[0],
        losses=tables[1],
        held_out_mixtures=tables[0],
        held_out_losses=losses,
        search=QUICK,
    )


@pytest.mark.slow
def test_an_error_that_predicts_nothing_is_no_done(tables, tmp_path, capsys):
    """Losses of all runs are 2.5 nats off, as if of another model size: only the order is right."""
    settings = fit_held_out(tables, tmp_path, lambda i, loss: loss - 2.5)
    record = write_mixture(settings, str(tmp_path / "out"))
    score = next(one for one in record.scores if "held-out" in one.judged_on)
    assert score.rank_correlation > 0.98
    assert score.error == pytest.approx(2.5, abs=0.01)
    assert score.shift == pytest.approx(2.5, abs=0.01)
    assert score.baseline_error == pytest.approx(2.5, abs=0.1)
    [said] = [one for one in record.warnings if "Losses are not predicted" in one]
    assert "above what was measured: check whether the runs differ in model size" in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert '<span class="state">warning</span>' in page and "Losses are not predicted" in page
    noise = np.random.default_rng(5).normal(4, 1, 30)
    luck = write_mixture(
        fit_held_out(tables, tmp_path, lambda i, _: noise[i]), str(tmp_path / "luck")
    )
    assert any("Do not train on this mixture" in one for one in luck.warnings)
    good = write_mixture(
        fit_held_out(tables, tmp_path, lambda i, loss: loss), str(tmp_path / "good")
    )
    assert not any("not predicted" in one for one in good.warnings)


def test_few_runs_of_many_sources_have_a_warning(tables, tmp_path):
    record = write_mixture(
        MixtureFit(mixtures=tables[0], losses=tables[1], search=QUICK), str(tmp_path / "out")
    )
    for runs, warned in ((8 * 3, False), (8 * 3 - 1, True)):
        few = record.model_copy(update={"runs": runs, "weights": record.weights[:3]})
        warnings = list(find_warnings(few))
        assert any("below about 24 runs" in warning for warning in warnings) == warned


@pytest.mark.slow
def test_terminal_object_and_page_say_the_same_figures(tables, tmp_path, capsys):
    out = tmp_path / "m"
    words = ["mixture", *tables, "--out", str(out), "--candidates", "10000"]
    shown = []
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit):
            cli.main([*words, *more])
        shown.append(capsys.readouterr().out)
    record = json.loads(shown[1])
    page = (out / "report.html").read_text()
    figures = [f"{record[name]:.4f}" for name in ("loss", "gain")]
    for name in ("loss_interval", "gain_interval"):
        figures.append(f"[{record[name]['low']:.4f}, {record[name]['high']:.4f}]")
    for score in record["scores"]:
        figures += [
            f"{score[name]:.4f}" for name in ("rank_correlation", "error", "baseline_error")
        ]
    figures += [f"{weight:.4f}" for weight in record["weights"].values()]
    for figure in figures:
        assert figure in shown[0], figure
        assert figure in page, figure
    assert record["loss_interval"]["low"] <= record["loss"] <= record["loss_interval"]["high"]


def test_a_run_file_of_tokens_with_other_sources_is_refused_before_anything_is_written(
    tables, tmp_path
):
    tokens = tmp_path / "tokens"
    ids = np.array([1, 0])
    write_shard(
        str(tokens / "train"),
        "a",
        ShardVocabulary(300, "f"),
        [EncodedDocument(s, s, "", ids, 1, "f", 0) for s in ("web", "wiki")],
    )
    run = tmp_path / "run.toml"
    run.write_text(re.sub('tokens = ".*"', f'tokens = "{tokens}"', RUN))
    settings = MixtureFit(mixtures=tables[0], losses=tables[1], run=str(run), search=QUICK)
    with pytest.raises(ConfigError) as refused:
        write_mixture(settings, str(tmp_path / "out"))
    assert str(refused.value).startswith(
        f"{run}: {tokens} has the sources web, wiki, but {tables[0]} has shares of books, code, web"
    )
    assert not (tmp_path / "out").exists()


def test_the_command_prints_one_object(tables, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(
            ["mixture", *tables, "--target", "forum", "--out", str(tmp_path / "m"), "--json",
             "--candidates", "10000", "--at-most", "web=0.4"]
        )  # fmt: skip
    shown = capsys.readouterr()
    assert ended.value.code == 0, shown.err
    printed = json.loads(shown.out)
    assert printed["targets"] == ["forum"]
    assert printed["weights"]["web"] == pytest.approx(0.4, abs=0.02)
    assert printed["record"] == str(tmp_path / "m" / "mixture.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": ("forms",)}, r"no target 'forms'.*'forum'"),
        ({"held_out_mixtures": "x.csv"}, "give both their mixtures"),
        ({"run": "missing.toml"}, r"missing.toml: no such"),
        ({"losses": "missing.csv"}, "missing.csv: no such file"),
    ],
)
def test_invalid_input_is_a_one_line_error(tables, tmp_path, changes, message):
    given = {"mixtures": tables[0], "losses": tables[1], "search": QUICK} | changes
    with pytest.raises((ConfigError, DataError), match=message):
        write_mixture(MixtureFit(**given), str(tmp_path))


LOSSES = ["run", "forum"], [["a", 3.0], ["b", 3.1]]


@pytest.mark.parametrize(
    ("mixtures", "losses", "message"),
    [
        (
            (["run", "web", "code"], [["a", 0.5, 0.2]]),
            LOSSES,
            r"2.*sum to 0.7, not to 1",
        ),
        ((["run", "web", "code"], [["a", 1.5, -0.5]]), LOSSES, ":2: a share is below 0"),
        ((["run", "web"], [["a", 1], ["a", 1]]), LOSSES, ":3: a second line of run 'a'"),
        ((["run", "web"], [["c", 1]]), LOSSES, "no complete line"),
        ((["run"], [["a"]]), LOSSES, "only one column; the first names the run"),
        ((["id", "web"], [["a", 1]]), LOSSES, r"column is 'run'.*'id'"),
        ((["run", "web"], [["a", "x"]]), LOSSES, "web should be a number, found 'x'"),
    ],
)
def test_tables_that_are_no_runs_are_refused(tmp_path, mixtures, losses, message):
    paths = write(tmp_path / "m.csv", *mixtures), write(tmp_path / "l.csv", *losses)
    with pytest.raises(DataError, match=message):
        MixtureRuns.read(*paths)


def test_a_run_without_a_loss_is_left_out_and_counted(tmp_path):
    mixtures = write(tmp_path / "m.csv", ["run", "web"], [["a", 1], ["b", 1], ["c", 1]])
    losses = write(tmp_path / "l.csv", ["run", "x"], [["a", 3.0], ["b", ""], ["d", 2.0]])
    runs = MixtureRuns.read(mixtures, losses)
    assert (len(runs), runs.left_out) == (1, 3)
    with pytest.raises(DataError, match=r"1 runs of 1 sources.*4 or"):
        runs.refuse_too_few(mixtures)
