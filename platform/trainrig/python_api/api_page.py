"""Generator of `docs/reference/api.md`, the page of what `import trainrig` offers.

The texts are the docstrings, and the signatures are those of the source, which is parsed and not
imported. `make docs` writes the page, and a test fails if it differs from the generated text.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trainrig
from trainrig.verbs import VERBS

PAGE = "docs/reference/api.md"

_HEAD = """# The Python API

Everything that `import trainrig` offers, and then `trainrig.data`. `make docs` generates this page
from the docstrings; do not edit it. The guides of [the library](../library.md) and of
[Ray Data](../ray-data.md) show how the parts work together.
"""

# Title of each module's section, in the order of the page.
_SECTIONS = {
    "python_api/stages.py": "Stages",
    "python_api/laws_and_plans.py": "Laws and plans",
    "python_api/loaded_model.py": "Models",
    "python_api/hub_models.py": "Hugging Face folders",
    "python_api/opened_run.py": "Runs",
    "python_api/opened_data.py": "Documents and tokens",
    "errors.py": "Errors",
}
# Modules of the names of `trainrig.data`.
_DATA_FILES = (
    "data/page_source.py",
    "corpus/operators/page_operators.py",
    "corpus/operators/text_operators.py",
    "corpus/operators/decision_operators.py",
    "tokens/tokenize_operator.py",
    "evaluate/engine/embed_operator.py",
    "data/split_sink.py",
)
# Methods that Ray Data calls, not users.
_HOOKS = ("on_write_complete", "on_write_failed", "write")
# Verbs whose function has another name than the verb.
_VERB_OF = {"train_tokenizer": "tokenizer", "encode_conversations": "conversations"}


def build_api_page() -> str:
    """Return the Markdown page of all public names, with a section for each module."""
    lines = [_HEAD]
    for file, title in _SECTIONS.items():
        module = _Module(file)
        lines += [f"## {title}", "", *_format_docstring(module.tree), ""]
        public = [node for node in module.tree.body if _find_name(node) in trainrig.__all__]
        # functions before classes
        for node in sorted(public, key=lambda node: isinstance(node, ast.ClassDef)):
            lines += _describe(module, node, "trainrig")
    lines += ["## Steps for Ray Data", "", *_format_docstring(_Module("data/__init__.py").tree), ""]
    for file in _DATA_FILES:
        module = _Module(file)
        for node in module.tree.body:
            if _find_name(node) in trainrig.data.__all__:
                lines += _describe(module, node, "trainrig.data")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


class _Module:
    """Source of a module of the package, parsed."""

    def __init__(self, file: str) -> None:
        text = Path(__file__).parents[1].joinpath(file).read_text(encoding="utf-8")
        self.lines = text.splitlines()
        self.tree = ast.parse(text)

    def format_signature(self, node: ast.FunctionDef) -> str:
        """Return the signature of a function or method as the source writes it, without `self`."""
        lines = self.lines[node.lineno - 1 : node.body[0].lineno - 1]
        text = textwrap.dedent("\n".join(lines)).removeprefix("def ").removesuffix(":")
        return re.sub(r"\(\n    self,", "(", re.sub(r"\(self(, )?", "(", text))

    def read_comment(self, field: ast.AnnAssign) -> str:
        """Return the comment on a field: at the end of its line, or in the lines before it."""
        if comment := self.lines[field.lineno - 1].partition("  # ")[2]:
            return comment
        first = field.lineno - 1
        while self.lines[first - 1].lstrip().startswith("# "):
            first -= 1
        return " ".join(line.strip()[2:] for line in self.lines[first : field.lineno - 1])


def _find_name(node: ast.AST) -> str:
    return node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else ""


def _describe(module: _Module, node: ast.stmt, package: str) -> Iterator[str]:
    """Yield the section of a public function or class of `package`."""
    name = _find_name(node)
    yield from (f"### {package}.{name}", "")
    if isinstance(node, ast.FunctionDef):
        yield from ("```python", f"{package}.{module.format_signature(node)}", "```", "")
    yield from (*_format_docstring(node), "")
    verb = _VERB_OF.get(name, name)
    if verb in VERBS or verb == "plan":
        yield from (f"Keys: [run file of {verb}](../run-files.md#run-file-of-{verb}).", "")
    if isinstance(node, ast.ClassDef):
        yield from _describe_members(module, node)


def _describe_members(module: _Module, owner: ast.ClassDef) -> Iterator[str]:
    """Yield the fields, properties and public methods of a class, in the order of its source."""
    for inner in owner.body:
        if isinstance(inner, ast.AnnAssign) and not ast.unparse(inner.target).startswith("_"):
            yield f"- `{ast.unparse(inner.target)}`: {module.read_comment(inner).rstrip('.')}."
    yield ""
    for inner in owner.body:
        if not isinstance(inner, ast.FunctionDef) or inner.name.startswith("_"):
            continue
        if inner.name in _HOOKS:
            continue
        if not ast.get_docstring(inner):  # an overload
            continue
        yield from (f"#### {owner.name}.{inner.name}", "")
        if not inner.decorator_list:  # properties have no signature
            yield from ("```python", module.format_signature(inner), "```", "")
        yield from (*_format_docstring(inner), "")


def _format_docstring(node: Any) -> Iterator[str]:
    """Yield the Markdown lines of a docstring; examples and trees become blocks of code."""
    for block in (ast.get_docstring(node) or "").split("\n\n"):
        if block.startswith(">>> "):
            code = [line[4:] for line in block.splitlines() if line.startswith((">>> ", "... "))]
            yield from ("```python", *code, "```", "")
        elif block.startswith("    "):
            yield from ("```text", textwrap.dedent(block), "```", "")
        else:
            yield from (*block.splitlines(), "")
