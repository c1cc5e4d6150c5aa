"""How the commands describe themselves: grouped, with whole sentences, and each with an example.

A command is added by `command(app, SECTION, "trainrig …")`. Its docstring's first paragraph is the
summary that the list of commands shows, uncut; the example must be one that can be copied.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

# Sections of `trainrig --help`, in the order in which they are shown: that of the data path.
START = "Start here"
DATA = "Data: pages to token shards"
MODELS = "Training, evaluation and use of models"
SCALING = "Scaling laws"
CLUSTERS = "Runs on clusters"
SECTIONS = (START, DATA, MODELS, SCALING, CLUSTERS)
# Those that verbs with a run file are in.
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
    """Add a function to `app` as a command of `section`, with `examples` below its help.

    One that `passes_on` takes options that it does not know, for another program.
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
    """A command whose help names arguments without Python's types, and ends with examples."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] RUN.toml`: options first, then the arguments by name."""
        pieces = ["[OPTIONS]"]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                pieces.append(_format_name(param) + ("..." if param.nargs != 1 else ""))
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options, each with its help."""
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
        """The examples, each on one line however narrow the terminal: they are to be copied."""
        if self.epilog:
            examples = self.epilog.splitlines()
            with formatter.section("Example" if len(examples) == 1 else "Examples"):
                for example in examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class HelpGroup(TyperGroup):
    """Commands under the titles of their sections, with whole summaries."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A list for each section; SECTIONS first, in their order."""
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
    """The first sentence of a help text, whole."""
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
