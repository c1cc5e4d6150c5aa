"""Generator of the run files' JSON schemas, and of the pages of keys, metrics, events and the API.

`python -m trainrig.run_file_pages [REPOSITORY]` writes all of them. A test fails if a file differs
from the generated text.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainrig.config import Settings, format_toml_value
from trainrig.config.run_file_schema import build_json_schema
from trainrig.python_api import api_page
from trainrig.quickstart.quickstart_stages import PageMaking
from trainrig.scaling.plan.plan_run_file import PlanFile
from trainrig.train.run.metrics import TABLE_TEXT
from trainrig.verbs import VERBS

SCHEMAS = "jobs/configs/schema"  # near the configs, whose first line names a schema
PAGE = "docs/run-files.md"
METRICS_PAGE = "docs/metrics.md"

_HEAD = """# Run files

Every key of every run file, with its type, default and description. `make docs` generates this page
from the comments on the fields in the source; do not edit it.

A run file is TOML and holds only what differs from the defaults. `trainrig check RUN.toml` prints
it with every default, or with `--changed` only what differs; `--set a.b=value` changes one key for
one run. An unknown key is refused, with the nearest known one. "Absent" means that the key is left
out: TOML has no null. A table with a `kind` is one of several: the `kind` chooses which, and which
keys there are.

Editors complete and explain keys (Even Better TOML in VS Code, taplo in others) where the first
line of the file names a schema, as in the files of `jobs/configs/`. For a file of your own:
`trainrig schema pretrain > pretrain.schema.json`, and as its first line
`#:schema ./pretrain.schema.json`.
"""


_METRICS_HEAD = """# Metrics

All metrics that a training run logs, in `metrics.jsonl` and in TensorBoard under the same names.
This page is generated from `platform/trainrig/train/run/metrics.md` by `make docs`; do not edit it.
Words in capitals are placeholders. [Monitoring](monitoring.md) explains how to use the metrics.

"""


def load_models() -> dict[str, type[Settings]]:
    """Return the model of each run file by its command.

    `plan` writes no stage, and `pages` belongs to the quickstart, so neither is in VERBS.
    """
    verbs = {verb: VERBS[verb].load_model() for verb in VERBS}
    return {**verbs, PlanFile.verb: PlanFile, PageMaking.verb: PageMaking}


def generate_files() -> dict[str, str]:
    """Return the text of each generated file by its path in the repository."""
    schemas = {verb: build_json_schema(model) for verb, model in load_models().items()}
    files = {
        f"{SCHEMAS}/{verb}.json": f"{json.dumps(schema, indent=1, ensure_ascii=False)}\n"
        for verb, schema in schemas.items()
    }
    return files | {
        PAGE: build_page(schemas),
        METRICS_PAGE: _METRICS_HEAD + TABLE_TEXT,
        api_page.PAGE: api_page.build_api_page(),
    }


def build_page(schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the Markdown page of all keys, with a section for each command.

    A table that several commands share is shown at its first use only.
    """
    lines = [_HEAD]
    lines += [
        f"- [{verb}](#run-file-of-{verb}): {_extract_summary(schema)}"
        for verb, schema in schemas.items()
    ]
    shown: set[str] = set()
    for verb, schema in schemas.items():
        chosen = set(_list_chosen(schema))
        lines += [
            "",
            f"## Run file of {verb}",
            "",
            _extract_summary(schema),
            "",
            *_format_keys(schema),
        ]
        for name, table in schema.get("$defs", {}).items():
            if name not in shown and "properties" in table:
                shown.add(name)
                lines += ["", f"### {_format_title(name)}", "", _extract_summary(table), ""]
                lines += _format_keys(table, name in chosen)
    return "\n".join(lines) + "\n"


def _list_chosen(schema: Any) -> Iterator[str]:
    """Yield the names of the tables that a `kind` selects."""
    if isinstance(schema, Mapping):
        for ref in schema.get("discriminator", {}).get("mapping", {}).values():
            yield ref.rpartition("/")[2]
    inner = schema.values() if isinstance(schema, Mapping) else schema
    for value in inner:
        if isinstance(value, Mapping | list):
            yield from _list_chosen(value)


def _extract_summary(table: Mapping[str, Any]) -> str:
    """Return the first paragraph of a model's docstring."""
    first = str(table.get("description", "")).partition("\n\n")[0]
    return _escape_markdown(" ".join(first.split()))


def _format_keys(table: Mapping[str, Any], chosen: bool = False) -> Iterator[str]:
    """Yield the Markdown lines that list the keys of `table`.

    `chosen` says that the table is selected by its `kind`, which is then a required key.
    """
    yield "| key | type | default | description |"
    yield "|---|---|---|---|"
    required = {*table.get("required", ()), *({"kind"} if chosen else ())}
    for name, key in table["properties"].items():
        default = "required" if name in required else _describe_default(key)
        cells = (
            f"`{name}`",
            _describe_type(key),
            default,
            _escape_markdown(key.get("description", "")),
        )
        yield f"| {' | '.join(cells)} |"


def _describe_type(key: Mapping[str, Any]) -> str:
    """Describe the values that a key accepts, in TOML's terms."""
    if "$ref" in key:
        title = _format_title(key["$ref"].rpartition("/")[2])
        return f"[{title}](#{title.lower().replace('.', '').replace(' ', '-')})"
    for several in ("anyOf", "oneOf"):
        if several in key:
            types = [_describe_type(kind) for kind in key[several] if kind.get("type") != "null"]
            return " or ".join(dict.fromkeys(types))
    if "const" in key:
        return f"`{format_toml_value(key['const'])}`"
    if "enum" in key:
        return " or ".join(f"`{format_toml_value(value)}`" for value in key["enum"])
    if "prefixItems" in key:
        return f"\\[{', '.join(_describe_type(item) for item in key['prefixItems'])}\\]"
    if key.get("type") == "array":
        return f"array of {_describe_type(key.get('items', {}))}"
    if key.get("type") == "object":
        return f"table of {_describe_type(key.get('additionalProperties', {}))}"
    return str(key.get("type", "any")) + _describe_bounds(key)


def _describe_bounds(key: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {key[name]:,}" for name, sign in signs.items() if name in key]
    return _escape_markdown(f" {', '.join(found)}") if found else ""


def _describe_default(key: Mapping[str, Any]) -> str:
    if "default" not in key:
        return "computed"
    value = key["default"]
    if value is None:
        return "absent"
    if isinstance(value, Mapping):
        return f"`{value['kind']}`" if "kind" in value else ("its own" if value else "empty")
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return ", ".join(f"`{table.get('kind') or _format_inline(table)}`" for table in value)
    return f"`{_escape_markdown(format_toml_value(value))}`"


def _format_inline(table: Mapping[str, Any]) -> str:
    """Format a table as an inline table of TOML, without its absent keys."""
    given = {name: format_toml_value(value) for name, value in table.items() if value is not None}
    return f"{{ {', '.join(f'{name} = {value}' for name, value in given.items())} }}"


def _format_title(name: str) -> str:
    """Return the title of a table, with its module if another module has the same name."""
    module, found, last = name.rpartition("__")
    return f"{last} in {module.removeprefix('trainrig__').replace('__', '.')}" if found else name


def _escape_markdown(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    """Write all generated files."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for name, text in generate_files().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
