"""The order of a project's stages, which its run.sh holds: read here, by `trainrig run`.

`run.sh` is the only place with the order, so a stage is added, left out or moved there, and a shell
does the same as `trainrig run`.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.storage.missing_folders import describe_origin

SCRIPT = "run.sh"
FIRST_LINE = "#!/bin/sh -e"
ENTER = 'cd "$(dirname "$0")"'
PROGRAM = "trainrig"
OPERATORS = set("();<>|&")  # characters of a shell's operators, which only a shell obeys


@dataclass(frozen=True)
class ProjectStage:
    """One command of a project, and what it makes."""

    words: tuple[str, ...]  # the command without `trainrig`
    note: str = ""

    @property
    def command(self) -> str:
        """The command as it is typed."""
        return shlex.join([PROGRAM, *self.words])


def format_script(stages: Sequence[ProjectStage]) -> str:
    """Return the text of run.sh, with the notes as comments in one column."""
    width = max(len(stage.command) for stage in stages)
    lines = [f"{stage.command:<{width}}  # {stage.note}".rstrip("# ") for stage in stages]
    return "\n".join([FIRST_LINE, ENTER, *lines]) + "\n"


def read_stages(folder: str) -> list[ProjectStage]:
    """Return the stages of the project in `folder`, in order.

    Raises ConfigError if the folder has no run.sh, and for a line that is not a `trainrig` command.
    """
    path = storage.join(folder, SCRIPT)
    try:
        text = storage.decode_utf8(storage.read(path))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{path}: no such file{describe_origin(path)}; name a folder that `trainrig init` wrote"
        ) from None
    except storage.NotUtf8 as error:
        raise ConfigError(f"{path}: not UTF-8 ({error}); save it in that encoding") from None
    stages = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() == ENTER:
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: not a shell command: {error}") from None
        if not words:
            continue
        no_verb = len(words) < 2 or words[1] in ("run", "init") or words[1].startswith("-")
        if words[0] != PROGRAM or no_verb or any(set(word) <= OPERATORS for word in words):
            raise ConfigError(
                f"{path}:{number}: `{line.strip()}` is not a stage; write `trainrig VERB RUN.toml` "
                f"with a verb other than run and init, or run the script with `sh {path}`"
            )
        stages.append(ProjectStage(tuple(words[1:])))
    if not stages:
        raise ConfigError(f"{path}: has no stage; write lines such as `trainrig VERB RUN.toml`")
    return stages
