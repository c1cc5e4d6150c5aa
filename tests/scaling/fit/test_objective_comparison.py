"""Comparison of objectives on equal compute: known advantages are recovered, not losses."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from trainrig.errors import ConfigError, DataError
from trainrig.objectives.objective_kinds import (
    CausalLM,
    MaskedLM,
    MixtureOfObjectives,
    SpanCorruption,
)
from trainrig.scaling.fit.fit_verb import Tables, fit
from trainrig.scaling.fit.law_fit import Fitted, LawFit, fit_law
from trainrig.scaling.fit.objective_comparison import (
    COMPUTES,
    compare_objectives,
    describe_objectives,
    find_best_division,
    interpolate_token_flops,
)
from trainrig.scaling.laws.law import TaskLaw, read_law
from trainrig.scaling.laws.law_formats import (
    NEXT_TOKEN,
    name_objective,
    parse_objective,
    serialise_objective,
)
from trainrig.scaling.laws.law_forms import Parametric, TaskForm
from trainrig.scaling.laws.runs_table import RunsTable, join_tables, read_parquet
from trainrig.scaling.regression.bootstrap import Bootstrap

CAUSAL = Parametric(E=1.8, A=400, B=1600, alpha=0.34, beta=0.36)
SPANS = Parametric(E=1.1, A=250, B=2400, alpha=0.30, beta=0.38)
WRITTEN = serialise_objective(SpanCorruption())
FEW = LawFit(form="Parametric", bootstrap=Bootstrap(draws=20))


def make_table(
    law: Parametric, objective: str = NEXT_TOKEN, share: float = 1.0, tokenizer: str = "t"
) -> RunsTable:
    """Return runs on `law`, whose tokens cost `share` of 6N and a part that grows less than N."""
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 6)))
    loss = law.compute_loss(n, d) * np.exp(0.002 * np.random.default_rng(0).normal(size=n.size))
    flops = 6 * (share * n + 20 * n**0.7) * d
    return RunsTable.of(
        parameters=n, tokens=d, loss=loss, flops=flops, tokenizer=tokenizer, objective=objective
    )


def test_the_optimum_at_one_exact_compute_equals_a_search() -> None:
    runs = make_table(SPANS, WRITTEN, 0.6)

    def loss(log_n: float) -> float:
        n = np.exp(log_n)
        flops = np.exp(np.interp(log_n, np.log(sizes), np.log(per_token)))
        return float(SPANS.compute_loss(n, 1e19 / flops))

    sizes = np.unique(runs.parameters)
    per_token = 6 * (0.6 * sizes + 20 * sizes**0.7)
    np.testing.assert_allclose(interpolate_token_flops(runs, sizes), per_token, rtol=1e-12)
    found = find_best_division(SPANS, runs, 1e19)
    searched = minimize_scalar(loss, bounds=(np.log(1e7), np.log(1e9)), method="bounded")
    assert found.loss == pytest.approx(searched.fun, rel=1e-6)
    assert found.tokens * float(interpolate_token_flops(runs, np.array([found.parameters]))[0]) == (
        pytest.approx(1e19)
    )
    assert not found.at_an_end
    assert find_best_division(SPANS, runs, 1e26).at_an_end


@pytest.fixture(scope="module")
def fits() -> list[Fitted]:
    """Return fits of one law by two objectives, the second of which takes half of the compute."""
    return [
        fit_law(make_table(CAUSAL), FEW, "causal"),
        fit_law(make_table(CAUSAL, WRITTEN, 0.5), FEW, "spans"),
    ]


@pytest.mark.slow
def test_each_has_the_law_that_was_put_in_and_cheaper_tokens_allow_for_more(
    fits: list[Fitted],
) -> None:
    found = compare_objectives(fits)
    for objective in found.objectives:
        assert objective.form.alpha == pytest.approx(0.34, abs=0.03)
        assert objective.compute_to_halve == pytest.approx(2 ** (1 / 0.34 + 1 / 0.36), rel=0.25)
        assert objective.compute_to_halve_interval is not None
    causal, spans = found.objectives
    assert (causal.objective, spans.objective) == (NEXT_TOKEN, WRITTEN)
    for one, other in zip(causal.optima, spans.optima, strict=True):
        assert one.flops == other.flops  # equal compute, of which a token of `two` takes less
        assert other.parameters * other.tokens > 1.3 * one.parameters * one.tokens
        assert one.parameters_interval is not None
    said = "\n".join(describe_objectives(found))
    assert "Losses are not, because the targets differ" in said
    assert "SpanCorruption, 36 runs" in said


@pytest.mark.slow
def test_tables_that_do_not_compare_are_refused(fits: list[Fitted]) -> None:
    mixed = join_tables([make_table(CAUSAL), make_table(SPANS, WRITTEN)])
    with pytest.raises(DataError, match=r"trained for 2 objectives .*CausalLM.*SpanCorruption"):
        fit_law(mixed, FEW, "both")
    causal, spans = fits
    other = replace(spans, law=spans.law.model_copy(update={"tokenizer": "u"}))
    with pytest.raises(DataError, match="2 tokenizers"):
        compare_objectives([causal, other])
    far = replace(spans, runs=replace(spans.runs, flops=spans.runs.flops * 1e9))
    with pytest.raises(DataError, match="share no compute"):
        compare_objectives([causal, far])


def test_growth_is_that_of_optima_within_the_sizes() -> None:
    """At small budgets the best size is the smallest size of the sweep, which does not grow."""
    runs = make_table(CAUSAL)
    kept = runs.select(runs.parameters > 5e7)
    fitted = fit_law(kept, FEW, "large")
    (law,) = compare_objectives([fitted]).objectives
    form = law.form
    assert isinstance(form, Parametric)
    computes = np.geomspace(float(kept.flops.min()), float(kept.flops.max()), COMPUTES)
    best = [find_best_division(form, kept, flops) for flops in computes]
    inside = [optimum for optimum in best if not optimum.at_an_end]
    assert 3 <= len(inside) < len(best) - 2
    rise = np.log(inside[-1].parameters / inside[0].parameters)
    assert law.parameters_exponent == pytest.approx(
        rise / np.log(inside[-1].flops / inside[0].flops), abs=0.05
    )


TASK = TaskForm(chance=0.25, unit=1e19, E=0.3, A=0.5, alpha=0.2, middle=0.8, width=0.1)


def test_a_task_is_scored_at_the_6nd_of_the_best_run_of_each(fits: list[Fitted]) -> None:
    """Task laws are functions of 6ND, not of the exact compute used to compare objectives."""
    task = TaskLaw(task="riddles", form=TASK, estimates={}, runs=36, best_score=0.5)
    asked = [replace(f, law=f.law.model_copy(update={"tasks": (task,)})) for f in fits]
    found = compare_objectives(asked)
    assert len(found.tasks) == 2
    for score, objective in zip(found.tasks, found.objectives, strict=True):
        best = objective.optima[-1]
        by_six = 6 * best.parameters * best.tokens
        assert score.flops == best.flops != pytest.approx(by_six, rel=0.02)
        assert score.flops_6nd == pytest.approx(by_six)
        assert score.score == pytest.approx(float(TASK.compute_score([by_six])[0]))


def test_a_size_whose_runs_differ_in_operations_costs_the_mean_of_its_tokens() -> None:
    runs = RunsTable.of(
        parameters=np.array([1.0, 1.0, 2.0]),
        tokens=np.array([10.0, 30.0, 10.0]),
        loss=np.ones(3),
        flops=np.array([100.0, 180.0, 200.0]),
        tokenizer="t",
    )
    np.testing.assert_allclose(interpolate_token_flops(runs, np.array([1.0, 2.0])), [7.0, 20.0])


def test_one_table_of_recipes_for_several_objectives_is_refused_by_name(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.parquet")
    named = (("web", NEXT_TOKEN), ("books", WRITTEN))
    parts = [(name, make_table(CAUSAL, objective)) for name, objective in named]
    join_tables([replace(runs, recipe=np.full(len(runs), name)) for name, runs in parts]).write(
        path
    )
    with pytest.raises(DataError) as refused:
        fit(Tables((path,), {}, recipes=("web", "books")), FEW, None, False)
    assert f"{path}: its recipes are trained for 2 objectives (CausalLM, SpanCorruption)" in str(
        refused.value
    )


@pytest.mark.slow
def test_the_verb_writes_a_law_of_each_and_a_page(tmp_path: Path) -> None:
    paths = []
    for name, runs in (("causal", make_table(CAUSAL)), ("spans", make_table(SPANS, WRITTEN, 0.6))):
        paths.append(str(tmp_path / name / "sweep" / "runs.parquet"))
        runs.write(paths[-1])
    assert set(read_parquet(paths[1]).objective) == {WRITTEN}
    with pytest.raises(ConfigError, match="--share: the tables"):
        fit(Tables(tuple(paths), {}, share="nothing"), FEW, None, False)
    out = tmp_path / "compared"
    said = json.loads(fit(Tables(tuple(paths), {}), FEW, str(out), True))
    assert [objective["name"] for objective in said["objectives"]] == [
        "causal-sweep",
        "spans-sweep",
    ]
    assert read_law(str(out / "causal-sweep" / "law.json")).objective == NEXT_TOKEN
    assert read_law(str(out / "spans-sweep" / "law.json")).objective == WRITTEN
    assert json.loads((out / "objectives.json").read_text())["flops"] == said["flops"]
    page = (out / "report.html").read_text()
    plan = f"trainrig plan {out}/spans-sweep/law.json --flops"
    for words in (
        "parameters, N*", "tokens of text, D*", "Losses are not, because the targets differ", plan
    ):  # fmt: skip
        assert words in page


def test_objectives_are_written_and_read_back() -> None:
    member = {"objective": {"kind": "CausalLM"}, "name": "next"}
    mixture = MixtureOfObjectives.model_validate(
        {"members": (member, {"objective": {"kind": "PrefixLM"}})}
    )
    for objective in (CausalLM(), CausalLM(z_loss=0.1), MaskedLM(rate=0.3), mixture):
        assert parse_objective(serialise_objective(objective)) == objective
    assert serialise_objective(CausalLM()) == NEXT_TOKEN
    assert name_objective(NEXT_TOKEN) == "CausalLM"
    assert name_objective(serialise_objective(MaskedLM(rate=0.3))) == "MaskedLM (rate 0.3)"
    assert name_objective(serialise_objective(mixture)) == "MixtureOfObjectives (members)"
    with pytest.raises(DataError, match="objective"):
        parse_objective('{"kind": "NoSuch"}')
