"""JSON schemas of run files, with what stands beside each field in its source as its description.

The comment at the end of a field's line, or the lines of comment right above it, say what a field
is: whoever reads the code and whoever writes a run file read the same words. They are read only
when a schema is asked for; a model is as quick to import as without them.
"""

import ast
import inspect
import io
import re
import textwrap
import tokenize
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from trainrig.config import RunFile, Settings

FOR_CHECKERS = re.compile(r"# (type: ignore|noqa)")  # says nothing of a field


def build_json_schema(model: type[RunFile]) -> dict[str, Any]:
    """The JSON schema of `model`, each key with its description."""
    made = model.model_json_schema(schema_generator=_Described)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def collect_descriptions(model: type[Settings]) -> dict[str, str]:
    """What is said of each field of `model`, or of the base that it is inherited from.

    `kind`, which chooses the table, is described by the table's own docstring.
    """
    told: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, Settings) and base is not Settings:
            told |= _read_comments(base)
    if "kind" in model.model_fields:
        told["kind"] = f'Choose this table by `kind = "{model.model_fields["kind"].default}"`: ' + (
            _extract_first_sentence(inspect.getdoc(model) or "")
        )
    return {name: told[name] for name in model.model_fields if name in told}


class _Described(GenerateJsonSchema):
    """pydantic's schemas, with `description` for each property."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        made = super().model_schema(schema)
        told = collect_descriptions(schema["cls"])
        for name, key in made.get("properties", {}).items():
            if name in told:
                key["description"] = told[name]
        return made


def _read_comments(model: type[Settings]) -> dict[str, str]:
    """The comments above each field that `model` itself declares, and at the end of its lines."""
    source = textwrap.dedent(inspect.getsource(model))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    at_line: dict[int, str] = {}  # line -> comment
    alone: set[int] = set()  # lines that hold nothing else
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not FOR_CHECKERS.match(token.string):
            at_line[token.start[0]] = token.string.lstrip("#").strip()
            if token.line.lstrip().startswith("#"):
                alone.add(token.start[0])
    found: dict[str, str] = {}
    for field in definition.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            first = field.lineno
            while first - 1 in alone:
                first -= 1
            lines = range(first, (field.end_lineno or field.lineno) + 1)
            if words := " ".join(at_line[line] for line in lines if line in at_line):
                found[field.target.id] = _format_sentence(words)
    return found


def _format_sentence(comment: str) -> str:
    """A comment as a sentence, in the words of TOML: a file has no None, True or False."""
    text = re.sub(r"\bNone(?=[:,;. ])", "absent", comment)
    text = re.sub(r"\b(True|False)\b", lambda word: word[0].lower(), text)
    text = text if text[:2].isupper() or "`" in text[:1] else text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _extract_first_sentence(docstring: str) -> str:
    first = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s(?=[A-Z])", first, maxsplit=1)[0]
