"""Writing of a project: its run files, their schemas, run.sh and README.md.

The files are made in a folder beside the project, which gets its name when all are written. So a
project is there as a whole, or not at all.
"""

import functools
import json
import secrets
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from trainrig import config, storage
from trainrig.config.run_file_schema import build_json_schema
from trainrig.errors import ConfigError, OutputTaken
from trainrig.projects.project_inputs import Inputs
from trainrig.projects.project_plan import Plan
from trainrig.projects.stage_list import SCRIPT, format_script
from trainrig.verbs import VERBS

README = "README.md"
SCHEMAS = "schemas"
EXECUTABLE = 0o755


@functools.cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("trainrig.projects", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # TOML and Markdown, not HTML
    )
    environment.filters["toml"] = config.format_toml_value
    return environment


@functools.cache
def _format_schema(verb: str) -> str:
    schema = build_json_schema(VERBS[verb].load_model())
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def check_new(folder: str) -> Path:
    """Return the path of the project to write. Raises an error unless it is new or empty."""
    if storage.is_remote(folder):
        raise ConfigError(
            f"{folder}: a project is a folder on this machine; its outputs may be in buckets"
        )
    path = Path(folder)
    if path.resolve() == Path.cwd():
        raise ConfigError(f"{folder}: is the working directory; name a new folder in it")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = "not empty" if path.is_dir() else "a file"
        raise OutputTaken(f"{folder}: {what}; name a new folder")
    return path


def render_project(folder: str, inputs: Inputs, plan: Plan) -> dict[str, str]:
    """Return the texts of all files of the project by name.

    Each run file is loaded, so a project whose files do not fit their schema is never written.
    """
    environment = _make_environment()
    texts: dict[str, str] = {}
    for file in plan.files:
        name = f"{file.name}.toml"
        text = environment.get_template(f"{file.template}.toml.j2").render(file.values)
        tables = config.parse(text, name)
        model = VERBS[tables["stage"]].load_model()
        config.build(model, tables, name, text)
        texts[name] = text
        texts[f"{SCHEMAS}/{model.verb}.json"] = _format_schema(model.verb)
    texts[SCRIPT] = format_script(plan.stages)
    texts[README] = environment.get_template("README.md.j2").render(
        _describe_project(folder, inputs, plan)
    )
    return texts


def _describe_project(folder: str, inputs: Inputs, plan: Plan) -> Mapping[str, Any]:
    last = plan.stages[-1].words
    exported = last[0] == "export"
    chats = inputs.kind in ("tune", "align", "rl")
    use = f"chat {last[1]}" if chats else f"generate {last[1]} --prompt 'Once upon a time'"
    if inputs.kind == "encoder":
        use = "embed embed.toml --set output=more"
    return {
        "title": Path(folder).name,
        "kind": inputs.kind,
        "sources": [source.describe() for source in inputs.sources],
        "facts": plan.facts,
        "stages": plan.stages,
        "place": shlex.quote(folder),
        "exported": exported,
        "use": use,
    }


def write_project(path: Path, texts: Mapping[str, str]) -> None:
    """Write the files `texts` into the new folder `path`."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        for name, text in texts.items():
            file = beside / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        (beside / SCRIPT).chmod(EXECUTABLE)
        beside.rename(path)  # replaces an empty folder
    finally:
        shutil.rmtree(beside, ignore_errors=True)
