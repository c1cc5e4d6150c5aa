"""`predict`: the loss of a law at N and D, by hand, with its interval and its warnings."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from trainrig import cli
from trainrig.command_line import parse_quantity
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.laws.law import Law, write_law
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.published_laws import find_published_law
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.plan.loss_prediction import describe_prediction, predict_loss
from trainrig.scaling.plan.prediction_table import predict_table
from trainrig.scaling.regression.bootstrap import Bootstrap, bootstrap_form
from trainrig.scaling.regression.form_fits import fit_parametric
from trainrig.scaling.regression.minimise import Squares

TRUTH = Parametric(E=1.8, A=400, B=1600, alpha=0.34, beta=0.36)


@pytest.mark.parametrize(
    ("name", "parameters", "tokens", "by_hand"),
    [
        # 1.69 + 406.4 / 1e9^.34 + 410.7 / 2e10^.28 = 1.69 + .353960 + .536088
        ("hoffmann-rounded", 1e9, 2e10, 2.580048),
        # Chinchilla: 1.69 + 406.4 / 7e10^.34 + 410.7 / 1.4e12^.28 = 1.69 + .083488 + .163158
        ("hoffmann-rounded", 7e10, 1.4e12, 1.936645),
        ("kaplan", 1e8, 1e9, 3.015030),  # ((8.8e13/N)^(.076/.095) + 5.4e13/D)^.095
        ("kaplan", 1.75e11, 3e11, 1.732287),
    ],
)
def test_published_laws_give_what_a_hand_computes(
    name: str, parameters: float, tokens: float, by_hand: float
) -> None:
    found = predict_loss(find_published_law(name), parameters, tokens)
    assert found.loss == pytest.approx(by_hand, abs=1e-6)
    assert found.loss_interval is None
    assert found.no_interval == "the law has no draws"


def test_repeats_count_as_muennighoff_has_it() -> None:
    law = find_published_law("muennighoff")
    found = predict_loss(law, 2.81e9, 55e9, unique_tokens=14e9)
    assert found.loss == pytest.approx(2.37686, abs=2e-5)
    assert found.epochs == pytest.approx(55 / 14)
    assert predict_loss(law, 2.81e9, 55e9, epochs=55 / 14).loss == pytest.approx(found.loss)
    assert found.loss_if_new is not None and found.loss_if_new < found.loss
    # A law without repeated tokens borrows their decay, with a warning; Kaplan's cannot.
    borrowed = predict_loss(find_published_law("besiroglu"), 1e9, 1e11, epochs=10)
    assert any("fitted without repeats" in one for one in borrowed.warnings)
    with pytest.raises(ConfigError, match=r"Kaplan law cannot tell.*--epochs"):
        predict_loss(find_published_law("kaplan"), 1e9, 1e11, epochs=2)


def test_extrapolation_is_reported_with_its_factor() -> None:
    law = find_published_law("besiroglu")
    assert predict_loss(law, 1e9, 20e9).warnings == ()
    beyond = "\n".join(predict_loss(law, 1.62e11, 20e9).warnings)
    assert "Extrapolated: parameters, 1.62e+11, 10 times the greatest of the law's runs" in beyond
    many = predict_loss(law, 1e9, 100e9, epochs=200).warnings
    assert any("Extrapolated: 200 epochs" in one for one in many)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Predict the loss at ten times the compute of the largest run, of 40 synthetic sweeps."""
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 6)))
    truth = float(TRUTH.compute_loss(3e9, 3e11))
    held = 0
    for seed in range(40):
        loss = TRUTH.compute_loss(n, d) * np.exp(
            0.003 * np.random.default_rng(seed).normal(size=n.size)
        )
        runs = RunsTable.of(parameters=n, tokens=d, loss=loss)
        fit = fit_parametric(runs, Squares(), exponents=(0.35,), floors=(0.5, 0.8))
        draws = bootstrap_form(fit, Bootstrap(draws=100, seed=seed)).forms
        law = Law(
            name="made", form=fit.form, draws=draws, parameters_count="total", tokenizer="bytes"
        )
        found = predict_loss(law, 3e9, 3e11)
        assert found.loss_interval is not None and found.loss_interval.contains(found.loss)
        held += found.loss_interval.contains(truth)
    assert 34 <= held <= 40  # 38 expected; 34 or more of 40 in 96% of such experiments


def test_numbers_are_read_as_they_are_written() -> None:
    assert [parse_quantity(text) for text in ("1e9", "1.3B", "300M", "2t", "7k", "1,000")] == [
        1e9, 1.3e9, 3e8, 2e12, 7e3, 1e3,
    ]  # fmt: skip
    for text in ("1Q", "", "1e999", "1.2.3", "B"):
        with pytest.raises(ConfigError, match="write it as 1e9, "):
            parse_quantity(text)


def run_and_read_output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["predict", *words])
    shown = capsys.readouterr()
    assert ended.value.code == (2 if shown.err else 0)
    return shown.out + shown.err


