import json
from pathlib import Path

import numpy as np
import pytest

import trainrig
from trainrig.scaling.fit.fit_options import LawOptions, TableOptions
from trainrig.scaling.fit.fit_options import fit as fit_command
from trainrig.scaling.fit.law_fit import LawFit
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.law_forms import Parametric
from trainrig.scaling.plan.plan_options import PlanOptions
from trainrig.scaling.plan.plan_options import plan as plan_command
from trainrig.scaling.plan.plan_run_file import PlanFile

TRUTH = Parametric(E=1.8, A=400, B=1600, alpha=0.34, beta=0.36)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a CSV of runs whose losses follow TRUTH with some noise."""
    path = tmp_path_factory.mktemp("table") / "web.csv"
    dice = np.random.default_rng(2)
    lines = ["parameters,tokens,loss"]
    for n in np.geomspace(1e7, 1e9, 6):
        for d in np.geomspace(1e9, 1e11, 6):
            loss = TRUTH.compute_loss(n, d) * np.exp(0.003 * dice.normal())
            lines.append(f"{n:.0f},{d:.0f},{loss:.6f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_plan_is_that_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = PlanOptions(flops=1e20, device="h100")
    plan_command("hoffmann", given=given, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    plan = trainrig.plan("hoffmann", flops=1e20, device="h100")
    assert plan.figures == printed
    assert trainrig.plan(PlanFile(law="hoffmann", flops=1e20, device="h100")).figures == printed
    file = tmp_path / "plan.toml"
    file.write_text('stage = "plan"\nlaw = "hoffmann"\nflops = 2e20\ndevice = "h100"\n')
    assert trainrig.plan(file, changes=["flops=1e20"]).figures == printed
    plan_command("hoffmann", given=given)
    assert capsys.readouterr().out == f"{plan}\n"
    assert plan.paths == ()
    assert "<pre>" in plan._repr_html_()


def test_mistakes_are_those_of_the_command() -> None:
    with pytest.raises(trainrig.ConfigError, match="there are: besiroglu"):
        trainrig.plan("chinchila", flops=1e20)
    with pytest.raises(trainrig.ConfigError, match=r"^plan: no key 'flop' .* did you mean 'flops'"):
        trainrig.plan("hoffmann", flop=1e20)
    with pytest.raises(trainrig.ConfigError, match="not both"):
        trainrig.plan(PlanFile(law="hoffmann", flops=1e20), device="h100")
    with pytest.raises(trainrig.ConfigError, match=r"^fit: no key 'frm' in LawFit"):
        trainrig.fit("runs.csv", frm="Kaplan")
    with pytest.raises(trainrig.ConfigError, match="not both"):
        trainrig.fit("runs.csv", settings=LawFit(), form="Kaplan")
    with pytest.raises(trainrig.DataError, match=r"runs\.csv"):
        trainrig.fit("runs.csv", progress=False)


@pytest.mark.slow
def test_a_law_is_that_of_the_command(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = LawOptions(form="Parametric", draws=20)
    fit_command([str(table)], table=TableOptions(), law=options, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    law = trainrig.fit(table, form="Parametric", bootstrap={"draws": 20}, progress=False)
    assert law.figures == printed
    assert isinstance(law.law, Law)
    written = trainrig.fit(
        [table], settings=LawFit(form="Parametric", bootstrap={"draws": 20}), out=tmp_path / "law"
    )
    assert [Path(path).name for path in written.paths] == ["law.json", "report.html"]
    assert str(written) == str(law)
    assert trainrig.plan(tmp_path / "law" / "law.json", flops=1e20).figures["law"] == "web"
