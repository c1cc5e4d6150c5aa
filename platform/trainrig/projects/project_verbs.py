"""The commands `init` and `run`.

They import their dependencies when they run.
"""

import contextlib
import json
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trainrig import job
from trainrig.command_line import Json, argument, complete_files, make_word_completion, option
from trainrig.projects.project_kinds import KINDS

ProjectKind = Annotated[
    str,
    argument(
        "KIND",
        help=f"What to make: {', '.join(KINDS[:-1])} or {KINDS[-1]}.",
        autocompletion=make_word_completion(*KINDS),
    ),
]
NewFolder = Annotated[str, argument("DIR", help="Folder to write the project to; must be new.")]
Data = Annotated[
    list[str] | None,
    option(
        "PATH",
        help="File or folder with documents, chats, pairs, problems or pages; repeatable.",
        autocompletion=lambda incomplete: complete_files(incomplete, (".jsonl", ".parquet")),
    ),
]
StartModel = Annotated[
    str | None,
    option(
        "HF_DIR",
        help="Hugging Face folder of the model to start from.  [default: a new, small model]",
    ),
]
Gpus = Annotated[
    int | None, option("N", help="Number of GPUs to plan for.  [default: this machine's]", min=0)
]
ProjectFolder = Annotated[str, argument("DIR", help="Folder of a project that `init` wrote.")]


def init(
    kind: ProjectKind,
    folder: NewFolder,
    data: Data = None,
    model: StartModel = None,
    gpus: Gpus = None,
    as_json: Json = False,
) -> None:
    """Write a project for your data: run files, and run.sh with the order of stages.

    Looks at the data and chooses sizes by their amount and by the GPUs, so that nothing has to be
    edited. Kinds: pretrain (documents to a model), tune (chats), align (preference pairs), rl
    (problems with answers), crawl (pages to token shards), sweep (a scaling law), and encoder
    (vectors of documents).
    """
    from trainrig.projects import project_files
    from trainrig.projects.project_inputs import gather
    from trainrig.projects.project_plan import make_plan
    from trainrig.storage.writable import check_folder

    path = project_files.check_new(folder)
    check_folder(str(path.parent))
    inputs = gather(kind, data or (), model, gpus)
    plan = make_plan(inputs)
    texts = project_files.render_project(folder, inputs, plan)
    project_files.write_project(path, texts)
    found = [source.describe() for source in inputs.sources]
    if as_json:
        stages = [stage.command for stage in plan.stages]
        print(json.dumps({"project": folder, "stages": stages, "data": found, "facts": plan.facts}))
        return
    for line in [*found, *plan.facts]:
        print(line)
    print(f"{folder}: {len(plan.stages)} stages; next: trainrig run {shlex.quote(folder)}")


def run_project(
    folder: str, perform: Callable[[Sequence[str]], Any], as_json: bool = False
) -> None:
    """Perform the stages of the project in `folder` in order, each by calling `perform`.

    The first stage that fails or stops ends the run, with its error. A finished stage does nothing,
    so the same call continues after a stop. The working directory is the project's meanwhile.
    """
    from trainrig.projects.stage_list import read_stages
    from trainrig.terminal import Terminal

    terminal = Terminal()
    stages = read_stages(folder)
    seconds: list[float] = []
    results_alone = terminal.only_results_on_stdout()
    with contextlib.chdir(Path(folder)), job.if_stopped(job.GOES_ON), results_alone:
        for number, stage in enumerate(stages, 1):
            terminal.say(f"stage {number} of {len(stages)}: {stage.command}")
            began = time.monotonic()
            code = perform(stage.words)
            if isinstance(code, int) and code:
                raise typer.Exit(code)
            seconds.append(time.monotonic() - began)
    ended = [
        {"command": stage.command, "seconds": round(time_taken, 1)}
        for stage, time_taken in zip(stages, seconds, strict=True)
    ]
    if as_json:
        print(json.dumps({"project": folder, "stages": ended}))
    else:
        print(f"{folder}: all {len(stages)} stages are finished, in {sum(seconds):,.0f} s")
