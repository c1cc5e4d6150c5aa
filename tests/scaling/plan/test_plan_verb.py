"""A plan becomes a run file, and the run file a model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainrig import config
from trainrig.check import describe
from trainrig.cli import app
from trainrig.errors import ConfigError, DataError
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.job import exit_codes
from trainrig.objectives.objective_kinds import UL2, MaskedLM, SpanCorruption
from trainrig.parallel.layout import FSDP
from trainrig.scaling.laws.law import write_law
from trainrig.scaling.laws.law_formats import serialise_objective
from trainrig.scaling.laws.published_laws import find_published_law
from trainrig.scaling.plan.plan_run_file import PlanFile
from trainrig.scaling.plan.plan_schema import ScalingPlan
from trainrig.scaling.plan.plan_verb import plan_by_law
from trainrig.train.pretrain import pretrain
from trainrig.train.run_file.run_files import Pretraining

TINY = {
    "parameters": 1.2e4,
    "device": "cpu-core",
    "devices": 1,
    "compute": "float32",
    "sequence_length": 32,
    "extrapolate": True,  # the published laws are of larger models
}


def read_plan(path: str) -> ScalingPlan:
    return config.build(ScalingPlan, json.loads(Path(path).read_text()), path)


@pytest.fixture
def planned(tokens: str, tmp_path: Path) -> Callable[..., Path]:
    """Return `planned(parameters=1.2e4)`: the run file of a plan, on tiny tokens."""

    def plan(by: str = "hoffmann", **asked: float) -> Path:
        path = tmp_path / "planned.toml"
        written = {"out": str(path), "tokens_folder": tokens, "output": str(tmp_path / "run")}
        plan_by_law(PlanFile(law=by, **(TINY | asked | written)), None)
        return path

    return plan


def test_a_run_file_is_one_that_pretrain_accepts(planned: Callable[..., Path]) -> None:
    path = planned()
    run = config.load(Pretraining, str(path))
    plan = read_plan(run.plan or "")
    choice = DeviceChoice(plan.cost.device, None, plan.assumptions.utilisation)
    facts = describe(run, choice)  # opens the tokens, and rejects too many epochs
    assert facts["usd"] == plan.cost.usd
    assert facts["hours"] == plan.cost.hours
    assert facts["positions"] == plan.size.tokens
    assert facts["parameters"] == plan.size.total
    assert facts["flops"] == plan.size.flops
    assert run.model == plan.model
    assert run.training.optimizer.lr == plan.recipe.rate
    assert run.training.parallel == FSDP()
    assert plan.data is not None
    assert plan.data.epochs > 4
    assert run.batches.cap("web") >= plan.data.epochs
    assert plan.data.worth < plan.size.tokens


OBJECTIVES = {
    "Encoder": MaskedLM(),
    "EncoderDecoder": SpanCorruption(),
    "Decoder": UL2(joined=True),  # joined rows are wider than the text
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_law_of_another_objective_plans_a_run_of_it(
    kind: str, corrupted_tokens: str, tokens: str, tmp_path: Path
) -> None:
    objective = OBJECTIVES[kind]
    of_it = {"objective": serialise_objective(objective), "parameters_count": "non-embedding"}
    write_law(str(tmp_path / "law.json"), find_published_law("hoffmann").model_copy(update=of_it))
    path = tmp_path / "planned.toml"
    request = PlanFile(
        law=str(tmp_path / "law.json"),
        out=str(path),
        tokens_folder=corrupted_tokens,
        output=str(tmp_path / "run"),
        **TINY,
    )
    found, lines = plan_by_law(request, None)
    assert any(
        objective.kind in line and "losses of other objectives are not comparable" in line
        for line in lines
    )
    run = config.load(Pretraining, str(path))
    assert run.objective == objective
    assert run.model is not None and run.model.kind == kind
    assert read_plan(run.plan or "").model == run.model
    assert describe(run)["flops"] == pytest.approx(found.size.flops)
    with pytest.raises(DataError, match="no special token"):
        plan_by_law(request.model_copy(update={"tokens_folder": tokens}), None)


@pytest.mark.slow
@pytest.mark.ray
def test_a_plan_is_run_and_goes_with_its_run(
    planned: Callable[..., Path], local_ray: None, tmp_path: Path
) -> None:
    path = planned()
    run = config.load(Pretraining, str(path), ["training.steps=3", "training.held_out.rows=0"])
    manifest = pretrain(run)
    assert manifest.counts["steps"] == 3
    assert read_plan(f"{run.output}/plan.json") == read_plan(str(tmp_path / "planned.plan.json"))


def test_a_law_that_knows_no_repeats_says_so(planned: Callable[..., Path]) -> None:
    plan = read_plan(config.load(Pretraining, str(planned("kaplan", parameters=6e3))).plan or "")
    assert "this law counts all of them as new" in plan.warnings[-1]


def test_another_run_file_is_not_written_over(planned: Callable[..., Path]) -> None:
    planned()
    with pytest.raises(ConfigError, match="exists already"):
        planned(parameters=1.5e4)


def test_a_folder_without_tokens_is_refused(tmp_path: Path) -> None:
    out = str(tmp_path / "a.toml")
    request = PlanFile(law="kaplan", out=out, tokens_folder=str(tmp_path), **TINY)
    with pytest.raises(DataError, match="not the output of a stage"):
        plan_by_law(request, None)
    assert list(tmp_path.iterdir()) == []


def test_a_law_is_read_from_its_file(tmp_path: Path) -> None:
    base = find_published_law("besiroglu").form
    draws = tuple(base.with_constants({"E": base.constants["E"] + k / 1000}) for k in range(40))
    path = str(tmp_path / "law.json")
    write_law(
        path, find_published_law("besiroglu").model_copy(update={"name": "ours", "draws": draws})
    )
    plan, lines = plan_by_law(PlanFile(law=path, flops=1e21), None)
    assert plan.law == "ours"
    assert plan.loss_interval is not None and plan.loss_interval.contains(plan.loss + 0.02)
    assert str(plan.loss_interval) in "\n".join(lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("besiroglu --flops 1e21 --gpu-days 3", "found flops and gpu_days"),
        ("besiroglu", "found none of them"),
        ("hofman --flops 1e21", "did you mean 'hoffmann'?"),
        ("besiroglu --flops 1e21 --device h10", "did you mean 'h100'?"),
        ("besiroglu --flops 1e21 --set rule.kind=Deepsek", "did you mean 'DeepSeek'?"),
        ("besiroglu --flops -1", "plan: flops: input should be greater than 0, found -1.0"),
        ("besiroglu --flops nan", "--flops: 'nan' is not a number"),
        ("besiroglu --flops 1e3", "or lower `vocabulary`"),
        ("besiroglu --budget-usd 5 --device rtx-4090", "so its price is unknown"),
        ("llama3 --flops 1e21", "has no loss"),
        ("none.json --flops 1e21", "no such law"),
        (
            "besiroglu --flops 1e21 --set assumptions.utilisation=2.0",
            "utilisation: input should be less than or equal to 1",
        ),
        ("besiroglu --flops 1e21 --out a.toml", "--set tokens_folder=FOLDER"),
        ("besiroglu --flops 1e21 --set output=a", "add --out RUN.toml"),
        ("kaplan --flops 1e21 --set tokens_available=1e9", "cannot tell repeated tokens"),
        (
            "besiroglu --set tokens=100.0 --set vocabulary=8",
            "no budget makes|are fewer than one sequence",
        ),
        (
            "besiroglu --flops 1e20 --set instance=p5.48xlarge --device l4",
            "leave out one of the two",
        ),
    ],
)
def test_impossible_plans_are_one_line_errors(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, exit_codes():
        app(args=["plan", *arguments.split()])
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    assert any(part in said for part in message.split("|"))


def test_a_run_file_and_options_make_the_same_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'stage = "plan"\nlaw = "besiroglu"\nflops = 1e20\ndevice = "a100-80gb"\ndevices = 16\n'
        'tokens_available = 1e9\nrule = {kind = "Porian"}\n'
    )
    app(args=["plan", str(path), "--flops", "1e21", "--json"], standalone_mode=False)
    by_file = json.loads(capsys.readouterr().out)
    options = "besiroglu --flops 1e21 --device a100-80gb --set devices=16 --set rule.kind=Porian"
    app(
        args=["plan", *options.split(), "--set", "tokens_available=1e9", "--json"],
        standalone_mode=False,
    )
    assert json.loads(capsys.readouterr().out) == by_file
    assert by_file["cost"]["devices"] == 16
    assert by_file["data"]["unique_tokens"] == 1e9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('stage = "pretrain"\n', "for its layouts use --layout"),
        ('stage = "plan"\nlaw = "hoffmann"\nflop = 1e21\n', ":3: no key 'flop'"),
        ('stage = "plan"\nlaw = "hoffmann"\n[layout]\nrun = "a.toml"\n', "only one of the two"),
        ('stage = "plan"\ntokens = 1e9\n[layout]\nrun = "a.toml"\n', "a key of plans by a law"),
        ('stage = "plan"\nflops = 1e21\n', "give a law"),
    ],
)
def test_invalid_run_files_are_one_line_errors(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended, exit_codes():
        app(args=["plan", str(path)])
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    assert message in said


def test_the_command_prints_the_plan_and_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    app(args=["plan", "besiroglu", "--flops", "1e21"], standalone_mode=False)
    told = capsys.readouterr().out
    for word in ("parameters N", "loss", "FLOPs", "layout", "time", "money", "energy", "Assumed"):
        assert word in told
    app(args=["plan", "besiroglu", "--flops", "1e21", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["size"]["tokens"] == pytest.approx(6e10, rel=0.02)
    app(args=["plan", "hoffmann", "--table"], standalone_mode=False)
    assert "1.27e+26  21.2T" in capsys.readouterr().out
