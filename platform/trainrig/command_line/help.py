"""Help pages of the commands: grouped by section, in whole sentences, each with an example.

A command is added by `command(app, SECTION, "trainrig …")`. The list of commands shows the first
sentence of its docstring without shortening it. The example must work when it is copied.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

# Sections of `trainrig --help` in the order of the data path, in which the page shows them.
START = "Start here"
DATA = "Data: pages to token shards"
MODELS = "Training, evaluation and use of models"
SCALING = "Scaling laws"
CLUSTERS = "Runs on clusters"
SECTIONS = (START, DATA, MODELS, SCALING, CLUSTERS)
# Sections of the verbs that take a run file, by the section name of the verb.
SECTION_OF = {"data": DATA, "models": MODELS, "scaling": SCALING}

CONTEXT = {"help_option_names": ["-h", "--help"]}

Function = TypeVar("Function", bound=Callable[..., Any])


def command(
    app: typer.Typer,
    section: str,
    *examples: str,
    name: str | None = None,
    passes_on: bool = False,
) -> Callable[[Function], Function]:
    """Return a decorator that adds a function to `app` as a command of `section`.

    The help page ends with `examples`. With `passes_on`, the command accepts unknown options, which
    it passes on to another program.
    """
    unknown = {"allow_extra_args": True, "ignore_unknown_options": True} if passes_on else {}
    return app.command(
        name,
        cls=HelpCommand,
        rich_help_panel=section,
        epilog="\n".join(examples),
        context_settings=unknown or None,
    )


class HelpCommand(TyperCommand):
    """A command whose help page shows arguments without Python types and ends with examples."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, such as `[OPTIONS]` and `RUN.toml`."""
        pieces = ["[OPTIONS]"]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                pieces.append(_format_name(param) + ("..." if param.nargs != 1 else ""))
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the lists of arguments and options with their help texts."""
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                name, text = record
                kind = param.param_type_name
                rows[kind].append((_format_name(param) if kind == "argument" else name, text))
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            if rows[kind]:
                with formatter.section(title):
                    formatter.write_dl(rows[kind])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write each example on one line, however narrow the terminal, so that it can be copied."""
        if self.epilog:
            examples = self.epilog.splitlines()
            with formatter.section("Example" if len(examples) == 1 else "Examples"):
                for example in examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class HelpGroup(TyperGroup):
    """A command group whose help page lists commands by section, with unshortened summaries."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list of commands for each section, SECTIONS first and in their order."""
        sections: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
        for name in self.list_commands(ctx):
            found = self.get_command(ctx, name)
            if found is not None and not found.hidden:
                section = getattr(found, "rich_help_panel", None)
                section = section if isinstance(section, str) else "Commands"
                sections.setdefault(section, []).append((name, extract_summary(found.help or "")))
        for section, rows in sections.items():
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)


def extract_summary(text: str) -> str:
    """Return the first sentence of a help text."""
    first = " ".join(text.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", first, maxsplit=1)[0]


def _format_name(param: Any) -> str:
    return str(param.metavar or param.name.upper())


__all__ = [
    "CLUSTERS",
    "CONTEXT",
    "DATA",
    "MODELS",
    "SCALING",
    "SECTIONS",
    "SECTION_OF",
    "START",
    "HelpCommand",
    "HelpGroup",
    "command",
    "extract_summary",
]
