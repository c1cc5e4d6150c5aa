"""What the shell offers at TAB: run files, devices, instances, verbs.

Each function gets the word so far and gives what it may become. None fails: whoever presses TAB is
not to read a traceback on the way. Nothing slow is imported, and no network is asked.
"""

from collections.abc import Callable, Collection
from pathlib import Path

import typer


def run_files(incomplete: str) -> list[str]:
    """TOML files, and folders on the way to one."""
    return complete_files(incomplete, (".toml",))


def complete_files(incomplete: str, suffixes: Collection[str]) -> list[str]:
    """Files that end in one of `suffixes`, and folders.

    A folder that is the only choice is entered: a shell would put a blank behind it.
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
    """Verbs that take a run file."""
    from trainrig.verbs import VERBS

    return [verb for verb in VERBS if verb.startswith(incomplete)]


def complete_devices(ctx: typer.Context, incomplete: str) -> list[str]:
    """Devices of the table of hardware, or of the one that `--hardware` names."""
    return _complete_from_table(ctx, "devices", incomplete)


def complete_instances(ctx: typer.Context, incomplete: str) -> list[str]:
    """Machines of the table of hardware, or of the one that `--hardware` names."""
    return _complete_from_table(ctx, "instances", incomplete)


def complete_interconnects(ctx: typer.Context, incomplete: str) -> list[str]:
    """Links of the table of hardware, or of the one that `--hardware` names."""
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
    """A completion by `choices`, which stand in order."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete
