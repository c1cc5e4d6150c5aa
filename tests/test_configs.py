"""The repository's run files and jobs fit the command line."""

import ast
import functools
import inspect
import json
import re
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trainrig import config
from trainrig.cli import VERBS
from trainrig.config import EXTENDABLE, OUTPUT, RunFile, Settings
from trainrig.quickstart.quickstart_stages import PageMaking
from trainrig.run_file_pages import load_models
from trainrig.verbs import load_named

ROOT = Path(__file__).parents[1]
RUN_FILES = sorted((ROOT / "jobs" / "configs").rglob("*.toml"))
RECIPE_FILES = sorted((ROOT / "jobs" / "recipes").rglob("*.toml"))
JOBS = sorted((ROOT / "jobs").glob("*.py"))


def name_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


def make_model(stage: str) -> Any:
    """Return the model of a run file; not all are of verbs."""
    return load_models()[stage]


@pytest.mark.parametrize("path", RUN_FILES + RECIPE_FILES, ids=name_path)
def test_a_run_file_loads_and_comes_back_from_its_resolved_form(path: Path, tmp_path: Path) -> None:
    model = make_model(tomllib.loads(path.read_text())["stage"])
    run = config.load(model, str(path))
    resolved = tmp_path / "resolved.toml"
    resolved.write_text(config.to_toml(run))
    assert config.load(model, str(resolved)) == run


@functools.cache
def make_validator(stage: str) -> jsonschema.Draft202012Validator:
    """Return the validator of a stage's schema.

    It is cached, because the check of a schema takes longer than that of a run file.
    """
    schema = make_model(stage).model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", RUN_FILES + RECIPE_FILES, ids=name_path)
def test_a_run_file_fits_the_schema_and_with_a_wrong_key_does_not(path: Path) -> None:
    given = tomllib.loads(path.read_text())
    validator = make_validator(given["stage"])
    validator.validate(given)
    with pytest.raises(jsonschema.ValidationError, match="stepz"):
        validator.validate(given | {"stepz": 1})


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=name_path)
def test_run_files_that_the_docs_show_load(path: Path) -> None:
    for text in re.findall(r"```toml\n(.*?)```", path.read_text(), re.DOTALL):
        tables = config.parse(text, str(path))
        if "stage" in tables:
            config.build(make_model(tables["stage"]), tables, str(path), text)


def test_each_verb_has_a_run_file_and_the_quickstart_all_that_it_needs() -> None:
    stems = {path.parent.name: set() for path in RUN_FILES}
    for path in RUN_FILES:
        stems[path.parent.name].add(path.stem)
    assert stems["quickstart"] == {*VERBS, PageMaking.verb, "pairs", "dpo"} - {
        *("embed", "rl", "score", "teacher", "sample", "constitutional", "mixture")
    }
    assert stems["preferences"] == {"conversations", "posttrain", "score"}
    assert all(name in stems[verb.example] for name, verb in VERBS.items())
    assert stems["reinforcement"] == {"rl", "ppo", "lagged", "partial"}
    assert stems["classification"] == {"conversations", "posttrain", "score"}
    assert stems["distillation"] == {"teacher", "posttrain", "sample", "rl"}
    assert stems["constitutional"] == {"constitutional"}
    assert stems["encoder"] == {
        *("tokenizer", "tokenize", "pretrain", "evaluate", "embed", "vectors", "replaced")
    }
    assert stems["objectives"] == {
        "tokenizer",
        "tokenize",
        "mixture",
        "prefix",
        "ul2",
        "multi_token",
    }
    assert stems["crawl"] == {"curate", "classifier", "ngrams"}
    assert stems["sweep"] == {"isoflop", "ladder"}
    assert stems["mixture"] == {"mixture"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_what_its_run_file_says(verb: str) -> None:
    model = VERBS[verb].load_model()
    assert model.verb == verb
    assert model.model_fields["stage"].default == verb
    assert callable(VERBS[verb].load_function())


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_keeps_its_contract(verb: str) -> None:
    """The command line, `check`, `submit` and `jobs` rely on these properties."""
    model = VERBS[verb].load_model()
    function = VERBS[verb].load_function()
    written = [n for n, field in model.model_fields.items() if OUTPUT in field.metadata]
    assert written == ["output"]
    told = {"splits": {"progress"}, "trials": {"show"}}.get(model.progress, set())
    assert {"progress", "show"} & set(inspect.signature(function).parameters) == told
    assert model.trains == (model.progress == "steps")
    assert model.trains == (model.total_steps is not RunFile.total_steps)
    asks = model.request_resources is not RunFile.request_resources
    assert asks == bool({"workers", "trials"} & set(model.model_fields))
    if model.estimate:
        assert callable(load_named(model.estimate))
    assert model.estimate or not model.estimates_cost
    assert not model.extends_finished or EXTENDABLE in _list_marks(model)


def _list_marks(model: type[Settings]) -> list[object]:
    marked = [mark for field in model.model_fields.values() for mark in field.metadata]
    return [mark for mark in marked if mark is EXTENDABLE]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_the_job_of_one_script(verb: str) -> None:
    wanted = [VERBS[verb].load_model(), VERBS[verb].load_function()]
    scripts = {path.name: list(runpy.run_path(str(path)).values()) for path in JOBS}
    assert len([n for n, held in scripts.items() if all(w in held for w in wanted)]) == 1


@pytest.mark.parametrize("job", JOBS, ids=name_path)
def test_a_job_says_how_to_submit_it(job: Path) -> None:
    docstring = ast.get_docstring(ast.parse(job.read_text())) or ""
    command = f"ray job submit --working-dir . -- python {name_path(job)} "
    assert [line for line in docstring.splitlines() if line.strip().startswith(command)]


@pytest.mark.parametrize("job", JOBS, ids=name_path)
def test_a_job_hides_no_module_of_the_standard_library(job: Path) -> None:
    """A script's folder comes first in the search for modules."""
    assert job.stem not in sys.stdlib_module_names


@pytest.mark.slow
def test_the_schema_of_a_verb_says_what_its_model_does(capsys: pytest.CaptureFixture[str]) -> None:
    from trainrig import cli

    for verb in VERBS:
        with pytest.raises(SystemExit):
            cli.main(["schema", verb])
        printed = json.loads(capsys.readouterr().out)
        shipped = ROOT / "jobs" / "configs" / "schema" / f"{verb}.json"
        assert printed == json.loads(shipped.read_text())
