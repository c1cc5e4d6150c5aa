"""JSON schemas of run files, whose descriptions are the comments beside the fields.

The comment at the end of a field's line, or the comment lines right above it, document the field.
Readers of the code and authors of run files read the same words. The comments are parsed only when
a schema is built, so they do not slow down imports.
"""

import ast
import inspect
import io
import re
import textwrap
import tokenize
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from trainrig.config import Settings

_LINTER_COMMENT = re.compile(r"# (type: ignore|noqa)")  # these describe no field


def build_json_schema(model: type[Settings]) -> dict[str, Any]:
    """Build the JSON schema of `model`, with a description for each documented key."""
    schema = model.model_json_schema(schema_generator=_Described)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def collect_descriptions(model: type[Settings]) -> dict[str, str]:
    """Return the description of each documented field of `model`, inherited fields included.

    The description of `kind`, the key that selects the model of a TOML table, is taken from the
    docstring of the model.
    """
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, Settings) and base is not Settings:
            texts |= _read_comments(base)
    if "kind" in model.model_fields:
        texts["kind"] = (
            f'Choose this table by `kind = "{model.model_fields["kind"].default}"`: '
            + (_extract_first_sentence(inspect.getdoc(model) or ""))
        )
    return {name: texts[name] for name in model.model_fields if name in texts}


class _Described(GenerateJsonSchema):
    """Generator of pydantic's JSON schemas that adds `description` to each property."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        described = super().model_schema(schema)
        descriptions = collect_descriptions(schema["cls"])
        for name, key in described.get("properties", {}).items():
            if name in descriptions:
                key["description"] = descriptions[name]
        return described


def _read_comments(model: type[Settings]) -> dict[str, str]:
    """Read the comments above and at the end of each field that `model` itself declares."""
    source = textwrap.dedent(inspect.getsource(model))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    comments: dict[int, str] = {}  # line -> comment
    comment_lines: set[int] = set()  # lines that hold only a comment
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _LINTER_COMMENT.match(token.string):
            comments[token.start[0]] = token.string.lstrip("#").strip()
            if token.line.lstrip().startswith("#"):
                comment_lines.add(token.start[0])
    descriptions: dict[str, str] = {}
    for field in definition.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            first = field.lineno
            while first - 1 in comment_lines:
                first -= 1
            lines = range(first, (field.end_lineno or field.lineno) + 1)
            if words := " ".join(comments[line] for line in lines if line in comments):
                descriptions[field.target.id] = _format_sentence(words)
    return descriptions


def _format_sentence(comment: str) -> str:
    """Format a comment as a sentence, replacing None, True and False by TOML's terms."""
    text = re.sub(r"\bNone(?=[:,;. ]|$)", "absent", comment)
    text = re.sub(r"\b(True|False)\b", lambda word: word[0].lower(), text)
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _extract_first_sentence(docstring: str) -> str:
    first = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s(?=[A-Z])", first, maxsplit=1)[0]
