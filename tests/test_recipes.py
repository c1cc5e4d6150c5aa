"""Each recipe of `jobs/recipes/` fits its hardware, and trainrig computes its figures."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from trainrig import cli, config, hardware
from trainrig.check import describe
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.report.number_formats import format_short
from trainrig.run_file_pages import load_models
from trainrig.scaling.laws.published_laws import find_published_law
from trainrig.scaling.plan.loss_prediction import predict_loss

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path for path in (ROOT / "jobs" / "recipes").iterdir() if path.is_dir())
RUN_FILES = sorted(path for recipe in RECIPES for path in recipe.glob("*.toml"))
COMMANDS = get_command(cli.app).commands  # type: ignore[attr-defined]
ROW = re.compile(r"^\| `trainrig (check|predict) ([^`]*)` \| (.*) \|$", re.MULTILINE)
NOT_RUN = " (not run)"


def read_page(recipe: Path) -> str:
    return (recipe / "README.md").read_text(encoding="utf-8")


def list_commands(recipe: Path) -> list[list[str]]:
    """Return the words of each `trainrig` command of `run.sh`, with the paths it will see."""
    text = (recipe / "run.sh").read_text(encoding="utf-8")
    text = text.replace("$here", str(recipe.relative_to(ROOT)))
    text = re.sub(r"\$\{?MAX_COST(:\?[^}]*\})?", "100", text)
    lines = [line for line in text.splitlines() if line.startswith("trainrig ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_a_recipe_says_in_its_first_line_whether_it_was_run(recipe: Path) -> None:
    title = read_page(recipe).splitlines()[0]
    assert title.startswith("# ")
    for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", read_page(recipe)):
        assert (recipe / link).exists(), link
    assert title.endswith(NOT_RUN) != bool(re.search(r"\(run on .*\)$", title))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_the_commands_of_a_recipe_parse_and_use_all_its_run_files(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    script = recipe / "run.sh"
    assert os.access(script, os.X_OK)
    assert "\nset -euo pipefail\n" in script.read_text()
    commands = list_commands(recipe)
    # A second run continues: `import` and `export` refuse a folder that is there without this.
    assert all("--keep" in words for words in commands if words[0] in ("import", "export"))
    for name, *rest in commands:
        command = COMMANDS[name]
        while hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        given = command.make_context(name, rest).params
        if "run_file" in given and Path(given["run_file"]).parent == recipe.relative_to(ROOT):
            stage = given.get("verb", name)
            read = config.parse(Path(given["run_file"]).read_text(), given["run_file"])
            assert stage in (read["stage"], "check")
    used = script.read_text() + read_page(recipe)
    assert [path.name for path in recipe.glob("*.toml") if path.name not in used] == []


def load(path: Path, changes: tuple[str, ...] = ()) -> Any:
    stage = config.parse(path.read_text(), str(path))["stage"]
    return config.load(load_models()[stage], str(path), changes)


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_run_file_passes_check_on_a_gpu(path: Path) -> None:
    text = path.read_text().replace("s3://BUCKET", "runs/bucket")  # no bucket is asked
    tables = config.parse(text, str(path))
    run: Any = config.build(load_models()[tables["stage"]], tables, str(path), text)
    if hasattr(run, "estimate"):  # a plan is no stage
        describe(run, DeviceChoice("h100", None, None))


def parse_options(words: list[str]) -> dict[str, Any]:
    (name, *rest) = words
    return dict(COMMANDS[name].make_context(name, rest).params)


def compute(words: list[str]) -> list[str]:
    """Return the figures that a row of a recipe's table must have, for its command."""
    given = parse_options(words)
    if words[0] == "predict":
        law = find_published_law(given["law"])
        found = predict_loss(law, given["params"], given["tokens"], None, None)
        return [f"{found.loss:.2f}"]
    run = load(ROOT / given["run_file"], tuple(given["changes"] or ()))
    facts = describe(run, DeviceChoice(given["device"], None, given["mfu"]), given["preset"])
    assert "too_little_memory" not in facts
    return [
        format_short(facts["parameters"]),
        *([format_short(facts["positions"])] if "positions" in facts else []),
        f"{facts['memory_per_device_gib']:.0f} GiB",
        f"{facts['hours']:,.1f}",
        f"{facts['usd']:,.0f}",
    ]


ROWS = [(recipe, row) for recipe in RECIPES for row in ROW.findall(read_page(recipe))]


@pytest.mark.parametrize(
    ("recipe", "row"),
    ROWS,
    ids=[f"{recipe.name}-{number}" for number, (recipe, _) in enumerate(ROWS)],
)
def test_the_figures_of_a_recipe_are_those_that_trainrig_computes(
    recipe: Path, row: tuple[str, str, str]
) -> None:
    verb, options, figures = row
    assert figures.split(" | ") == compute([verb, *shlex.split(options)])


def test_every_recipe_of_known_models_has_figures() -> None:
    """Curation has no device, and the costs of reinforcement learning are not estimated."""
    assert {recipe for recipe, _ in ROWS} == {
        recipe for recipe in RECIPES if recipe.name not in {"crawl-1tb", "grpo-gsm8k", "laptop"}
    }


def test_the_figures_of_the_sweep_follow_from_its_models(tokens: str) -> None:
    recipe = ROOT / "jobs" / "recipes" / "sweep-and-plan"
    # the figures do not depend on the tokens, but so few would be repeated too often
    changes = (f"tokens={tokens}", "batches.epochs=1e9")
    run = load(recipe / "sweep.toml", changes)

    def count(*sizes: float) -> float:
        listed = f"design.parameters={list(sizes)}"
        return describe(load(recipe / "sweep.toml", (*changes, listed)))["flops_by_6nd"]

    *first, before, last = run.design.parameters
    assert before < run.large.parameters < last
    of_all = count(*first, before, last)
    small = count(*first, before)
    large = of_all - small
    longest = of_all - count(*first, last)
    peak = hardware.load().find_device("h100").find_peak("bfloat16") * 0.4 * 3_600
    gpus = run.large.workers
    hours = large / peak / gpus + max(longest, small / gpus) / peak
    usd = hours * hardware.load().find_instance("p5.48xlarge").usd
    page = read_page(recipe)
    assert f"| operations, 6ND | {of_all:.2e} |" in page
    assert f"| hours on 8 H100 | {hours:.1f} |" in page
    assert f"| USD | {usd:,.0f} |" in page
    assert f"GPU alone {large / peak:.0f} hours" in (recipe / "sweep.toml").read_text()
