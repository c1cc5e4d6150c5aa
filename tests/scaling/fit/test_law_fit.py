"""The verb `fit`, from runs to law.json: same bytes on repeat, held-out largest runs, output."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from trainrig import cli
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.fit.fit_verb import Tables, build_settings, fit, parse_columns
from trainrig.scaling.fit.law_fit import Fitted, LawFit, fit_law, read_runs, write_fit
from trainrig.scaling.fit.law_summary import describe_law, find_grave_warnings
from trainrig.scaling.laws.law import read_law
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap
from trainrig.scaling.regression.foretelling import HoldOut, split_held_out
from trainrig.scaling.regression.form_choice import FITTERS, compute_criterion
from trainrig.scaling.regression.minimise import Huber

DATA = Path(os.environ.get("TRAINRIG_TEST_DATA", "")) / "scaling"
TRUTH = Parametric(E=1.8, A=400, B=1600, alpha=0.34, beta=0.36)
FEW = LawFit(form="Parametric", bootstrap=Bootstrap(draws=40), hold_out=HoldOut(share=0.2))


def make_table(noise: float = 0.003, seed: int = 2, **more: object) -> RunsTable:
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 6)))
    scatter = np.exp(noise * np.random.default_rng(seed).normal(size=n.size))
    return RunsTable.of(parameters=n, tokens=d, loss=TRUTH.compute_loss(n, d) * scatter, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep")
    make_table(tokenizer="sha256:7").write(str(path / "runs.parquet"))
    return path


@pytest.fixture(scope="module")
def fitted(folder: Path) -> Fitted:
    return fit_law(read_runs([str(folder)]), FEW, folder.name, source=str(folder))


def test_a_law_holds_what_judges_it(fitted: Fitted) -> None:
    law = fitted.law
    assert (law.tokenizer, law.parameters_count) == ("sha256:7", "non-embedding")
    assert len(law.draws) == 40
    assert law.ranges is not None and law.fit is not None and law.held_out is not None
    assert law.ranges.flops.greatest == pytest.approx(6e20)
    assert law.fit.gradient_norm < 1e-8
    assert law.held_out.mean_absolute_error < 0.01
    assert [one.name for one in law.approaches] == ["envelope", "isoflop", "parametric"]
    assert law.compared[0].form.kind == "Parametric"
    for name, true in TRUTH.constants.items():
        profile = law.estimates[name].profile
        assert profile is not None and profile.contains(true), name


def test_the_largest_runs_are_kept_back_with_those_that_tie() -> None:
    halves = split_held_out(make_table(), HoldOut(share=0.1))
    assert (len(halves.rest), len(halves.largest)) == (30, 6)  # 4 requested, 3 tie with the fourth
    assert halves.largest.flops_6nd.min() > halves.rest.flops_6nd.max()
    assert "6 runs of" in halves.rule
    by_size = split_held_out(make_table(), HoldOut(by="parameters", share=0.1))
    assert set(by_size.largest.parameters) == {1e9}
    same = RunsTable.of(parameters=1e6, tokens=1e8, loss=[3.0, 3.1])
    with pytest.raises(DataError, match=r"2 of 2 runs.*held out"):
        split_held_out(same, HoldOut())


def test_too_much_kept_back_is_refused_with_the_way_out() -> None:
    settings = FEW.model_copy(update={"hold_out": HoldOut(by="parameters", share=0.6)})
    with pytest.raises(DataError, match=r"held out to evaluate.*--hold-out, or none"):
        fit_law(make_table(), settings, "web")


def make_six_runs() -> RunsTable:
    """Return the minimum for the standard form: without the run of most compute there is no law."""
    n, d = (v.ravel() for v in np.meshgrid([1e7, 1e8, 1e9], [1e9, 1e10, 1e11]))
    kept = [0, 1, 3, 4, 6, 8]
    return RunsTable.of(parameters=n[kept], tokens=d[kept], loss=TRUTH.compute_loss(n, d)[kept])


@pytest.mark.slow
def test_runs_too_few_to_be_judged_make_a_law_that_says_so_unless_asked_to_be_judged() -> None:
    runs = make_six_runs()
    law = fit_law(runs, LawFit(bootstrap=Bootstrap(draws=20)), "web").law
    assert law.held_out is None and "held out to evaluate the law" in law.not_judged
    assert f"held out: no runs: {law.not_judged}" in list(describe_law(law))
    assert any(
        f"No runs were held out ({law.not_judged})" in said for said in find_grave_warnings(law)
    )
    asked = LawFit(bootstrap=Bootstrap(draws=20), hold_out=HoldOut())
    with pytest.raises(DataError, match=r"held out to evaluate.*none"):
        fit_law(runs, asked, "web")


@pytest.mark.slow
def test_runs_on_one_ray_give_the_loss_along_it_and_say_what_is_assumed() -> None:
    n = np.array([20e6, 40e6, 80e6, 160e6, 320e6, 640e6])
    loss = [4.05, 3.72, 3.44, 3.20, 3.00, 2.83]
    runs = RunsTable.of(parameters=n, tokens=20 * n, loss=loss)
    law = fit_law(runs, LawFit(bootstrap=Bootstrap(draws=30)), "ray").law
    assert float(law.form.compute_loss(640e6, 12.8e9)) == pytest.approx(2.83, rel=0.01)
    assert "all runs have D/N = 20" in law.assumed
    assert f"Assumed: {law.assumed}." in find_grave_warnings(law)
    best = law.form.compute_optimum(1e20)
    assert float(best.tokens_per_parameter) == pytest.approx(20)
    with pytest.raises(DataError, match="at one ratio D/N"):
        fit_law(runs, LawFit(form="Parametric"), "ray")


@pytest.mark.slow
def test_five_runs_are_fitted_by_a_form_that_they_bear() -> None:
    n = np.array([11e6, 79e6, 154e6, 411e6, 11e6])
    d = n * np.array([20, 20, 20, 20, 320])
    runs = RunsTable.of(parameters=n, tokens=d, loss=TRUTH.compute_loss(n, d))
    law = fit_law(runs, LawFit(bootstrap=Bootstrap(draws=30)), "few").law
    assert law.form.kind == "OverTraining"
    assert float(law.form.compute_loss(1.4e9, 28e9)) == pytest.approx(
        float(TRUTH.compute_loss(1.4e9, 28e9)), rel=0.05
    )


def test_nothing_kept_back_judges_nothing_and_runs_are_counted_and_named_as_asked() -> None:
    changes = {"hold_out": HoldOut(share=0), "counts": "total", "tokenizer": "bpe-1k"}
    counted = make_table(embedding_parameters=1e6)
    law = fit_law(counted, FEW.model_copy(update=changes), "web").law
    assert law.held_out is None
    assert {one.held_out_error for one in law.compared} == {None}
    assert (law.parameters_count, law.tokenizer) == ("total", "bpe-1k")
    assert law.ranges is not None and law.ranges.parameters.least == pytest.approx(1.1e7)


def test_the_criterion_prefers_the_form_that_the_losses_have() -> None:
    runs = make_table()
    fits = {kind: FITTERS[kind](runs, Huber()) for kind in ("Parametric", "Kaplan")}
    assert compute_criterion(fits["Parametric"]) < compute_criterion(fits["Kaplan"]) - 20


def test_runs_without_the_needed_facts_are_not_fitted() -> None:
    total, without, named = (
        FEW.model_copy(update=change)
        for change in ({"counts": "total"}, {"counts": "non-embedding"}, {"tokenizer": "bpe-1k"})
    )
    with pytest.raises(DataError, match="36 of 36 runs do not say"):
        fit_law(make_table(), total, "web")
    with pytest.raises(DataError, match="--counts total"):
        fit_law(make_table(embedding_parameters=1e6).count_embeddings(), without, "web")
    with pytest.raises(DataError, match="tokenized by 'other', not 'bpe-1k'"):
        fit_law(make_table(tokenizer="other"), named, "web")


# N, D and nats per token of web text, with a vocabulary of 512 (tests/chaos/test_sweep.py,
# 2026-11-22).
SMALL = """
29856 5555200 3.274105, 29856 11111424 3.208570, 29856 5555200 3.276024, 29856 11111424 3.206879
60144 2777088 3.160417, 60144 5556224 3.035467, 60144 11110400 2.946891, 120240 1388544 3.287259
120240 2777088 3.048158, 120240 5556224 2.896138, 238640 694272 3.483330, 238640 1388544 3.098604
238640 2777088 2.816698, 238640 5556224 2.657320
"""


@pytest.mark.slow
def test_where_no_irreducible_loss_is_seen_a_form_that_fits_is_taken() -> None:
    """Models so small that the parametric form would fit a negative irreducible loss."""
    rows = np.array([row.split() for row in SMALL.replace(",", "\n").split("\n") if row], float).T
    runs = RunsTable.of(parameters=rows[0], tokens=rows[1], loss=rows[2])
    with pytest.raises(DataError, match="none of 100 starts"):
        fit_law(runs, LawFit(form="Parametric", hold_out=HoldOut(share=0.0)), "tiny")
    law = fit_law(runs, LawFit(bootstrap=Bootstrap(draws=20)), "tiny").law
    assert law.form.kind != "Parametric"
    # The run of 498,528 parameters and 5,332,992 tokens had a loss of 2.566213.
    assert float(law.form.compute_loss(498_528, 5_332_992)) == pytest.approx(2.566213, rel=0.03)


def test_recipes_are_chosen_by_name(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.parquet")
    make_table(recipe=["web", "books"] * 18).write(path)
    assert set(read_runs([path], recipes=["web"]).recipe) == {"web"}
    with pytest.raises(DataError, match=r"no recipe 'book'.*'books'"):
        read_runs([path], recipes=["book"])


# --- the verb


def test_a_table_that_makes_no_law_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "params,tokens,loss\n" + "".join(f"{n},{20 * n},3\n" for n in range(10, 90, 10))
    )
    with pytest.raises(DataError, match=r"runs.csv.*8 runs.*ratio D/N = 20"):
        fit(Tables((str(path),), {}), LawFit(), None, as_json=False)


def test_options_become_settings() -> None:
    settings = build_settings({"delta": 0.0, "drop_highest": 5, "draws": 50, "form": None})
    assert settings.loss.kind == "Lad"
    assert (settings.exclusions.highest_losses, settings.bootstrap.draws) == (5, 50)
    assert build_settings({"delta": 0.01}).loss == Huber(delta=0.01)
    with pytest.raises(ConfigError, match=r"Parametrik.*did you mean 'Parametric'"):
        build_settings({"form": "Parametrik"})
    with pytest.raises(ConfigError, match="--column loss: write it as"):
        parse_columns(["loss"])
    assert parse_columns(["loss=a=b"]) == {"loss": "a=b"}


def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("params,tokens,perplexity\n1,2,3\n")
    for words in (["fit", str(path)], ["fit", str(tmp_path)], ["fit", str(path), "--draws", "2"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_the_output_shows_every_result(fitted: Fitted) -> None:
    text = "\n".join(describe_law(fitted.law))
    for words in (
        f"{fitted.law.name}: Parametric, losses in nats per token, tokenizer sha256:7",
        "by bootstrap",
        "starts agree, gradient norm",
        "envelope: ",
        "isoflop: ",
        "held out: the ",
        "within the interval",
        "forms, fitted to the same rows",
    ):
        assert words in text, words


def test_the_verb_prints_one_object_of_the_same_law_again(folder: Path, fitted: Fitted) -> None:
    printed = json.loads(fit(Tables((str(folder),), {}), FEW, None, as_json=True))
    assert printed.pop("written") == []
    assert printed == fitted.law.model_dump(mode="json", exclude={"draws"})


def test_a_law_comes_back_from_its_file_and_the_same_bytes_again(
    fitted: Fitted, tmp_path: Path
) -> None:
    one, two = (Path(write_fit(str(tmp_path / name), fitted)) for name in ("1", "2"))
    assert one.read_bytes() == two.read_bytes()
    assert read_law(str(one)) == fitted.law


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif("TRAINRIG_TEST_DATA" not in os.environ, reason="TRAINRIG_TEST_DATA")
def test_the_published_chinchilla_points_give_the_replications_law() -> None:
    runs = read_runs([str(DATA / "chinchilla_extracted.csv")])
    settings = build_settings({"drop_highest": 5, "draws": 20, "form": "Parametric"})
    law = fit_law(runs, settings, "chinchilla").law
    assert law.form.constants == pytest.approx(
        {"E": 1.81722, "A": 477.826, "B": 2143.417, "alpha": 0.34731, "beta": 0.36717}, rel=1e-4
    )
    assert law.fit is not None
    assert law.fit.objective == pytest.approx(0.0010182740178, rel=1e-4)
    exponents = {one.name: one.parameters_exponent for one in law.approaches}
    # Hoffmann et al., table 2: .50 by approach 1, .49 by approach 2, from all of their points.
    for name, published in (("envelope", 0.50), ("isoflop", 0.49)):
        found = exponents[name]
        assert found is not None and found.value == pytest.approx(published, abs=0.02)
