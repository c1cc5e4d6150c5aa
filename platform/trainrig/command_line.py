"""Parts that several commands share: help pages, options, completion, and quantities.

A command is added by `command(app, SECTION, "trainrig …")`. The list of commands shows the first
sentence of its docstring without shortening it. The example must work when it is copied. Options
that belong together are the fields of a frozen dataclass, which the function takes as one object.

Each completion function takes the incomplete word and returns its completions. No function raises,
because a user who presses TAB should not see a traceback. Slow imports and network requests are
avoided.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from trainrig.errors import ConfigError

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
    register = app.command(
        name,
        cls=HelpCommand,
        rich_help_panel=section,
        epilog="\n".join(examples),
        context_settings=unknown or None,
    )

    def add(function: Function) -> Function:
        register(spread_options(function))
        return function

    return add


def spread_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with a parameter for each field of the dataclasses among its parameters."""
    signature = inspect.signature(function, eval_str=True)
    kinds: dict[str, Any] = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if is_dataclass(parameter.annotation)
    }
    spread: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in kinds:
            spread += inspect.signature(kinds[name]).parameters.values()
        else:
            spread.append(parameter)

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        for name, kind in kinds.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        return function(**given)

    # All by name, so that options without a default may follow others with one.
    by_name = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in spread]
    call.__signature__ = signature.replace(parameters=by_name)  # type: ignore[attr-defined]
    return call


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
    """A command group whose help page lists commands by section, with unshortened summaries.

    `--json` before the command is the same as `--json` after it. Names that other tools use for a
    command are answered with trainrig's name.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and its arguments, with an earlier `--json` among them."""
        from trainrig.verbs import OTHER_NAMES

        if ctx.parent is None and args[0] not in self.commands and args[0] in OTHER_NAMES:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{OTHER_NAMES[args[0]]}'?")
        name, found, rest = super().resolve_command(ctx, args)
        if ctx.find_root().params.get("as_json") and isinstance(found, HelpCommand):
            names = {param.name for param in found.params}
            if "as_json" in names:
                rest = ["--json", *rest]
            elif name != "schema":  # schema always prints JSON
                ctx.fail(f"'{name}' has no JSON result; leave out `--json`.")
        return name, found, rest

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


def run_files(incomplete: str) -> list[str]:
    """Complete the path of a TOML file; folders are offered too."""
    return complete_files(incomplete, (".toml",))


def complete_files(incomplete: str, suffixes: Collection[str]) -> list[str]:
    """Complete the path of a file with one of `suffixes`; folders are offered too.

    A folder that is the only choice is replaced by its entries, because a shell would append a
    space to a single choice.
    """
    found = _list_entries(incomplete, suffixes)
    while len(found) == 1 and found[0].endswith("/"):
        found = _list_entries(found[0], suffixes)
    return found


def _list_entries(incomplete: str, suffixes: Collection[str]) -> list[str]:
    folder, slash, start = incomplete.rpartition("/")
    try:
        paths = sorted(Path(folder + slash or ".").expanduser().iterdir())
        return [
            f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}"
            for path in paths
            if path.name.startswith(start)
            and (start.startswith(".") or not path.name.startswith("."))
            and (path.suffix in suffixes or path.is_dir())
        ]
    except OSError:
        return []


def complete_verbs(incomplete: str) -> list[str]:
    """Complete the name of a verb that takes a run file."""
    from trainrig.verbs import VERBS

    return [verb for verb in VERBS if verb.startswith(incomplete)]