def test_the_terminal_and_the_object_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draws = tuple(TRUTH.with_constants({"E": 1.7 + 0.002 * k}) for k in range(101))
    law = Law(
        name="web", form=TRUTH, draws=draws, parameters_count="total", tokenizer="bytes", source="x"
    )
    path = str(tmp_path / "law.json")
    write_law(path, law)
    words = (path, "--params", "1.3B", "--tokens", "26e9", "--unique-tokens", "13B")
    found = json.loads(run_and_read_output(capsys, *words, "--json"))
    text = run_and_read_output(capsys, *words)
    assert found["epochs"] == 2
    low = found["loss_interval"]["low"]
    high = found["loss_interval"]["high"]
    assert low < found["loss"] < high
    assert f"loss {found['loss']:.4f} nats per token [{low:.4g}, {high:.4g}]" in text
    assert f"{found['loss_if_new']:.4f}" in text
    assert "1.3B parameters (total), 26B tokens, D/N 20, 2.028e+20 FLOPs by 6ND" in text
    assert all(warning in text for warning in found["warnings"])
    assert (
        list(describe_prediction(predict_loss(law, 1.3e9, 26e9, None, 13e9))) == text.splitlines()
    )


def test_a_table_has_the_predictions_of_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draws = tuple(TRUTH.with_constants({"E": 1.7 + 0.002 * k}) for k in range(101))
    law = Law(name="web", form=TRUTH, draws=draws, parameters_count="total", tokenizer="bytes")
    path, table = str(tmp_path / "law.json"), tmp_path / "sizes.csv"
    write_law(path, law)
    table.write_text("Params (M),D,unique\n1300,26B,13e9\n70,1.4B,\n")
    expected = [
        predict_loss(law, 1.3e9, 26e9, unique_tokens=13e9),
        predict_loss(law, 7e7, 1.4e9),
    ]
    printed = run_and_read_output(capsys, path, "--csv", str(table), "--json")
    assert json.loads(printed) == [one.model_dump(mode="json") for one in expected]
    rows = list(csv.DictReader(io.StringIO(run_and_read_output(capsys, path, "--csv", str(table)))))
    for row, one in zip(rows, expected, strict=True):
        assert one.loss_interval is not None
        wanted = one.loss, one.loss_interval.low, one.loss_interval.high, one.flops_6nd
        assert tuple(float(row[name]) for name in ("loss", "low", "high", "flops_6nd")) == wanted
    assert rows[1]["unique_tokens"] == ""
    table.write_text("params,flops\n1e9,1.2e20\n")
    assert predict_table(law, str(table)) == [predict_loss(law, 1e9, 2e10)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params,loss\n1e9,3\n", "no column for tokens"),
        ("tokens\n1e9\n", "no column for parameters"),
        ("params,tokens\n1e9,2e10\n1e9,\n", "sizes.csv:3: a row needs numbers"),
        ("params,tokens\n0,2e10\n", "sizes.csv:2: parameters 0: give a number above 0"),
        ("params,tokens,epochs\n1e9,2e10,.5\n", "sizes.csv:2: --epochs 0.5"),
        ("params,tokens\n", "no rows"),
    ],
)
def test_a_table_that_cannot_be_predicted_is_a_one_line_error(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text(text)
    shown = run_and_read_output(capsys, "hoffmann", "--csv", str(path))
    assert message in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("hofmann", "--params", "1B", "--tokens", "20B"), "did you mean 'hoffmann'"),
        (("hoffmann", "--params", "0", "--tokens", "20B"), "--params 0: give a number above 0"),
        (("hoffmann", "--params", "1B", "--tokens", "2Q"), "--tokens: '2Q' is not a number"),
        (
            ("hoffmann", "--params", "1B", "--tokens", "2B", "--epochs", "0.5"),
            "each token is seen at least once",
        ),
        (("hoffmann", "--params", "1B"), "give --params and --tokens, or a table"),
        (("hoffmann", "--csv", "x.csv", "--params", "1B"), "leave out --params"),
        (
            ("hoffmann", "--params=1B", "--tokens=2B", "--epochs=2", "--unique-tokens=1B"),
            "mean the same; give only one",
        ),
    ],
)
def test_an_impossible_size_is_a_one_line_error(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run_and_read_output(capsys, *words)
    assert message in text
    assert text.count("\n") == 1


def test_a_table_with_both_counts_is_read_as_the_law_counts(tmp_path: Path) -> None:
    path = tmp_path / "sizes.csv"
    law = find_published_law("hoffmann")
    path.write_text("non_embedding_parameters,total_parameters,tokens\n9e8,1e9,2e10\n")
    for counts, size in (("total", 1e9), ("non-embedding", 9e8)):
        counted = law.model_copy(update={"parameters_count": counts})
        assert predict_table(counted, str(path)) == [predict_loss(counted, size, 2e10)]


@pytest.mark.parametrize(
    ("counts", "header", "message"),
    [
        ("total", "non_embedding_parameters", "leaves out embeddings"),
        ("total", "params_no_embed", "leaves out embeddings"),
        ("non-embedding", "total_parameters", "counts embeddings"),
    ],
)
def test_a_table_with_other_parameters_than_the_laws_is_refused(
    counts: str, header: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text(f"{header},tokens\n1e9,2e10\n")
    law = find_published_law("hoffmann").model_copy(update={"parameters_count": counts})
    with pytest.raises(DataError, match=message):
        predict_table(law, str(path))


@pytest.mark.filterwarnings("error")
def test_a_size_of_zero_with_flops_is_refused_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text("params,flops\n0,1e20\n")
    with pytest.raises(DataError, match="above 0"):
        predict_table(find_published_law("hoffmann"), str(path))
