"""Schemas, their page and the configs describe the run file models, key by key."""

import ast
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import jsonschema
import pytest

from trainrig.config import NOT_IDENTITY, RunFile, Settings
from trainrig.config.run_file_schema import build_json_schema, collect_descriptions
from trainrig.python_api import api_page
from trainrig.run_file_pages import (
    METRICS_PAGE,
    PAGE,
    SCHEMAS,
    generate_files,
    load_models,
)

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "jobs" / "configs").rglob("*.toml"))


class Base(Settings):
    kept: int = 1  # steps; None: no end
    ended: int = 1  # steps or None
    changed: int = 2  # of the base


class Part(Base):
    """A part. And more of it."""

    kind: Literal["Part"] = "Part"
    # Two lines
    # of it.
    above: Annotated[str, NOT_IDENTITY] = "#"
    wrapped: tuple[int, ...] = (
        1,  # in the middle
    )
    changed: int = 3  # `of` the part, True or not

    # About a constant.
    constant: ClassVar[int] = 1
    bare: int = 0


def test_a_comment_on_a_field_is_its_description() -> None:
    assert collect_descriptions(Part) == {
        "kept": "Steps; absent: no end.",
        "ended": "Steps or absent.",
        "changed": "`of` the part, true or not.",
        "kind": 'Choose this table by `kind = "Part"`: A part.',
        "above": "Two lines of it.",
        "wrapped": "In the middle.",
    }


def list_keys(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    tables = {"": schema, **schema.get("$defs", {})}
    for table, held in tables.items():
        for name, key in held.get("properties", {}).items():
            yield table, name, key


@pytest.mark.slow
@pytest.mark.parametrize("verb", load_models())
def test_every_key_of_every_run_file_is_described(verb: str) -> None:
    schema = build_json_schema(load_models()[verb])
    jsonschema.Draft202012Validator.check_schema(schema)
    bare = [
        f"{table}.{name}" for table, name, key in list_keys(schema) if not key.get("description")
    ]
    assert bare == []
    for _, _, key in list_keys(schema):
        assert re.fullmatch(r"[A-Z0-9\"`].*[.!?]", key["description"]), key["description"]
        assert not re.search(r"\b(None|True|False)\b", key["description"])


def test_descriptions_are_read_only_when_a_schema_is_asked_for() -> None:
    model: type[RunFile] = load_models()["evaluate"]
    assert "description" not in json.dumps(model.model_json_schema()["properties"])


@pytest.mark.slow
def test_generated_files_are_up_to_date() -> None:
    made = generate_files()
    stale = [name for name, text in made.items() if (ROOT / name).read_text() != text]
    assert stale == [], "run `make docs`"
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / SCHEMAS).iterdir()} | {
        PAGE,
        METRICS_PAGE,
        api_page.PAGE,
    } == {*made}


def test_links_of_the_page_lead_to_its_sections() -> None:
    page = (ROOT / PAGE).read_text()
    titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    slugs = [title.lower().replace(".", "").replace(" ", "-") for title in titles]
    assert len(slugs) == len(set(slugs))
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= set(slugs)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_config_names_its_schema_and_is_valid_by_it(path: Path) -> None:
    text = path.read_text()
    named = re.match(r"#:schema (\S+)\n", text)
    assert named, "editors look for it in the first line"
    schema = json.loads((path.parent / named[1]).read_text())
    given = tomllib.loads(text)
    assert Path(named[1]).stem == given["stage"]
    # `test_every_key_of_every_run_file_is_described` checks the schemas themselves.
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(given)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(given | {"no_such_key": 1})


# Methods that record an event, whose name is their last argument that is a string.
RECORDING = {"record", "_record", "_ask", "_kill", "_insist"}
EVENT = re.compile(r"[a-z]+(_[a-z]+)*")
OF_JOBS = ROOT / "platform" / "trainrig" / "launch"


def find_recorded(folder: Path) -> dict[str, set[str]]:
    """Return the fields that are recorded with each event in the modules of `folder`.

    Names of events are strings, or constants of modules. Fields given as `**fields` are not found.
    """
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]
    constants = {
        node.targets[0].id: node.value.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    found: dict[str, set[str]] = defaultdict(set)
    for tree in trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in RECORDING:
                continue
            given = [
                value.value if isinstance(value, ast.Constant) else constants.get(_name(value))
                for value in node.args
            ]
            names = [name for name in given if isinstance(name, str) and EVENT.fullmatch(name)]
            if names:  # `_ask` has the reason before the event
                found[names[-1]] |= {keyword.arg for keyword in node.keywords if keyword.arg}
    return found


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def test_every_event_that_is_recorded_is_described() -> None:
    of_runs = defaultdict(set)
    for folder in ("train", "rl", "quickstart"):
        for name, fields in find_recorded(ROOT / "platform" / "trainrig" / folder).items():
            of_runs[name] |= fields
    page = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    _, about_runs, about_jobs = page.split("\n## ")
    for recorded, section in ((of_runs, about_runs), (find_recorded(OF_JOBS), about_jobs)):
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \| .+ \|$", section, re.MULTILINE)
        assert sorted(recorded) == sorted(name for name, _ in rows)
        for name, fields in rows:
            assert recorded[name] <= set(re.findall(r"`(\w+)`", fields)), name