def complete_devices(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a device in the hardware table, or in the table of `--hardware`."""
    return _complete_from_table(ctx, "devices", incomplete)


def _complete_from_table(ctx: typer.Context, part: str, incomplete: str) -> list[str]:
    from trainrig import hardware
    from trainrig.errors import ConfigError

    try:
        table = hardware.load(ctx.params.get("hardware"))
    except ConfigError:
        return []
    return [name for name in getattr(table, part) if name.startswith(incomplete)]


def make_word_completion(*choices: str) -> Callable[[str], list[str]]:
    """Return a completion function that offers `choices` in the given order."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def option(metavar: str, *names: str, help: str, **more: Any) -> Any:
    """Declare an option that takes a value, named after its parameter or by `names`."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def flag(*names: str, help: str) -> Any:
    """Declare an option that takes no value."""
    return typer.Option(*names, help=help)


def argument(metavar: str, help: str, **more: Any) -> Any:
    """Declare an argument, which is given without a name."""
    return typer.Argument(metavar=metavar, help=help, **more)


RunPath = Annotated[
    str, argument("RUN.toml", help="Run file of the command.", autocompletion=run_files)
]
Changes = Annotated[
    list[str] | None,
    option("a.b=value", "--set", help="Change one key of the run file; repeatable."),
]
Verb = Annotated[
    str, argument("COMMAND", help="Command that takes a run file.", autocompletion=complete_verbs)
]
Checkpoint = Annotated[
    str, argument("CKPT", help="Run folder (its newest checkpoint), or one checkpoint.")
]
Instance = Annotated[
    str | None,
    option(
        "NAME",
        help="Instance in the table of hardware; its on-demand price gives the cost.  "
        "[default: no cost]",
    ),
]
Search = Annotated[
    list[str] | None,
    option(
        "DIR", help="Further folder to search, with the folders in it; repeatable.  [default: none]"
    ),
]
Notify = Annotated[
    str | None,
    option("TARGET", help="Command or URL to send the run's alarms to.  [default: none]"),
]
Json = Annotated[bool, flag("--json", help="Print the result as one JSON object.")]
LogLevel = Annotated[
    str | None,
    option(
        "LEVEL",
        help="Least severe messages to print: debug, info, warning or error.  "
        "[default: $TRAINRIG_LOG_LEVEL, else info]",
        autocompletion=make_word_completion("debug", "info", "warning", "error"),
    ),
]
Borders = Annotated[bool, flag("--borders", help="Mark where each token ends.")]

Device = Annotated[
    str | None,
    option(
        "DEVICE",
        help="Device to estimate for, such as h100.  [default: this machine's]",
        autocompletion=complete_devices,
    ),
]
Utilisation = Annotated[
    float | None,
    option("SHARE", help="Share of the device's peak FLOP/s that is reached.  [default: 0.4]"),
]
HardwareTable = Annotated[
    str | None,
    option(
        "FILE",
        help="Table of devices, machines and prices.  "
        "[default: $TRAINRIG_HARDWARE, else trainrig's hardware.toml]",
        envvar="TRAINRIG_HARDWARE",
        show_envvar=False,
        autocompletion=run_files,
    ),
]
RecordsHome = Annotated[
    str | None,
    option(
        "URL",
        "--home",
        help="Folder or URL of the runs' records, on disk or in a bucket.  "
        "[default: $TRAINRIG_HOME, else ~/.local/state/trainrig]",
    ),
]


_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_WRITTEN = re.compile(r"([-+]?[\d_,.]+(?:e[-+]?\d+)?)\s*([kmbgt]?)", re.IGNORECASE)


def parse_quantity(text: str) -> float:
    """Parse a number such as `1e9` or `1.3B`. Raises ConfigError if it is invalid or infinite."""
    found = _WRITTEN.fullmatch(str(text).strip())
    try:
        value = float(re.sub("[,_]", "", found[1])) * _SCALES[found[2].lower()] if found else None
    except ValueError:
        value = None
    if value is None or not math.isfinite(value):
        raise ConfigError(f"'{text}' is not a number; write it as 1e9, 1.3B, 300M or 2T")
    return value


def quantity(metavar: str, name: str, *, help: str) -> Any:
    """Declare an option that takes a number such as `1.3B`; errors give its `name`."""

    def parse(text: str) -> float:
        try:
            return parse_quantity(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None

    return option(metavar, name, help=help, parser=parse)
