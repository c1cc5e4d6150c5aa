"""Shell completion of run files, devices, instances and verbs.

Each function takes the incomplete word and returns its completions. No function raises, because a
user who presses TAB should not see a traceback. Slow imports and network requests are avoided.
"""

from collections.abc import Callable, Collection
from pathlib import Path

import typer


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


def complete_instances(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of an instance in the hardware table, or in the table of `--hardware`."""
    return _complete_from_table(ctx, "instances", incomplete)


def complete_interconnects(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a link in the hardware table, or in the table of `--hardware`."""
    return _complete_from_table(ctx, "links", incomplete)


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
