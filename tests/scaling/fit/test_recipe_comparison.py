"""Comparison of recipes: the interval of the compute multiplier holds the true value."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from trainrig.errors import ConfigError, DataError
from trainrig.scaling.fit.fit_verb import Tables, fit
from trainrig.scaling.fit.law_fit import LawFit
from trainrig.scaling.fit.recipe_comparison import (
    Comparison,
    RecipeFit,
    compare,
    describe_comparison,
)
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.regression.bootstrap import Bootstrap
from trainrig.scaling.regression.minimise import Squares

DATA = Path(os.environ.get("TRAINRIG_TEST_DATA", "")) / "scaling"
BASE = Parametric(E=1.8, A=400, B=1600, alpha=0.34, beta=0.36)
FEW = RecipeFit(bootstrap=Bootstrap(draws=60), loss=Squares())


def scale_compute(multiplier: float) -> Parametric:
    """Return BASE with `multiplier` times the compute: at the optimum L = E + k C^-g."""
    scale = multiplier ** -(BASE.alpha * BASE.beta / (BASE.alpha + BASE.beta))
    return BASE.with_constants({"A": BASE.A * scale, "B": BASE.B * scale})


def make_table(law: Parametric, seed: int, noise: float = 0.003, tokenizer: str = "") -> RunsTable:
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 1e11, 5)))
    scatter = np.exp(noise * np.random.default_rng(seed).normal(size=n.size))
    loss = law.compute_loss(n, d) * scatter
    return RunsTable.of(parameters=n, tokens=d, loss=loss, tokenizer=tokenizer)


def compare_recipes_at(multiplier: float, seed: int, settings: RecipeFit = FEW) -> Comparison:
    tables = {
        "web": make_table(BASE, seed),
        "filtered": make_table(scale_compute(multiplier), seed + 1_000),
    }
    return compare(tables, settings)


@pytest.mark.parametrize("share", ["exponents", "nothing"])
def test_the_multiplier_put_in_comes_out(share: str) -> None:
    settings = FEW.model_copy(update={"share": share, "flops": (1e19,)})
    [found] = compare_recipes_at(1.4, 0, settings).differences
    assert (found.recipe, found.flops, found.is_significant) == ("filtered", 1e19, True)
    assert found.multiplier is not None
    assert found.multiplier.value == pytest.approx(1.4, rel=0.05)
    truth = float(scale_compute(1.4).compute_optimum(1e19).loss - BASE.compute_optimum(1e19).loss)
    assert found.loss.value == pytest.approx(truth, abs=0.01)
    for estimate, true in ((found.multiplier, 1.4), (found.loss, truth)):
        assert estimate.bootstrap is not None and estimate.bootstrap.contains(true)


def test_a_recipe_does_not_differ_significantly_from_itself() -> None:
    found = compare_recipes_at(1.0, 3)
    assert not any(difference.is_significant for difference in found.differences)
    assert found.criterion_of_sharing < 4  # two constants fewer, which is the truth
    assert all("not significant" in line for line in list(describe_comparison(found))[3:])


def test_a_recipe_below_the_baselines_floor_is_worth_no_multiple() -> None:
    better = Parametric(E=1.0, A=400, B=1600, alpha=0.34, beta=0.36)
    tables = {"web": make_table(BASE, 0), "better": make_table(better, 1)}
    found = compare(tables, FEW.model_copy(update={"flops": (1e23,)}))
    assert found.differences[0].multiplier is None
    assert (
        "at 1e+23 FLOPs, better against web: web cannot reach this loss with any compute"
        in "\n".join(describe_comparison(found))
    )


def test_incomparable_recipes_are_rejected() -> None:
    with pytest.raises(DataError, match="a comparison needs two recipes"):
        compare({"web": make_table(BASE, 0)}, FEW)
    few = make_table(BASE, 0).select(np.arange(4))
    with pytest.raises(DataError, match="filtered: 4 runs with"):
        compare({"web": make_table(BASE, 0), "filtered": few}, FEW)
    with pytest.raises(DataError, match=r"2 tokenizers \(a, b\)"):
        compare(
            {"a": make_table(BASE, 0, tokenizer="a"), "b": make_table(BASE, 1, tokenizer="b")}, FEW
        )


def test_the_verb_compares_two_tables(tmp_path: Path) -> None:
    paths = []
    for name, law in (("web", BASE), ("filtered", scale_compute(1.4))):
        paths.append(str(tmp_path / name / "sweep"))
        make_table(law, len(name)).write(str(tmp_path / name / "sweep" / "runs.parquet"))
    settings = LawFit(bootstrap=Bootstrap(draws=20))
    printed = json.loads(fit(Tables(tuple(paths), {}), settings, str(tmp_path), as_json=True))
    assert [law["name"] for law in printed["recipes"]] == ["web-sweep", "filtered-sweep"]
    assert len(printed["differences"]) == 2
    assert Path(printed["written"][0]).name == "recipes.json"
    with pytest.raises(ConfigError, match="by the Parametric law"):
        fit(Tables(tuple(paths), {}), LawFit(form="Kaplan"), None, as_json=False)
    with pytest.raises(ConfigError, match=r"'exponent' is none.*you mean 'exponents'"):
        fit(Tables(tuple(paths), {}, share="exponent"), LawFit(), None, as_json=False)
    with pytest.raises(ConfigError, match="given 2 times"):
        fit(Tables((paths[0], f"{paths[0]}/runs.parquet"), {}), LawFit(), None, as_json=False)
    with pytest.raises(ConfigError, match="--recipe chooses within one table"):
        fit(Tables(tuple(paths), {}, ("web",)), LawFit(), None, as_json=False)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif("TRAINRIG_TEST_DATA" not in os.environ, reason="TRAINRIG_TEST_DATA")
def test_published_corpora_are_compared_on_the_text_of_one_of_them() -> None:
    """On C4's validation text, C4 is worth more compute than RedPajama."""
    path = str(DATA / "gadre_small_runs.csv")
    settings = LawFit(bootstrap=Bootstrap(draws=100))
    recipes = ("c4_original", "rpj", "rw_original")
    found = json.loads(fit(Tables((path,), {}, recipes), settings, None, as_json=True))
    assert [law["rows"] for law in found["recipes"]] == [31, 32, 32]
    for difference in found["differences"]:
        assert difference["loss"]["value"] > 0
        assert difference["multiplier"]["value"] < 1
